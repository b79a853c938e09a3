"""The data sets of the paper, and some others: where they are found, and how they are read.

They are looked for in the package, in the folder $VERFEDSV_DATA, in the user's cache, and then on the LIBSVM site;
downloads must have the SHA-256 given here.
"""

from __future__ import annotations

import bz2
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from verfedsv.data.targets import LabelArray
from verfedsv.errors import DataError, InputError

SITE = "https://www.csie.ntu.edu.tw/~cjlin/libsvmtools/datasets"
FOLDER_VARIABLE = "VERFEDSV_DATA"
INCLUDED = Path(__file__).parent / "files"


@dataclass(frozen=True)
class DataSet:
    """A data set of the catalogue.

    `n_classes` is 1 if labels are amounts. `sources` has the SHA-256 of each file by its path on the LIBSVM site: the
    training part, and the test part if there is one. `n_clients` is the number of clients that share it in the paper's
    table 2, or would for the sets that the paper does not have. `made_from` says how files were made that no site has.
    If the set `is_binary`, all features are 0 or 1; if it `is_scaled`, they are of one scale. `attributes` are the
    names of its columns, in order, with the number of features of each. A set that comes with scikit-learn has a
    `loader` of features and labels instead of `sources`.
    """

    name: str
    title: str
    n_samples: int
    n_features: int
    n_classes: int
    n_clients: int
    sources: Mapping[str, str]
    made_from: str = ""
    is_binary: bool = False
    is_scaled: bool = True
    attributes: Mapping[str, int] = field(default_factory=dict)
    loader: Callable[[], tuple[NDArray[np.float64], NDArray[np.float64]]] | None = None

    def attributes_of(self, first: int, last: int) -> list[str]:
        """Return the attributes of the features from `first` to `last`, numbered from 1.

        >>> CATALOGUE["adult"].attributes_of(1, 14)
        ['age', 'workclass', 'fnlwgt']
        """
        ends = np.cumsum([*self.attributes.values()])
        begins = ends - [*self.attributes.values()]
        return [name for name, a, b in zip(self.attributes, begins, ends, strict=True) if a < last and b >= first]


@dataclass(frozen=True, eq=False)
class Samples:
    """Features, (samples, features), and labels of a data set; the last `n_test` samples are its test part.

    Labels are 0 to C - 1, and `classes` the names of the classes, if they have any; or amounts, with `n_classes` 1.
    `notes` and `cautions` are as in `VerticalData`. Features are numbered from `first_feature` on.
    """

    name: str
    features: csr_array[Any]
    labels: LabelArray
    n_classes: int
    n_test: int
    classes: tuple[str, ...] | None = None
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    first_feature: int = 1


def _load_diabetes() -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    from sklearn.datasets import load_diabetes

    features, labels = load_diabetes(return_X_y=True, scaled=False)
    return features, labels


