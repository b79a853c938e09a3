"""`Storage`: where the files of a transcript are. In a folder or in memory; objects.py has object stores."""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, Any, Protocol

import pyarrow as pa

from verfedsv.errors import TranscriptError
from verfedsv.files import find_links, naming, read_whole, write_whole
from verfedsv.transcript import format as fmt

try:
    import fcntl
except ImportError:  # on Windows, where two recorders are not kept apart
    fcntl = None  # type: ignore[assignment]


LOCK = ".lock"
"""An empty file that a recorder locks while it is open, and does not remove."""

_TRIES, _BETWEEN_TRIES = 5, 0.02


def is_being_written(folder: Path) -> bool:
    """Return whether a recorder is open on a folder, in any process; False if that cannot be determined."""
    path = folder / LOCK
    if fcntl is None or path.is_symlink() or not path.is_file():  # a pipe would block
        return False
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def refuse_links(folder: Path, *, with_itself: bool = False) -> None:
    """Raise TranscriptError if a file or a folder of the transcript in a folder is a link.

    With `with_itself`, also if the folder is one: not for a folder that the user named.
    """
    links = [path for path in (*fmt.files_of(folder), folder / LOCK) if path.is_symlink()]
    links += find_links(folder / fmt.TENSORS)
    if with_itself and folder.is_symlink():
        links = [folder]
    if links:
        raise TranscriptError(
            f"{links[0]} is a symbolic link, which could point outside its folder; replace it with a copy of its target"
        )


class Stream(Protocol):
    """A file for reading in parts, such as a `pa.Buffer`."""

    @property
    def size(self) -> int:
        """The size in bytes."""

    def slice(self, offset: int, length: int) -> pa.Buffer:
        """Return up to `length` bytes from `offset` on, fewer if the file was truncated."""


NOTHING: Stream = pa.py_buffer(b"")
"""What a file that does not exist is read as."""


class Storage(Protocol):
    """The files of a transcript, by name. It can be pickled: then it is opened again for reading, where it is."""

    @property
    def location(self) -> str | None:
        """The folder or URI for `Transcript.open`; None if files are in memory."""

    def exists(self, name: str) -> bool:
        """Return whether a file exists."""

    def names(self) -> list[str]:
        """Return the names of all files, without those in subfolders."""

    def size(self, name: str) -> int:
        """Return the size of a file in bytes, 0 if it does not exist."""

    def read(self, name: str, most: int = sys.maxsize) -> bytes:
        """Return the content of a file, empty if it does not exist; raise TranscriptError beyond `most` bytes."""

    def stream(self, name: str) -> Stream:
        """Return a file for reading in parts; an empty buffer if it does not exist."""

    def write(self, name: str, content: bytes) -> None:
        """Write a file atomically."""

    def append(self, name: str, content: bytes | memoryview) -> None:
        """Append to a file; in a folder, the content then survives the end of this process."""

    def truncate(self, name: str, size: int) -> None:
        """Cut a file down to `size` bytes."""

    def remove(self, name: str) -> None:
        """Remove a file, if it exists."""

    def sync(self) -> None:
        """Write what was appended to the disk or the store."""

    def end(self, *names: str) -> None:
        """Write files to the disk or the store and close them; they are not appended to again."""

    def close(self) -> None:
        """Write what was appended, and release files and lock; reading stays possible."""


class FileStream:
    """An open file that is read in parts."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        weakref.finalize(self, file.close)
        self.size = os.fstat(file.fileno()).st_size

    def slice(self, offset: int, length: int) -> pa.Buffer:
        self._file.seek(offset)
        return pa.py_buffer(self._file.read(length))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turn errors of reading into TranscriptError, and raise it if the path is not a regular file."""
    if path.exists() and not path.is_file():
        raise TranscriptError(f"{path} is not a file")
    try:
        yield
    except OSError as error:
        raise TranscriptError(f"cannot read {path}: {error.strerror or error}") from None  # pyarrow sets no strerror


