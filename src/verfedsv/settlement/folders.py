"""What lies in the folder of a run: its files, their hashes, and which of them are evidence."""

from __future__ import annotations

import hashlib
from pathlib import Path, PurePosixPath

from verfedsv.errors import InputError
from verfedsv.runs.folders import CHECKPOINTS, FILES
from verfedsv.transcript import format as fmt
from verfedsv.transcript.reader import FOLDER
from verfedsv.transcript.storage import LOCK


def hash_files(folder: Path, *, leave_out: Path | None = None) -> dict[str, str]:
    """Return the SHA-256 of every file below a folder, by its path from there, but of one and of empty locks."""
    skipped = None if leave_out is None else leave_out.resolve()
    result = {}
    for name, path in find_files(folder).items():
        if path.resolve() == skipped or (path.name == LOCK and path.stat().st_size == 0):
            continue
        with path.open("rb") as file:
            result[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return result


def find_files(folder: Path) -> dict[str, Path]:
    """Return every file below a folder, by its path from there.

    Raises InputError if there is anything but files and folders: what a link leads to may change unseen. So does a name
    that is not UTF-8, as no JSON can have it.
    """
    result = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise InputError(f"{name!r} is a link, or no file at all; a run is files and folders: put a copy there")
        if not _is_text(name):
            raise InputError(f"{name!a} has a name that is not UTF-8, which no statement can list: rename it")
        if path.is_file():
            result[name] = path
    return result


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def is_evidence(name: str) -> bool:
    """Return whether a file, by its path from the folder of a run, is what a run or a recorder writes itself.

    So is all that lies in the folder of a transcript.

    >>> is_evidence("transcript/notes.txt"), is_evidence("valuation.json"), is_evidence("report.html")
    (True, True, False)
    """
    first, *more = PurePosixPath(name).parts
    return first in (FOLDER, CHECKPOINTS) if more else first in (*FILES, LOCK) or fmt.is_file_of_transcript(first)
