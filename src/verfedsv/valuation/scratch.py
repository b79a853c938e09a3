"""`Scratch`: the folder in which a valuation larger than memory keeps what it has computed, shared with its workers."""

from __future__ import annotations

import json
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from verfedsv._version import __version__
from verfedsv.arrays import Array, Floats
from verfedsv.errors import InputError

try:
    import fcntl
except ImportError:  # on Windows, where two valuations are not kept apart
    fcntl = None  # type: ignore[assignment]

FOLDER = ".valuing"
"""The folder within a run in which it is valued, by default."""

_IDENTITY, _LOCK = "identity.json", ".lock"


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
        """Yield an empty folder, or with `resume` what an interrupted valuation with this identity left there.

        Without an error, the folder is removed at the end. No other valuation can use it at the same time.
        """
        known, wanted = folder / _IDENTITY, json.loads(json.dumps(identity))
        try:
            folder.mkdir(parents=True, exist_ok=True)
            others = {path.name for path in folder.iterdir()} - {_LOCK}
            lock = (folder / _LOCK).open("ab")
        except OSError as error:
            raise InputError(
                f"cannot write to {folder}: {error.strerror}; choose a scratch folder that the driver and all workers "
                "can write to"
            ) from None
        with lock:
            if others and not known.exists():
                raise InputError(f"{folder} has files that are not of a valuation; choose another scratch folder")
            if not _take(lock):
                raise InputError(f"another valuation is working in {folder}; wait for it, or choose another folder")
            scratch = cls(str(folder.resolve()))
            if others and resume:
                _check_same(json.loads(known.read_text(encoding="utf-8")), wanted, folder)
            else:
                scratch.clear()
                with scratch.writing(_IDENTITY) as file:
                    file.write(json.dumps(wanted).encode())
            yield scratch
            shutil.rmtree(folder, ignore_errors=True)

    def clear(self) -> None:
        """Remove all files."""
        for path in self.path.iterdir():
            if path.name != _LOCK:
                path.unlink(missing_ok=True)

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
        with np.load(self.path / f"{name}.npz", allow_pickle=False) as file:
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
        with self.writing(f"{name}.npy") as file:
            np.save(file, array, allow_pickle=False)

    def mapped(self, name: str) -> Array:
        """Return the array of NAME.npy, of which only what is used is read."""
        array: Array = np.load(self.path / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        return array

    @contextmanager
    def writing(self, name: str) -> Iterator[IO[bytes]]:
        """Yield a file that gets its name when it is complete. It need not survive a power failure."""
        part = self.path / f".{uuid.uuid4().hex}"
        try:
            with part.open("wb") as file:
                yield file
            part.replace(self.path / name)
        except BaseException:
            part.unlink(missing_ok=True)
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


def _check_same(found: dict[str, Any], wanted: dict[str, Any], folder: Path) -> None:
    """Raise InputError if the work in a folder is of another valuation."""
    differing = [name for name in wanted if found.get(name) != wanted[name]]
    if differing:
        raise InputError(
            f"{folder} holds the work of another valuation, with another {' and '.join(differing)}; continue with the "
            "same arguments, or begin anew without resume"
        )
