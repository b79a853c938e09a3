"""`SegmentReader`: the messages of a transcript, by their index in the chain."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass
from typing import Self

import numpy as np
import pyarrow as pa

from verfedsv.errors import TranscriptError
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import Chain, Segment
from verfedsv.transcript.description import Precision
from verfedsv.transcript.format import Kind
from verfedsv.transcript.framing import LONGEST_HEAD, UNREADABLE, metadata_of
from verfedsv.transcript.rows import Rows, read_rows
from verfedsv.transcript.storage import Storage, Stream

_LARGE = 2**20
"""Bytes of a message from which on its layout is compared with its entry first: a sparse file takes little disk."""


@dataclass(frozen=True, eq=False)
class Entry:
    """A message with its link, which hashes these `ranges` of its bytes; `rows` is None if it is not a record."""

    kind: Kind
    message: pa.Buffer
    link: bytes
    rows: Rows | None
    ranges: Sequence[tuple[int, int]]


class SegmentReader:
    """Reads messages from segments, which are opened on demand, at most two at a time.

    The last segment stays open: so its inode is not reused, by which a reader that follows a run recognises it.
    """

    def __init__(self, storage: Storage, segments: Sequence[Segment], precision: Precision) -> None:
        self._storage, self._segments, self._precision = storage, segments, precision
        self.chain = Chain.of(segments)
        self._last = self._open(len(segments)) if segments else None
        self._other: tuple[int, Stream] | None = None

    def first(self, n_entries: int) -> Self:
        """Return a reader of the first entries."""
        earlier = copy(self)
        earlier.chain = self.chain.first(n_entries)
        return earlier

    def round_of(self, index: int) -> int:
        """Return the number of the round that an entry is part of."""
        return 1 + int(np.searchsorted(self.chain.stamps, index))

    def entry(self, index: int, where: str) -> Entry:
        """Return a message with its link; raise TranscriptError, naming `where`, if it cannot be read."""
        kind, message, link = self.chain.kind(index), self.message(index), self.chain.link(index)
        if kind not in fmt.RECORDS:
            return Entry(kind, message, link, None, [(0, message.size)])
        rows = self._rows(message, where)
        return Entry(kind, message, link, rows, rows.frame)

    def rows(self, index: int, where: str) -> Rows:
        """Return the rows of a record; raise TranscriptError, naming `where`, if they cannot be read."""
        return self._rows(self.message(index), where)

    def _rows(self, message: pa.Buffer, where: str) -> Rows:
        try:
            return read_rows(message, self._precision)
        except UNREADABLE as error:
            raise TranscriptError(f"the transcript was changed: {where} cannot be read ({error})") from None

    def message(self, index: int) -> pa.Buffer:
        """Return the bytes of a message."""
        segment, start, end = self.chain.extent(index)
        stream = self._stream(segment)
        try:
            if end - start >= _LARGE and not self._is_credible(stream.slice(start, LONGEST_HEAD), end - start):
                raise TranscriptError(
                    f"the transcript was changed: {fmt.uploads_file(segment)} has a message at byte {start:,} that "
                    "does not fill its entry"
                )
            message = stream.slice(start, end - start)
        except (OSError, MemoryError) as error:
            why = "it does not fit into memory" if isinstance(error, MemoryError) else error.strerror
            raise TranscriptError(f"cannot read {fmt.uploads_file(segment)}: {why}") from None
        if message.size < end - start:
            raise TranscriptError(
                f"the transcript was changed: {fmt.uploads_file(segment)} was cut off while it was read"
            )
        return message

    def _is_credible(self, head: pa.Buffer, size: int) -> bool:
        """Return whether the columns of the record that begins like this fill that many bytes."""
        try:
            return fmt.read_form(metadata_of(head), self._precision).layout.size == size
        except UNREADABLE:
            return False

    def check_end(self, n_rounds: int) -> None:
        """Raise TranscriptError if bytes follow the last of those rounds that no link covers."""
        if not self._segments:
            return
        segment = self._segments[-1]
        uploads, chain = fmt.uploads_file(segment.number), fmt.chain_file(segment.number)
        if segment.number > 1 and not segment.has_records:
            why = f"{uploads} has no record: a recorder on the folder removes it, or delete it and {chain}"
        elif segment.n_after == segment.n_chain_after == 0:
            return
        else:
            sizes = f"{uploads} has {segment.n_after:,} and {chain} {segment.n_chain_after:,} bytes after it"
            why = f"{sizes}: one of them was cut off, the next record is unfinished, or something was added"
        raise TranscriptError(f"the transcript is complete up to round {n_rounds}, but {why}")

    def _stream(self, segment: int) -> Stream:
        if self._last is not None and segment == len(self._segments):
            return self._last
        if self._other is None or self._other[0] != segment:
            self._other = segment, self._open(segment)
        return self._other[1]

    def _open(self, segment: int) -> Stream:
        """Return the stream of a segment; check its columns and its end, on which readers without the chain rely."""
        name = fmt.uploads_file(segment)
        stream = self._storage.stream(name)
        entries = self._segments[segment - 1].entries
        try:
            if len(entries) > 1:
                fmt.check_schema(stream.slice(0, min(int(entries["end"][1]), 2**16)), self._precision)
            if len(entries) and entries["kind"][-1] == Kind.END:
                start, end = entries["end"][-2:].tolist()
                size = len(fmt.END_OF_STREAM)
                if end - start != size or stream.slice(start, size).to_pybytes() != fmt.END_OF_STREAM:
                    raise ValueError("it does not end with an end marker")
        except UNREADABLE as error:
            raise TranscriptError(f"the head or the end of {name} is damaged: {error}") from None
        return stream