class FolderStorage:
    """Files in a folder, in which one recorder at a time can write.

    Streams are memory-mapped if `mapped`, otherwise read in parts.
    """

    def __init__(self, folder: Path, *, writable: bool = False, mapped: bool = False) -> None:
        self.folder = folder
        self._mapped = mapped
        self._open: dict[str, IO[bytes]] = {}
        self._lock: IO[bytes] | None = None
        if writable:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                why = "it is a file" if folder.is_file() else error.strerror
                raise TranscriptError(f"cannot record into {folder}: {why}") from None
            refuse_links(folder)
            self._take_lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return partial(FolderStorage, self.folder.absolute(), mapped=self._mapped), ()

    @property
    def location(self) -> str:
        return str(self.folder.absolute())

    def _take_lock(self) -> None:
        # A lock of the operating system, which the end of the process releases.
        path = self.folder / LOCK
        if path.exists() and not path.is_file():
            raise TranscriptError(f"cannot record into {self.folder}: {path} is not a file; move it away")
        self._lock = path.open("ab")
        if fcntl is None:
            return
        for _ in range(_TRIES):
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                time.sleep(_BETWEEN_TRIES)  # `is_being_written` takes the lock briefly
            else:
                return
        self._lock.close()
        raise TranscriptError(
            f"another recorder is open on {self.folder}, here or in another process; close it, or choose another folder"
        )

    def exists(self, name: str) -> bool:
        return (self.folder / name).exists()

    def names(self) -> list[str]:
        return [path.name for path in self.folder.iterdir()]

    def size(self, name: str) -> int:
        path = self.folder / name
        with _readable(path):
            return path.stat().st_size if path.exists() else 0

    def read(self, name: str, most: int = sys.maxsize) -> bytes:
        path = self.folder / name
        with _readable(path):
            return read_whole(path, most) if path.exists() else b""

    def stream(self, name: str) -> Stream:
        path = self.folder / name
        with _readable(path):
            if not path.exists() or path.stat().st_size == 0:
                return NOTHING
            if not self._mapped:
                return FileStream(path.open("rb"))
            # Python's mmap keeps a file descriptor: arrays of 1,000 segments would use up those of a process. pyarrow's
            # does not, but takes only paths in valid UTF-8.
            with suppress(UnicodeEncodeError), pa.memory_map(str(path)) as mapped:
                buffer: Stream = mapped.read_buffer()
                return buffer
            return FileStream(path.open("rb"))

    def write(self, name: str, content: bytes) -> None:
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        write_whole(path, content)

    def append(self, name: str, content: bytes | memoryview) -> None:
        file = self._open.get(name)
        if file is None:
            file = self._open[name] = (self.folder / name).open("ab", buffering=0)
        view = memoryview(content)
        with naming(self.folder / name):
            while len(view):
                view = view[file.write(view) :]

    def truncate(self, name: str, size: int) -> None:
        os.truncate(self.folder / name, size)

    def remove(self, name: str) -> None:
        self.end(name)
        (self.folder / name).unlink(missing_ok=True)

    def sync(self) -> None:
        for file in self._open.values():
            os.fsync(file.fileno())

    def end(self, *names: str) -> None:
        for name in names:
            file = self._open.pop(name, None)
            if file is not None:
                os.fsync(file.fileno())
                file.close()

    def close(self) -> None:
        self.end(*self._open)
        if self._lock is not None:
            self._lock.close()
            self._lock = None


class MemoryStorage:
    """Files in memory."""

    location = None

    def __init__(self) -> None:
        self._files: dict[str, bytearray] = {}

    def exists(self, name: str) -> bool:
        return name in self._files

    def names(self) -> list[str]:
        return [name for name in self._files if "/" not in name]

    def size(self, name: str) -> int:
        return len(self._files.get(name, b""))

    def read(self, name: str, most: int = sys.maxsize) -> bytes:  # noqa: ARG002  # it is in memory already
        return bytes(self._files.get(name, b""))

    def stream(self, name: str) -> pa.Buffer:
        return pa.py_buffer(self.read(name))

    def write(self, name: str, content: bytes) -> None:
        self._files[name] = bytearray(content)

    def append(self, name: str, content: bytes | memoryview) -> None:
        self._files.setdefault(name, bytearray()).extend(memoryview(content))

    def truncate(self, name: str, size: int) -> None:
        del self._files[name][size:]

    def remove(self, name: str) -> None:
        self._files.pop(name, None)

    def sync(self) -> None:
        return

    def end(self, *names: str) -> None:  # noqa: ARG002  # nothing is held
        return

    def close(self) -> None:
        return