_DATA_SETS = (
    DataSet(
        "adult",
        "Adult: who earns more than 50,000 dollars, from the census of 1994",
        48_842,
        123,
        2,
        8,
        {
            "binary/a9a": "f5d5ffd8d865ff41328e7ee043e4b020816914ff6843ff15b98905ddbedce906",
            "binary/a9a.t": "1f448a153f0320399a7e40836eb207655b0bde0f21fc941cc472193daa9f5de9",
        },
        is_binary=True,
        attributes={
            "age": 5,
            "workclass": 8,
            "fnlwgt": 5,
            "education": 16,
            "education-num": 5,
            "marital-status": 7,
            "occupation": 14,
            "relationship": 6,
            "race": 5,
            "sex": 2,
            "capital-gain": 2,
            "capital-loss": 2,
            "hours-per-week": 5,
            "native-country": 41,
        },
    ),
    DataSet(
        "web",
        "Web: which of 64,700 web pages belong to a category",
        64_700,
        300,
        2,
        20,
        {
            "binary/w8a": "6a9fa8fd5f524303240a5db07d4b3d4a51e8b7b4b20a914105d8e3e8c81640f2",
            "binary/w8a.t": "618929ecb01bebb841daec4cae4aa07b97832d29b08652452775598929547fde",
        },
        is_binary=True,
    ),
    DataSet(
        "covtype",
        "Covtype: seven kinds of forest, from maps; features between 0 and 1",
        581_012,
        54,
        7,
        14,
        {"multiclass/covtype.scale01.bz2": "9a1d8c94be2126f142a009b63c9b3682b0aeb39bcfca946451767a7aadbbdea6"},
    ),
    DataSet(
        "rcv1",
        "RCV1: news stories by topic",
        15_564,
        47_236,
        53,
        19,
        {"multiclass/rcv1_train.multiclass.bz2": "79691e3f974aa6a08d5e3116c61aff822fbdb2725e99ed27fde4351af51076a8"},
    ),
    DataSet(
        "rcv1-second-level",
        "RCV1: more news stories by topic, those with exactly one second-level topic",
        18_554,
        47_236,
        52,
        19,
        {"rcv1.second-level.bz2": "c8f6bb2cc4d8c769861bd134630d07ee4a214bc6e50f30d28a55ca1a0ea9dbf3"},
        "the documents of LIBSVM's five RCV1-v2 topic subsets that have exactly one second-level topic",
    ),
    DataSet(
        "sector",
        "Sector: web pages of companies by industry",
        9_619,
        55_197,
        105,
        19,
        {
            "multiclass/sector/sector.scale.bz2": "cba3d66eed97803665eeb76379fe9d9955712ea0e5c61d7003f644713ed842b5",
            "multiclass/sector/sector.t.scale.bz2": "c8c26e073abd92dda9e2a7903546fbe3c783a8d6141ec3fad360de4c0a572cbc",
        },
    ),
    DataSet(
        "letter",
        "Letter: capital letters from sixteen numbers about their shape",
        20_000,
        16,
        26,
        4,
        {
            "multiclass/letter.scale": "ce2c7df15cc5742dc4382d59079181c97c21e0beaa0af53c84cc5745c69f1020",
            "multiclass/letter.scale.t": "07522ccbf54187fae6d560d1712b88c41ea1f7e8d19491c5adcc22ee37a075da",
        },
    ),
    DataSet(
        "diabetes",
        "Diabetes: its progression in a year, a number, from ten measurements",
        442,
        10,
        1,
        5,
        {},
        is_scaled=False,
        attributes=dict.fromkeys(("age", "sex", "bmi", "bp", "s1", "s2", "s3", "s4", "s5", "s6"), 1),
        loader=_load_diabetes,
    ),
)
CATALOGUE = {data_set.name: data_set for data_set in _DATA_SETS}


def get_data_set(name: str) -> DataSet:
    """Return the data set of that name, ignoring case; raise InputError if there is none."""
    try:
        return CATALOGUE[name.lower()]
    except KeyError:
        raise InputError(f"unknown data set {name!r}; allowed are {', '.join(CATALOGUE)}") from None


def locate(data_set: DataSet) -> list[Path] | None:
    """Return the files of a data set, or their compressed forms, if they are on this machine, else None.

    Of one that comes with scikit-learn, return the folder of that package.
    """
    if data_set.loader is not None:
        package = find_spec("sklearn")
        return None if package is None or package.origin is None else [Path(package.origin).parent]
    names = [path.rpartition("/")[2] for path in data_set.sources]
    for folder in _folders():
        choices = [(folder / name, folder / f"{name}.bz2") for name in names]
        found = [path for pair in choices if (path := next(filter(Path.exists, pair), None)) is not None]
        if len(found) == len(names):
            return found
    return None


