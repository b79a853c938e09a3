"""The data sets of the paper: where they are found, and how they are read.

Looked for in the folder $VERFEDSV_DATA, then in the user's cache, then on the LIBSVM site; what comes from there must
have the SHA-256 written here.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.resources import as_file, files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from verfedsv.errors import DataError, InputError

SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
FOLDER_VARIABLE = "VERFEDSV_DATA"


@dataclass(frozen=True)
class Source:
    """A file of a data set, its path on the LIBSVM site and its SHA-256."""

    name: str
    path: str
    sha256: str


@dataclass(frozen=True)
class Entry:
    """A data set: its files, the training part first and then, if there is one, the test part."""

    name: str
    title: str
    n_samples: int
    n_features: int
    n_classes: int
    n_clients: int
    sources: tuple[Source, ...]
    is_included: bool = False


@dataclass(frozen=True, eq=False)
class Samples:
    """Features, (samples, features), and labels, 0 to C - 1, of a data set; the last `n_test` are its test part."""

    name: str
    features: csr_array[Any]
    labels: NDArray[np.intp]
    n_classes: int
    n_test: int


CATALOGUE = {
    entry.name: entry
    for entry in (
        Entry(
            "adult",
            "Adult: who earns more than 50,000 dollars, from the census of 1994",
            48_842,
            123,
            2,
            8,
            (
                Source("a9a.bz2", "binary/a9a", "1dcb2b4aedea0b5a9e964192dd211675d16cf05ab6477ddd0702d87c1d1af8da"),
                Source("a9a.t.bz2", "binary/a9a.t", "e55725b53c3c47f7053bd3ef12e41555539eac4c0fe989e69345cc4dd0ea6e8d"),
            ),
            is_included=True,
        ),
        Entry(
            "web",
            "Web: which of 64,700 web pages belong to a category",
            64_700,
            300,
            2,
            20,
            (
                Source("w8a", "binary/w8a", "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2"),
                Source("w8a.t", "binary/w8a.t", "618929ecb01bebb841daec4cae4aa07b97832d29b08652452775598929547fde"),
            ),
        ),
        Entry(
            "covtype",
            "Covtype: seven kinds of forest, from maps; features between 0 and 1",
            581_012,
            54,
            7,
            14,
            (
                Source(
                    "covtype.scale01.bz2",
                    "multiclass/covtype.scale01.bz2",
                    "9a1d8c94be2126f142a009b63c9b3682b0aeb39bcfca946451767a7aadbbdea6",
                ),
            ),
        ),
        Entry(
            "rcv1",
            "RCV1: news stories by topic",
            15_564,
            47_236,
            53,
            19,
            (
                Source(
                    "rcv1_train.multiclass.bz2",
                    "multiclass/rcv1_train.multiclass.bz2",
                    "79691e3f974aa6a08d5e3116c61aff822fbdb2725e99ed27fde4351af51076a8",
                ),
            ),
        ),
        Entry(
            "sector",
            "Sector: web pages of companies by industry",
            9_619,
            55_197,
            105,
            19,
            (
                Source(
                    "sector.scale.bz2",
                    "multiclass/sector/sector.scale.bz2",
                    "cba3d66eed97803665eeb76379fe9d9955712ea0e5c61d7003f644713ed842b5",
                ),
                Source(
                    "sector.t.scale.bz2",
                    "multiclass/sector/sector.t.scale.bz2",
                    "c8c26e073abd92dda9e2a7903546fbe3c783a8d6141ec3fad360de4c0a572cbc",
                ),
            ),
        ),
    )
}


def get_entry(name: str) -> Entry:
    """Return the entry of that name, whatever its case; raise InputError if there is none."""
    try:
        return CATALOGUE[name.lower()]
    except KeyError:
        raise InputError(f"unknown data set {name!r}; there are {', '.join(CATALOGUE)}") from None


def locate(entry: Entry) -> list[Path] | None:
    """Return the files of a data set if they are on this machine, else None."""
    if entry.is_included:
        return [_included(source) for source in entry.sources]
    for folder in _folders():
        found = [_in_folder(folder, source) for source in entry.sources]
        if all(found):
            return [path for path in found if path is not None]
    return None


def fetch(name: str) -> list[Path]:
    """Return the files of a data set, downloading them into the user's cache if they are not on this machine."""
    entry = get_entry(name)
    found = locate(entry)
    if found is not None:
        return found
    import pooch

    cache = _folders()[-1]
    try:
        return [
            Path(pooch.retrieve(f"{SITE}/{source.path}", f"sha256:{source.sha256}", source.name, cache))
            for source in entry.sources
        ]
    except ValueError as error:
        raise DataError(f"what the LIBSVM site sent for {name!r} is not the file expected: {error}") from None
    except OSError as error:
        them = "it" if len(entry.sources) == 1 else "them"
        addresses = " and ".join(f"{SITE}/{source.path}" for source in entry.sources)
        raise DataError(
            f"data set {entry.name!r} is not on this machine and cannot be downloaded ({type(error).__name__}). Get "
            f"{addresses} on a machine that is online, and put {them} into {cache} or a folder that "
            f"${FOLDER_VARIABLE} names"
        ) from None


def load(name: str) -> Samples:
    """Return a data set, downloading it first if necessary."""
    entry = get_entry(name)
    return read(entry, fetch(name))


def read(entry: Entry, paths: list[Path]) -> Samples:
    """Return the samples in the files of a data set, the test part last."""
    # Imported late: it takes a second, longer than importing the rest of this package.
    from sklearn.datasets import load_svmlight_file

    try:
        parts = [load_svmlight_file(str(path), n_features=entry.n_features) for path in paths]
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"data set {entry.name!r} cannot be read from {paths[0].parent}: {error}") from None
    labels = np.concatenate([y for _, y in parts])
    values, numbers = np.unique(labels, return_inverse=True)
    n_test = len(parts[1][1]) if len(parts) > 1 else 0
    return Samples(entry.name, csr_array(vstack([x for x, _ in parts])), numbers.astype(np.intp), len(values), n_test)


def _included(source: Source) -> Path:
    with as_file(files("verfedsv.data") / "files" / source.name) as path:
        return path


def _folders() -> list[Path]:
    import pooch

    given = os.environ.get(FOLDER_VARIABLE)
    return [*([Path(given)] if given else []), Path(pooch.os_cache("verfedsv"))]


def _in_folder(folder: Path, source: Source) -> Path | None:
    """Return the file, or its compressed form, if one of them is there."""
    for path in (folder / source.name, folder / f"{source.name}.bz2"):
        if path.exists():
            return path
    return None
