"""`Chain`: the entries of all segments as arrays, 48 bytes each however many there are."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedsv.errors import TranscriptError
from verfedsv.transcript import format as fmt
from verfedsv.transcript.format import Kind
from verfedsv.transcript.storage import Storage

_ENTRY = np.dtype([("end", "<u8"), ("kind", "<u8"), ("link", "<u8", 4)])
_PACKED = struct.Struct("<QQ32s")
ENTRY_SIZE = _ENTRY.itemsize
_KINDS = tuple(Kind)


def pack_entry(end: int, kind: Kind, link: bytes) -> bytes:
    """Return an entry: where a message ends in its stream, its kind, and the hash of it and all before it."""
    return _PACKED.pack(end, kind, link)


@dataclass(frozen=True, eq=False)
class Segment:
    """A segment: the entries of its complete messages, and the sizes of its two files."""

    number: int
    entries: NDArray[Any]
    n_bytes: int
    n_chain_bytes: int

    @classmethod
    def of(cls, number: int, content: bytes, n_bytes: int) -> Segment:
        """Return a segment from the content of its chain and the size of its stream.

        Raises TranscriptError if no stream has such entries.
        """
        name = fmt.chain_file(number)
        entries = np.frombuffer(content[: len(content) // ENTRY_SIZE * ENTRY_SIZE], _ENTRY)
        ends, kinds = entries["end"], entries["kind"]
        falls = np.flatnonzero(ends[1:] <= ends[:-1])
        if len(falls):
            raise TranscriptError(f"{name} is damaged: entry {falls[0] + 1} does not end after the one before it")
        is_right = np.isin(kinds, fmt.RECORDS)
        is_right[:2] = kinds[:2] == [Kind.START, Kind.SCHEMA][: len(kinds)]
        if len(kinds) > 2 and kinds[-1] == Kind.END:
            is_right[-1] = True
        if not is_right.all() or (len(ends) and ends[0] != 0):
            raise TranscriptError(f"{name} is damaged: entry {int(is_right.argmin())} is of the wrong kind")
        complete = entries[: int(np.searchsorted(ends, np.uint64(n_bytes), "right"))]
        if len(complete) == 1 < len(entries):
            raise TranscriptError(f"{fmt.uploads_file(number)} was cut off or emptied: {name} has entries of messages")
        return cls(number, complete, n_bytes, len(content))

    @property
    def end(self) -> int:
        """Where the last complete message ends."""
        return int(self.entries["end"][-1]) if len(self.entries) else 0

    @property
    def n_after(self) -> int:
        """How many bytes of the stream follow the last complete message."""
        return self.n_bytes - self.end

    @property
    def n_chain_after(self) -> int:
        """How many bytes of the chain follow the entry of the last complete message."""
        return self.n_chain_bytes - len(self.entries) * ENTRY_SIZE

    @property
    def is_sealed(self) -> bool:
        """Whether the segment has an end marker, and nothing after it."""
        is_ended = len(self.entries) > 0 and self.entries["kind"][-1] == Kind.END
        return bool(is_ended) and self.n_after == self.n_chain_after == 0

    @property
    def n_rounds(self) -> int:
        return int((self.entries["kind"] == Kind.ROUND).sum())

    @property
    def has_records(self) -> bool:
        return len(self.entries) > 2


def read_segments(storage: Storage) -> list[Segment]:
    """Return the segments; raise TranscriptError if one is missing, or is not sealed although another follows.

    Each chain is read before the size of its stream: a recorder writes them in the other order.
    """
    names = {name: number for name in storage.names() if (number := fmt.segment_of(name)) is not None}
    numbers = sorted({*names.values()})
    if 0 in numbers:
        name = next(name for name, number in names.items() if number == 0)
        raise TranscriptError(f"{name!a} is named like a file of the transcript, but is not one: move it away")
    result: list[Segment] = []
    for position, number in enumerate(numbers, 1):
        uploads, chain = fmt.uploads_file(position), fmt.chain_file(position)
        if number != position:
            raise TranscriptError(f"{uploads} is missing, but there is {fmt.uploads_file(number)}")
        if not storage.exists(chain):
            raise TranscriptError(f"{chain} is missing, but there is {uploads}")
        # A message is many times as long as its entry.
        content = storage.read(chain, min(fmt.LARGEST_CHAIN, 2**20 + storage.size(uploads)))
        if content and not storage.exists(uploads):
            raise TranscriptError(f"{uploads} is missing, but there is {chain}")
        segment = Segment.of(number, content, storage.size(uploads))
        if result and not result[-1].is_sealed:
            raise TranscriptError(f"{fmt.uploads_file(number - 1)} or its chain was cut off, but there is {uploads}")
        if result and len(segment.entries) and (segment.entries["link"][0] != result[-1].entries["link"][-1]).any():
            raise TranscriptError(f"{chain} does not begin where {fmt.chain_file(number - 1)} ends")
        result.append(segment)
    return result


class Chain:
    """All entries of a transcript in order, with the number of the segment of each."""

    def __init__(self, entries: NDArray[Any], segments: NDArray[np.intp]) -> None:
        self._entries, self._segments = entries, segments
        self._ends, self._kinds = entries["end"], entries["kind"]

    @classmethod
    def of(cls, segments: Sequence[Segment]) -> Chain:
        """Return the entries of the segments that have records."""
        entries = [segment.entries for segment in segments if segment.has_records]
        numbers = np.repeat(np.arange(1, 1 + len(entries)), [len(part) for part in entries])
        return cls(np.concatenate(entries) if entries else np.empty(0, _ENTRY), numbers.astype(np.intp))

    def __len__(self) -> int:
        return len(self._entries)

    def first(self, n_entries: int) -> Chain:
        """Return the first entries."""
        return Chain(self._entries[:n_entries], self._segments[:n_entries])

    def extent(self, index: int) -> tuple[int, int, int]:
        """Return the segment of a message, and where it begins and ends in its stream."""
        end = int(self._ends[index])
        return int(self._segments[index]), min(int(self._ends[index - 1]), end), end  # a segment starts again at 0

    @property
    def sizes(self) -> NDArray[np.int64]:
        """How many bytes each message has."""
        ends = self._ends.astype(np.int64)
        return np.asarray(ends - np.minimum(np.concatenate([[0], ends[:-1]]), ends))

    def kind(self, index: int) -> Kind:
        """Return the kind of a message."""
        return _KINDS[int(self._kinds[index])]

    def link(self, index: int) -> bytes:
        """Return the link of an entry."""
        link: bytes = self._entries["link"][index].tobytes()
        return link

    @cached_property
    def records(self) -> NDArray[np.intp]:
        """The indices of records."""
        return np.flatnonzero(np.isin(self._kinds, fmt.RECORDS))

    @cached_property
    def stamps(self) -> NDArray[np.intp]:
        """The indices of records that end a round."""
        return np.flatnonzero(self._kinds == Kind.ROUND)

    @cached_property
    def changes(self) -> NDArray[np.intp]:
        """The indices of joins and leaves."""
        return np.flatnonzero(np.isin(self._kinds, (Kind.JOIN, Kind.LEAVE)))

    @cached_property
    def uploads(self) -> NDArray[np.intp]:
        """The indices of asynchronous uploads."""
        return np.flatnonzero(self._kinds == Kind.UPLOAD)

    def contains(self, head: str) -> bool:
        """Return whether a hash, in hexadecimal, is among the links."""
        try:
            wanted = np.frombuffer(bytes.fromhex(head), "<u8")
        except ValueError:
            return False
        return wanted.shape == (4,) and bool((self._entries["link"] == wanted).all(axis=1).any())
