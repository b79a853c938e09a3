"""`StoredRun`: a run in an object store; `find_run`: a run wherever it is."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import weakref
from collections.abc import Container
from pathlib import Path

from verfedsv.files import MOST_BYTES
from verfedsv.runs.folder import CONFIG, METRICS, NOTES, STATEMENT, VALUATION, RunFolder
from verfedsv.transcript import Transcript
from verfedsv.transcript.locations import as_location
from verfedsv.transcript.objects import ObjectStorage, find_in_store
from verfedsv.transcript.storage import LOCK, Stream

_BLOCK = 2**22


def find_run(path: str | os.PathLike[str], *, trust_head: bool = False) -> RunFolder:
    """Return the run in a folder, or in an object store, for reading; `trust_head` is as in `RunFolder`."""
    place = as_location(path)
    if isinstance(place, str):
        return StoredRun(place, trust_head=trust_head)
    return RunFolder(place, trust_head=trust_head)


class StoredRun(RunFolder):
    """A run in an object store. Its transcript is read from there, its other files from a temporary copy.

    Whether a recorder is writing it is unknown.
    """

    holds_run, is_running = True, False

    def __init__(self, location: str, *, trust_head: bool = False) -> None:
        self._storage = ObjectStorage(location)
        find_in_store(location)  # raises if there is no transcript
        copied = tempfile.mkdtemp(prefix="verfedsv-")
        weakref.finalize(self, shutil.rmtree, copied, ignore_errors=True)
        path = Path(copied, str(self._storage).rpartition("/")[2])
        path.mkdir()
        for name in (CONFIG, METRICS, NOTES, VALUATION, STATEMENT):
            if self._storage.exists(name):
                (path / name).write_bytes(self._storage.read(name, MOST_BYTES))
        super().__init__(path, trust_head=trust_head)

    def __str__(self) -> str:
        return str(self._storage)

    def _open(self) -> Transcript:
        return Transcript.open(self._storage.location)

    def hash_files(self, names: Container[str] | None = None, *, leave_out: Path | None = None) -> dict[str, str]:
        result = {}
        for name in self._storage.find_names():
            if self.path / name == leave_out or Path(name).name == LOCK:
                continue
            is_compared = names is None or name in names or self.is_evidence(name)
            result[name] = _hash(self._storage.stream(name)) if is_compared else ""
        return result


def _hash(stream: Stream) -> str:
    digest = hashlib.sha256()
    for start in range(0, stream.size, _BLOCK):
        digest.update(stream.slice(start, _BLOCK))
    return digest.hexdigest()
