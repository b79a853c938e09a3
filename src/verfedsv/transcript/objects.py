"""`ObjectStorage`: the files of a transcript as objects of a store, such as Amazon S3, through `pyarrow.fs`.

Objects are written whole and cannot be appended to. So the files of the open segment are temporary files without a
name; they become objects when the segment is full, and in `sync` and `close`. A stream is written before its chain, so
that one without a chain is what a killed process left behind, and counts for nothing. If both have been written before,
the chain goes first: entries of messages that are not there are what a power failure leaves in a folder.
"""

from __future__ import annotations

import mmap
import os
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pyarrow as pa
from pyarrow import fs

from verfedsv.errors import InputError, TranscriptError, TranscriptWarning, warn
from verfedsv.files import naming
from verfedsv.transcript import format as fmt
from verfedsv.transcript.locations import explaining
from verfedsv.transcript.storage import NOTHING, FileStream, Stream

_FIRST_BLOCK, _LARGEST_BLOCK = 2**16, 2**23
"""Bytes that a stream reads at once: twice as many each time, as long as it is read in order."""


class ObjectStream:
    """An object that is read in blocks: large ones if it is read in order, else no more than is asked for."""

    def __init__(self, file: pa.NativeFile, shown: str) -> None:
        self._file, self._shown = file, shown
        self._start, self._block, self._ahead = 0, pa.py_buffer(b""), _FIRST_BLOCK
        with explaining(f"read {shown}"):
            self.size: int = file.size()

    def slice(self, offset: int, length: int) -> pa.Buffer:
        end, block_end = min(offset + length, self.size), self._start + self._block.size
        if not self._start <= offset <= end <= block_end:
            is_next = self._start <= offset <= block_end
            self._ahead = min(2 * self._ahead, _LARGEST_BLOCK) if is_next else 0
            n_bytes = max(end - offset, min(self._ahead, self.size - offset), 0)
            with explaining(f"read {self._shown}"):
                self._file.seek(offset)
                self._start, self._block = offset, self._file.read_buffer(n_bytes)
            self._ahead = max(self._ahead, _FIRST_BLOCK)
        start = offset - self._start
        return self._block.slice(start, max(min(end - offset, self._block.size - start), 0))


