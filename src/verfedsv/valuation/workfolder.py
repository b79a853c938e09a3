"""The folder of one valuation within a scratch folder: made, found again, removed. Nothing else there is touched."""

from __future__ import annotations

import os
import re
import shutil
import stat
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from verfedsv.errors import InputError

try:
    import fcntl
except ImportError:  # on Windows, where two valuations are not kept apart
    fcntl = None  # type: ignore[assignment]

_LOCK, _NAME, _REMOVED = ".verfedsv.lock", "valuation-{}", ".removed"
_ANY = re.compile(rf"valuation-[0-9a-f]{{32}}({re.escape(_REMOVED)})?")
_MADE = b"This folder was made by verfedsv, which removes it.\n"


@contextmanager
def locked(folder: Path) -> Iterator[Path]:
    """Yield a scratch folder in which no other valuation works; a new one is for this user alone.

    At the end, it is removed if it was made for a valuation and nothing is left in it.
    """
    try:
        is_new = not folder.exists()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = folder.resolve()
        lock = _lock(folder)
        if is_new:
            lock.write(_MADE)
            lock.flush()
    except OSError as error:
        raise InputError(
            f"cannot write to {folder}: {error.strerror}; choose a scratch folder that the driver and all workers "
            "can write to"
        ) from None
    with lock:
        try:
            yield folder
        finally:
            lock.seek(0)
            is_ours = lock.read() == _MADE
            with suppress(OSError):
                if not find(folder):
                    (folder / _LOCK).unlink()
                    if is_ours:
                        folder.rmdir()


def find(folder: Path) -> list[Path]:
    """Return the folders of valuations in a scratch folder; of this user in one that is open to all, such as /tmp."""
    is_open = folder.stat().st_mode & stat.S_ISVTX
    with os.scandir(folder) as entries:
        return sorted(
            Path(entry.path)
            for entry in entries
            if _ANY.fullmatch(entry.name)
            and entry.is_dir(follow_symlinks=False)
            and not (is_open and entry.stat().st_uid != os.geteuid())
        )


def make(folder: Path) -> Path:
    """Return a new folder of a valuation. Those who share a scratch folder as a group also share this one."""
    path, outer = _new_name(folder), folder.stat()
    path.mkdir(mode=0o700)
    own = path.stat()
    if outer.st_mode & stat.S_IWGRP and not outer.st_mode & stat.S_IWOTH and own.st_gid == outer.st_gid:
        path.chmod(stat.S_IMODE(own.st_mode) | stat.S_IRWXG)
    return path


def is_being_removed(path: Path) -> bool:
    """Return whether the removal of the folder of a valuation began, and was interrupted."""
    return path.name.endswith(_REMOVED)


def take_over(path: Path) -> Path:
    """Return the folder of an interrupted valuation under a new name, so that what still runs of it cannot write there.

    Raises InputError if it has links, which somebody else made.
    """
    with os.scandir(path) as entries:
        odd = next((entry.path for entry in entries if not entry.is_file(follow_symlinks=False)), None)
    if odd is not None:
        raise InputError(f"{odd} is not a plain file, so somebody else made it; begin anew without resume")
    return path.rename(_new_name(path.parent))


def remove(path: Path) -> None:
    """Remove the folder of a valuation, as far as possible.

    It first gets another name: tasks that still run, on a cluster whose driver was killed, cannot write to it.
    """
    if not is_being_removed(path):
        with suppress(OSError):
            path = path.rename(path.with_name(path.name + _REMOVED))
    shutil.rmtree(path, ignore_errors=True)


def _new_name(folder: Path) -> Path:
    return folder / _NAME.format(uuid.uuid4().hex)


def _lock(folder: Path) -> IO[bytes]:
    """Return the open lock of a folder; raise InputError if another valuation has it."""
    path = folder / _LOCK
    while True:
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        file = os.fdopen(os.open(path, flags, 0o600), "r+b")
        if not _take(file):
            file.close()
            raise InputError(f"another valuation is working in {folder}; wait for it, or choose another folder")
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), path.stat()):
                return file
        file.close()  # the lock of a valuation that has just ended


def _take(lock: IO[bytes]) -> bool:
    """Lock a file until it is closed; return whether that was possible."""
    if fcntl is None:
        return True
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True
