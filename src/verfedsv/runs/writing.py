"""Check that a run can begin or be resumed in a folder, and write its notes and metrics there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.errors import InputError
from verfedsv.federation.evaluation import MEASURES, PARTS
from verfedsv.files import is_unfinished, naming, write_whole
from verfedsv.runs.config import Config, Section
from verfedsv.runs.folder import CHECKPOINTS, CONFIG, FILES, METRICS, NOTES, VALUATION, RunFolder
from verfedsv.runs.reading import read_text
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.reader import FOLDER
from verfedsv.transcript.storage import FolderStorage
from verfedsv.untrusted import read_json


def check_free(folder: Path, text: str) -> None:
    """Raise InputError if a new run with that configuration would destroy something in a folder."""
    with _explained(folder):
        RunFolder(folder).refuse_links()
        if folder.exists() and not is_free(folder, text):
            raise InputError(f"{folder} is not empty; continue its run with --resume, or choose another output folder")
    _try_writing(folder)


def is_free(folder: Path, text: str) -> bool:
    """Return whether a folder is empty, or holds a run that ended before anything was recorded."""
    names = {path.name for path in folder.iterdir() if not is_unfinished(path.name, CONFIG)}
    if FOLDER not in names:
        # A configuration alone may have been written there by hand.
        return not names or (names == {CONFIG} and read_text(folder / CONFIG) == text)
    return VALUATION not in names and not has_others(folder) and not _has_records(folder)


def has_others(folder: Path) -> bool:
    """Return whether a folder holds anything that does not belong to a run."""
    names = {path.name for path in folder.iterdir()} - {FOLDER, *FILES}
    return not all(any(is_unfinished(name, file) for file in FILES) for name in names)


def _has_records(folder: Path) -> bool:
    return len(fmt.files_of(folder / FOLDER)) > 2 and next(iter(Transcript.open(folder)), None) is not None


def begin(folder: Path, text: str) -> None:
    """Make the folder of a new run; the files of an earlier run without records are removed."""
    with _explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / FOLDER).exists():
            storage = FolderStorage(folder / FOLDER, writable=True)  # refuses if another run is beginning there
            shutil.rmtree(folder / FOLDER / fmt.TENSORS, ignore_errors=True)
            for path in reversed(fmt.files_of(folder / FOLDER)):  # the file that describes the others goes last
                path.unlink(missing_ok=True)
            storage.close()
        for name in (METRICS, NOTES):
            (folder / name).unlink(missing_ok=True)
        shutil.rmtree(folder / CHECKPOINTS, ignore_errors=True)
        write_whole(folder / CONFIG, text.encode())


def check_same(folder: Path, config: Config) -> None:
    """Raise InputError unless the run in a folder has the same settings as a configuration."""
    with _explained(folder):
        RunFolder(folder).refuse_links()
        there = RunFolder(folder).config()
    if there is None:
        raise InputError(f"there is no run in {folder} to resume; begin one without --resume")
    _try_writing(folder)
    before, now = _meaning(there), _meaning(config)
    names = dict.fromkeys([*before, *now])
    changed = [
        f"{name} was {before.get(name)!r} and is {now.get(name)!r}"
        for name in names
        if before.get(name) != now.get(name)
    ]
    if changed:
        raise InputError(
            f"the run in {folder} has another configuration, see its {CONFIG}: {'; '.join(changed)}. Choose another "
            "output folder; to value the same training in another way, use verfedsv value"
        )


def _meaning(config: Config) -> dict[str, Any]:
    """Return all settings that a run depends on, by their full names.

    Paths are left out: files may have been moved, and checkpoints hold fingerprints of the data.
    """
    clients = {f"client {number}": client for number, client in enumerate(config.client, 1)}
    data = config.data.model_copy(update={"scale": config.data.used_scale})
    rest = {"model": config.model, "training": config.training, "valuation": config.valuation}
    tables: dict[str, Section] = {"data": data, **clients, **rest}
    paths = ("file", "test_file")
    return {
        f"{table}.{name}": value for table, section in tables.items() for name, value in section if name not in paths
    }


def _try_writing(folder: Path) -> None:
    """Raise InputError unless a file can be written in a folder, which is removed again if it did not exist."""
    with _explained(folder):
        missing = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tempfile.TemporaryFile(dir=folder).close()
        finally:
            for path in missing:
                with suppress(OSError):
                    path.rmdir()


def remove_leftovers(folder: Path) -> None:
    """Delete the temporary files of interrupted writes; nobody else may be writing to the folder."""
    for path in folder.iterdir():
        if any(is_unfinished(path.name, file) for file in FILES):
            path.unlink(missing_ok=True)
    for path in (folder / CHECKPOINTS).glob(".*.npz.*"):
        path.unlink(missing_ok=True)


def write_notes(path: Path, lines: Sequence[str]) -> None:
    """Write notes to a file; without any, only if the file exists."""
    if lines or path.exists():
        write_whole(path, (json.dumps(list(lines), indent=2, ensure_ascii=False) + "\n").encode())


def add_metrics(path: Path, lines: Sequence[Mapping[str, float | None]]) -> None:
    """Append measurements to a file."""
    if lines:
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def cut_metrics(path: Path, n_rounds: int) -> None:
    """Remove measurements of later rounds, which will be repeated."""
    if path.exists():
        lines = [(line, _figures(line)) for line in path.read_bytes().splitlines()]
        kept = [line for line, figures in lines if figures is not None and figures["n_rounds"] <= n_rounds]
        write_whole(path, b"".join(line + b"\n" for line in kept))


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return all measurements, NaN for missing figures; lines that cannot be read are skipped."""
    lines = path.read_bytes().splitlines() if path.exists() else []
    return [figures for line in lines if (figures := _figures(line)) is not None]


def _figures(line: bytes) -> dict[str, float] | None:
    """Return the numbers in a line of metrics; None if the line is truncated or not a measurement."""
    try:
        content = read_json(line, "a line of metrics")
        names = [*_ALWAYS, *(name for name in _MEASURED if name in content and name not in _ALWAYS)]
        return {name: np.nan if content[name] is None else float(content[name]) for name in names}
    except (InputError, KeyError, TypeError, ValueError):
        return None


_ALWAYS = ("n_rounds", "train_loss", "test_loss")
_MEASURED = [f"{part}_{name}" for name in MEASURES for part in PARTS]


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn errors of the operating system into InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder} cannot be the output folder: {error.strerror}; choose another") from None