class ObjectStorage:
    """The objects below a URI, which are listed once, when it is opened.

    There are no locks that would keep two recorders apart; one that finds a chain that it did not write stops.
    """

    def __init__(self, location: str) -> None:
        address, _, query = location.partition("?")
        self.location, self._shown = location, address.rstrip("/")
        with explaining(f"open {self._shown}"):
            self._store, self._folder = fs.FileSystem.from_uri(f"{self._shown}?{query}" if query else self._shown)
        self._sizes = self._list()
        self._open: dict[str, IO[bytes]] = {}
        self._unwritten, self._ended = set[str](), set[str]()
        weakref.finalize(self, _close, self._open)

    def __reduce__(self) -> tuple[Any, ...]:
        return ObjectStorage, (self.location,)

    def __str__(self) -> str:
        return self._shown

    def inside(self, name: str) -> ObjectStorage:
        """Return the storage in a subfolder."""
        _, mark, query = self.location.partition("?")
        return ObjectStorage(f"{self._at(name)}{mark}{query}")

    def _list(self) -> dict[str, int]:
        """Return the sizes of objects; without a stream at the end that has no chain yet."""
        with explaining(f"list {self._shown}"):
            found = self._store.get_file_info(fs.FileSelector(self._folder, allow_not_found=True))
        if not found:
            with suppress(OSError):  # who may list objects may not be allowed to ask for the bucket
                if self._store.get_file_info(self._folder.partition("/")[0]).type == fs.FileType.NotFound:
                    raise TranscriptError(f"cannot list {self._shown}: there is no such bucket")
        sizes = {each.base_name: each.size for each in found if each.type == fs.FileType.File}
        last = max(map(fmt.segment_of, sizes), key=lambda number: number or 0, default=None)
        if last and not sizes.get(fmt.chain_file(last)):
            sizes.pop(fmt.uploads_file(last), None)
        return sizes

    def find_names(self) -> list[str]:
        """Return the names of all objects, with those in subfolders, sorted."""
        with explaining(f"list {self._shown}"):
            found = self._store.get_file_info(fs.FileSelector(self._folder, recursive=True, allow_not_found=True))
        return sorted(each.path[len(self._folder) + 1 :] for each in found if each.type == fs.FileType.File)

    @contextmanager
    def filling(self) -> Iterator[Callable[[str], Any]]:
        """Yield a function that opens objects for writing, all of which are deleted after an error.

        Raises InputError if there are objects already.
        """
        if self._sizes or self.find_names():
            raise InputError(f"cannot write {self._shown}: it is not empty; name a new folder")
        opened = list[str]()

        def open_object(name: str) -> Any:
            opened.append(name)
            return self._store.open_output_stream(self._key(name))

        with explaining(f"write {self._shown}"):
            try:
                yield open_object
            except BaseException:
                for name in opened:
                    with suppress(OSError):
                        self._store.delete_file(self._key(name))
                raise

    def exists(self, name: str) -> bool:
        return name in self._open or name in self._sizes or self._find_size(name) is not None

    def names(self) -> list[str]:
        return [*{**self._sizes, **self._open}]

    def size(self, name: str) -> int:
        file = self._open.get(name)
        return self._sizes.get(name, 0) if file is None else os.fstat(file.fileno()).st_size

    def read(self, name: str, most: int = sys.maxsize) -> bytes:
        stream = self.stream(name)
        if stream.size > most:
            raise TranscriptError(f"cannot read {self._at(name)}: it is larger than {most:,} bytes")
        content: bytes = stream.slice(0, stream.size).to_pybytes()
        return content

    def stream(self, name: str) -> Stream:
        file = self._open.get(name)
        if file is not None:
            return FileStream(os.fdopen(os.dup(file.fileno()), "rb", buffering=0))
        if not (self._sizes.get(name) or (name not in self._sizes and self._find_size(name))):
            return NOTHING
        with explaining(f"read {self._at(name)}"):
            return ObjectStream(self._store.open_input_file(self._key(name)), self._at(name))

    def write(self, name: str, content: bytes) -> None:
        self._put(name, content)

    def append(self, name: str, content: bytes | memoryview) -> None:
        file = self._opened(name)
        with naming(Path(tempfile.gettempdir())):
            file.seek(0, os.SEEK_END)
            view = memoryview(content)
            while len(view):
                view = view[file.write(view) :]

    def truncate(self, name: str, size: int) -> None:
        self._opened(name).truncate(size)

    def remove(self, name: str) -> None:
        if name in self._open:
            self._open.pop(name).close()
        self._unwritten.discard(name)
        if self._sizes.pop(name, None) is not None:
            with explaining(f"delete {self._at(name)}"), suppress(FileNotFoundError):
                self._store.delete_file(self._key(name))

    def sync(self) -> None:
        """Write what was appended to the store. A segment that is not full is written whole, as often as it grows."""
        for segment in sorted({fmt.segment_of(name) or 0 for name in self._unwritten}):
            chain, uploads = fmt.chain_file(segment), fmt.uploads_file(segment)
            if self._find_size(chain) not in (None, self._sizes.get(chain)):
                raise TranscriptError(
                    f"{self._at(chain)} was written by another recorder: use one at a time, or another folder"
                )
            for name in (chain, uploads) if self._sizes.get(chain) else (uploads, chain):
                if name in self._unwritten:
                    self._put(name, _mapped(self._open[name]))
                    self._unwritten.discard(name)
        for name in self._ended:
            self._open.pop(name).close()
        self._ended.clear()

    def end(self, *names: str) -> None:
        self._ended.update(names)
        try:
            self.sync()
        except TranscriptError as error:
            kept = "what was recorded is kept on this machine, until the next segment is full or close() writes it"
            warn(f"{error}; {kept}", TranscriptWarning)

    def close(self) -> None:
        self.sync()
        _close(self._open)

    def _at(self, name: str) -> str:
        return f"{self._shown}/{name}"

    def _key(self, name: str) -> str:
        return f"{self._folder}/{name}"

    def _find_size(self, name: str) -> int | None:
        """Return the size of an object as it is now, None if there is none."""
        with explaining(f"read {self._at(name)}"):
            found = self._store.get_file_info(self._key(name))
        return None if found.type == fs.FileType.NotFound else found.size

    def _opened(self, name: str) -> IO[bytes]:
        """Return the temporary file of an object that is to change."""
        file = self._open.get(name)
        if file is None:
            file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115  # closed when it is written to the store
            before = self.stream(name) if name in self._sizes else NOTHING
            for start in range(0, before.size, _LARGEST_BLOCK):
                file.write(before.slice(start, _LARGEST_BLOCK))
            self._open[name] = file
        self._unwritten.add(name)
        return file

    def _put(self, name: str, content: bytes | mmap.mmap) -> None:
        # In a thread, which Ctrl-C does not stop: that would end the stream, and make an object of half the content.
        with explaining(f"write {self._at(name)}"), ThreadPoolExecutor(1) as thread:
            thread.submit(self._put_blocks, name, content).result()
        self._sizes[name] = len(content)

    def _put_blocks(self, name: str, content: bytes | mmap.mmap) -> None:
        view = memoryview(content)
        with self._store.open_output_stream(self._key(name)) as stream:
            for start in range(0, len(view), _LARGEST_BLOCK):
                stream.write(view[start : start + _LARGEST_BLOCK])
                stream.flush()  # waits until it is sent: otherwise copies of all blocks would be in memory


def _mapped(file: IO[bytes]) -> bytes | mmap.mmap:
    """Return the content of a file, which is not read into memory."""
    is_empty = os.fstat(file.fileno()).st_size == 0  # cannot be mapped
    return b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)


def _close(files: dict[str, IO[bytes]]) -> None:
    while files:
        files.popitem()[1].close()


def find_in_store(location: str) -> ObjectStorage:
    """Return the storage of the transcript at a URI, or in its subfolder `transcript`, as in runs."""
    outer = ObjectStorage(location)
    inner = outer.inside(fmt.FOLDER)
    found = [storage for storage in (outer, inner) if fmt.DESCRIPTION in storage.names()]
    if len(found) == 2:
        raise TranscriptError(f"there are two transcripts, in {outer} and in {inner}: move one of them away")
    if not found:
        raise TranscriptError(f"there is no transcript in {outer}: it has no {fmt.DESCRIPTION}")
    return found[0]
