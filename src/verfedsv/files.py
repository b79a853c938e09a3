"""Read files of limited size, and write files atomically."""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from verfedsv.errors import InputError

MOST_BYTES = 1 << 30
"""Default size limit of a file. A valuation of 100,000 rounds and 100 clients has 400 MB."""


def read_whole(path: Path, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file that others may have made.

    Raises OSError if it has more than `most` bytes, or as `opening` does.
    """
    with opening(path) as (file, size):
        if size > most:
            raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
        return file.read(size)  # read(most) would allocate as much first


@contextmanager
def opening(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """Yield an open file that others may have made, and its size in bytes.

    Raises OSError if it is not a regular file: a pipe may block, and a device never end.
    """
    # O_NONBLOCK, as opening a pipe without a writer would block; it has no effect on files.
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file", str(path))
        yield file, status.st_size


def find_links(folder: Path) -> list[Path]:
    """Return the links in a folder, without those in subfolders; if the folder itself is a link, only that."""
    if folder.is_symlink():
        return [folder]
    if not folder.is_dir():
        return []
    with os.scandir(folder) as entries:
        return sorted(Path(entry.path) for entry in entries if entry.is_symlink())


def write_whole(path: Path, content: bytes, *, overwrite: bool = True) -> None:
    """Write a file atomically; see `writing`."""
    with writing(path, overwrite=overwrite) as file:
        file.write(content)


def write_new(path: Path, content: bytes, mode: int = 0o644) -> None:
    """Write a new file with these permissions; raise InputError if it exists or cannot be written.

    After an error, nothing is left behind.
    """
    try:
        # The mode is set as the file is created: at no time can others read a private key.
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(descriptor)
        except BaseException:
            path.unlink()
            raise
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def refuse_readable(path: Path, what: str, misuse: str) -> None:
    """Raise InputError if others can read a secret file of the user, as ssh does; Windows has no such modes."""
    if os.name != "posix":
        return
    status = path.stat()
    if status.st_uid == os.getuid() and status.st_mode & 0o077:
        raise InputError(
            f"others on this machine can read {what} {path} (mode {status.st_mode & 0o777:o}), and could {misuse}; "
            f"if nobody has, make it yours alone: chmod 600 {path}"
        )


@contextmanager
def writing(path: Path, *, overwrite: bool = True) -> Iterator[IO[bytes]]:
    """Yield a temporary file that replaces `path` when it is complete; after an error, nothing is left behind.

    Without `overwrite`, raise FileExistsError if the path exists, even if it was created in the meantime. Raise
    InputError if it is a device, a pipe or a socket.
    """
    refuse_irregular(path)
    with naming(path):
        # Cut, as the name may already be as long as the operating system allows.
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
        part = Path(name)
        try:
            with os.fdopen(descriptor, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            # A temporary file is private; this one gets the usual permissions.
            mask = os.umask(0)
            os.umask(mask)
            part.chmod(0o666 & ~mask)
            if overwrite:
                part.replace(path)
            else:
                _give_name(part, path)
        finally:
            part.unlink(missing_ok=True)


def refuse_irregular(path: Path) -> None:
    """Raise InputError if the path is a device, a pipe or a socket."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise InputError(f"cannot write {path}: it is a device, a pipe or a socket, not a regular file; name another")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Set the file name of an OSError: that of a full disk has none."""
    try:
        yield
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise


def is_unfinished(name: str, target: str) -> bool:
    """Return whether a name is that of the temporary file of an interrupted write of `target`."""
    return re.fullmatch(rf"\.{re.escape(target)}\.[a-z0-9_]{{8}}", name) is not None


def stored_members(archive: zipfile.ZipFile, size: int) -> list[zipfile.ZipInfo]:
    """Return the members of a zip archive of `size` bytes, which together have no more bytes.

    Raises ValueError if some are compressed, overlap or have the same name.
    """
    members = archive.infolist()
    if any(member.compress_type != zipfile.ZIP_STORED for member in members):
        raise ValueError("an archive of arrays must not be compressed")
    if sum(member.file_size for member in members) > size or len(set(archive.namelist())) < len(members):
        raise ValueError("members of an archive overlap")
    return members


def _give_name(part: Path, path: Path) -> None:
    """Give a file another name, or raise FileExistsError if that is taken."""
    try:
        path.hardlink_to(part)
    except FileExistsError:
        raise
    except OSError:  # a file system without links, such as FAT
        with path.open("xb") as copy, part.open("rb") as file:
            shutil.copyfileobj(file, copy)
