"""`Scratch`: the folder in which a valuation larger than memory keeps what it has computed, shared with its workers."""

from __future__ import annotations

import errno
import json
import socket
import threading
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from verfedsv._version import __version__
from verfedsv.arrays import Array, Floats
from verfedsv.errors import InputError
from verfedsv.files import read_whole
from verfedsv.valuation import workfolder

FOLDER = ".valuing"
"""The folder within a run in which it is valued, by default."""

_READING = threading.Lock()
"""For one thread at a time: NumPy parses headers as Python, at which CPython 3.11 rarely fails in several."""

_IDENTITY, _MOST_IDENTITY = "identity.json", 1 << 20


@dataclass(frozen=True)
class Scratch:
    """A folder that the driver and all workers see; it can be sent to them.

    Files are written atomically, and always with the same content: a task that is run twice does no harm.
    """

    folder: str
    version: str = __version__

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Check on arrival that this worker can take part."""
        vars(self).update(state)
        if self.version != __version__:
            raise InputError(
                f"the worker on {socket.gethostname()} has verfedsv {__version__}, the driver {self.version}; install "
                "the same version on all workers"
            )
        if not self.has(_IDENTITY):
            raise InputError(
                f"the worker on {socket.gethostname()} cannot see {self.folder}; run and scratch folder must be on "
                "a file system that all workers share, under the same path"
            )

    @property
    def path(self) -> Path:
        return Path(self.folder)

    @classmethod
    @contextmanager
    def begin(cls, folder: Path, identity: Mapping[str, Any], *, resume: bool) -> Iterator[Scratch]:
        """Yield a new folder within `folder`, or with `resume` that of an interrupted valuation with this identity.

        Without an error, it is removed at the end. No other valuation can work in `folder` at the same time.
        """
        wanted = json.loads(json.dumps(identity))
        with workfolder.locked(folder) as outer:
            earlier = _find(outer, wanted) if resume else None
            for path in workfolder.find(outer):
                if path != earlier:
                    workfolder.remove(path)
            scratch = cls(str(workfolder.make(outer) if earlier is None else workfolder.take_over(earlier)))
            if earlier is None:
                with scratch.writing(_IDENTITY) as file:
                    file.write(json.dumps(wanted).encode())
            yield scratch
            scratch.remove()

    def remove(self) -> None:
        """Remove the folder with all files: the valuation has ended, or no other could continue it."""
        workfolder.remove(self.path)

    def remove_file(self, name: str) -> None:
        """Remove a file that is no longer needed, if it is there."""
        (self.path / name).unlink(missing_ok=True)

    def has(self, name: str) -> bool:
        """Return whether a file was written."""
        return (self.path / name).exists()

    def save(self, name: str, arrays: Mapping[str, Any]) -> None:
        """Write arrays by name to NAME.npz."""
        with self.writing(f"{name}.npz") as file:
            np.savez(file, **arrays)

    def load(self, name: str, only: Sequence[str] | None = None) -> dict[str, Array]:
        """Return the arrays of a file, or some of them: the others are not read."""
        path = self.path / f"{name}.npz"
        with _READING, _explaining(path), path.open("rb") as content, np.load(content, allow_pickle=False) as file:
            return {key: file[key] for key in (file.files if only is None else only)}

    def save_rows(self, name: str, shape: tuple[int, int], parts: Iterable[Floats]) -> None:
        """Write a matrix, given in parts of its rows that need not fit in memory together, to NAME.npy."""
        with self.writing(f"{name}.npy") as file:
            header = {"descr": "<f8", "fortran_order": False, "shape": shape}
            np.lib.format.write_array_header_1_0(file, header)
            for part in parts:
                file.write(np.ascontiguousarray(part, "<f8").data)

    def save_array(self, name: str, array: Array) -> None:
        """Write an array to NAME.npy."""
        whole = np.ascontiguousarray(array)
        with self.writing(f"{name}.npy") as file:
            np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(whole))
            file.write(whole.data)  # on a full disk, np.save raises an error that does not say so

    def mapped(self, name: str) -> Array:
        """Return the array of NAME.npy, of which only what is used is read."""
        path = self.path / f"{name}.npy"
        with _READING, _explaining(path):
            array: Array = np.load(path, mmap_mode="r", allow_pickle=False)
        return array

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a file that gets its name when it is complete. It need not survive a power failure."""
        part = self.path / f".{uuid.uuid4().hex}"
        try:
            with part.open("wb") as file:
                yield file
            part.replace(self.path / name)
        except BaseException as error:
            part.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                error.filename, error.filename2 = str(self.path), None
            raise

    def stack(self, name: str, arrays: Mapping[str, Array]) -> dict[str, int]:
        """Write arrays one after the other to a file; return where each begins."""
        starts, at = dict[str, int](), 0
        with self.writing(name) as file:
            for key, array in arrays.items():
                starts[key] = at
                at += file.write(np.ascontiguousarray(array).data) + file.write(bytes(-array.nbytes % 8))
        return starts

    def read(self, name: str, start: int, size: int) -> bytes:
        """Return bytes of a file."""
        with (self.path / name).open("rb") as file:
            file.seek(start)
            content = file.read(size)
        if len(content) != size:
            raise InputError(f"{self.path / name} was cut off; begin anew without resume")
        return content


def holds_work(folder: Path) -> bool:
    """Return whether an interrupted valuation left something in a scratch folder that can be continued."""
    try:
        found = workfolder.find(folder)
    except OSError:
        return False
    return any(not workfolder.is_being_removed(path) and (path / _IDENTITY).exists() for path in found)


@contextmanager
def _explaining(path: Path) -> Iterator[None]:
    """Turn errors of a damaged file into an InputError that says what to do."""
    try:
        yield
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile):  # what NumPy raises
        raise InputError(f"{path} is damaged; begin anew without resume") from None


def _find(outer: Path, wanted: dict[str, Any]) -> Path | None:
    """Return the folder of an interrupted valuation, None if there is none; raise InputError if it is of another."""
    whole = (path for path in workfolder.find(outer) if not workfolder.is_being_removed(path))
    found = {path: identity for path in whole if (identity := _read_identity(path / _IDENTITY)) is not None}
    same = next((path for path, identity in found.items() if identity == wanted), None)
    if found and same is None:
        other = next(iter(found.values()))
        differing = [name for name in {**wanted, **other} if other.get(name) != wanted.get(name)]
        raise InputError(
            f"{outer} holds the work of another valuation, with another {' and '.join(differing)}; continue with the "
            "same arguments, or begin anew without resume"
        )
    return same


def _read_identity(path: Path) -> dict[str, Any] | None:
    """Return the identity in a file, None if a valuation was interrupted before it had one."""
    try:
        content = json.loads(read_whole(path, _MOST_IDENTITY))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError):
        content = None
    if not isinstance(content, dict):
        raise InputError(f"{path} is damaged; begin anew without resume")
    return content