def fetch(name: str) -> list[Path]:
    """Return the files of a data set, downloading them into the user's cache if they are not on this machine."""
    data_set = get_data_set(name)
    found = locate(data_set)
    if found is not None:
        return found
    *_, cache = _folders()
    if data_set.made_from:
        raise DataError(
            f"data set {data_set.name!r} is not on this machine and on no site; its file {', '.join(data_set.sources)} "
            f"has {data_set.made_from}. Put it into {cache} or the folder that ${FOLDER_VARIABLE} names"
        )
    import pooch

    try:
        return [
            Path(pooch.retrieve(f"{SITE}/{path}", f"sha256:{digest}", path.rpartition("/")[2], cache))
            for path, digest in data_set.sources.items()
        ]
    except ValueError as error:
        raise DataError(f"the LIBSVM site sent an unexpected file for {name!r}: {error}") from None
    except OSError as error:
        them = "it" if len(data_set.sources) == 1 else "them"
        addresses = " and ".join(f"{SITE}/{path}" for path in data_set.sources)
        raise DataError(
            f"data set {data_set.name!r} is not on this machine and cannot be downloaded ({type(error).__name__}). "
            f"Download {addresses} on a machine with internet access, and put {them} into {cache} or the folder that "
            f"${FOLDER_VARIABLE} names"
        ) from None


def load(name: str) -> Samples:
    """Return a data set, downloaded first if necessary."""
    data_set = get_data_set(name)
    if data_set.loader is not None:
        features, amounts = data_set.loader()
        return Samples(data_set.name, csr_array(features), amounts, data_set.n_classes, 0)
    return read(data_set, fetch(name))


def read(data_set: DataSet, paths: list[Path]) -> Samples:
    """Return the samples in the files of a data set, the test part last."""
    try:
        parts = [_read_file(path, data_set) for path in paths]
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"data set {data_set.name!r} cannot be read from {paths[0].parent}: {error}") from None
    labels = np.concatenate([y for _, y in parts])
    values, numbers = np.unique(labels, return_inverse=True)
    n_test = len(parts[1][1]) if len(parts) > 1 else 0
    features = csr_array(vstack([x for x, _ in parts]))
    classes = tuple(f"{value:g}" for value in values)
    return Samples(data_set.name, features, numbers.astype(np.intp), len(values), n_test, classes)


def _read_file(path: Path, data_set: DataSet) -> tuple[csr_array[Any], NDArray[np.float64]]:
    """Return the features and labels in a file of LIBSVM's format."""
    if data_set.is_binary:
        return _read_binary(path, data_set.n_features)
    # Imported late: it takes a second, longer than importing the rest of this package.
    from sklearn.datasets import load_svmlight_file

    features, labels = load_svmlight_file(str(path), n_features=data_set.n_features)
    return csr_array(features), labels


def _read_binary(path: Path, n_features: int) -> tuple[csr_array[Any], NDArray[np.float64]]:
    """Return the same of a file whose features are all 0 or 1, a tenth of a second instead of scikit-learn's import."""
    content = path.read_bytes()
    text = bz2.decompress(content) if path.suffix == ".bz2" else content
    lines = [line for line in text.splitlines() if line.strip()]
    sizes = np.array([line.count(b":1") for line in lines])
    numbers = np.array(text.replace(b":1", b" ").split(), np.float64)  # a label, then the features that are 1
    starts = np.cumsum([0, *sizes])
    at = starts[:-1] + np.arange(len(lines))
    if len(numbers) != len(lines) + starts[-1]:
        raise ValueError("a line is not a label and features that are 1")
    columns = np.delete(numbers, at).astype(np.int32) - 1
    if len(columns) and not (columns.min() >= 0 and columns.max() < n_features):
        raise ValueError(f"a feature is not one of 1 to {n_features}")
    return csr_array((np.ones(len(columns)), columns, starts), shape=(len(lines), n_features)), numbers[at]


def _folders() -> Iterator[Path]:
    """Yield the folders to search for data sets; downloads go to the last."""
    yield INCLUDED
    if given := os.environ.get(FOLDER_VARIABLE):
        yield Path(given)
    import pooch

    yield Path(pooch.os_cache("verfedsv"))
