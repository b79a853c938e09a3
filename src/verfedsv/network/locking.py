"""A folder that only one process at a time may work in."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from verfedsv.errors import InputError

try:
    import fcntl
except ImportError:  # on Windows, where two processes are not kept apart
    fcntl = None  # type: ignore[assignment]

LOCK = ".lock"


def lock_folder(folder: Path) -> IO[bytes]:
    """Create a private folder and lock it; return the open lock, whose end, as that of the process, releases it."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        file = (folder / LOCK).open("ab")
    except OSError as error:
        raise InputError(f"cannot write to the folder {folder}: {error.strerror}; name another") from None
    if fcntl is not None:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            file.close()
            raise InputError(f"another process works in {folder}; end it, or name another folder") from None
    return file
