"""Check that a run can begin or be resumed in a folder, and write its notes there."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from verfedsv.errors import InputError
from verfedsv.files import is_unfinished, write_whole
from verfedsv.runs.config import Config, Section
from verfedsv.runs.folder import CHECKPOINTS, CONFIG, FILES, METRICS, NOTES, VALUATION, RunFolder
from verfedsv.runs.reading import read_text
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.format import FOLDER
from verfedsv.transcript.storage import FolderStorage


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


@contextmanager
def _explained(folder: Path) -> Iterator[None]:
    """Turn errors of the operating system into InputError."""
    try:
        yield
    except OSError as error:
        raise InputError(f"{folder} cannot be the output folder: {error.strerror}; choose another") from None
