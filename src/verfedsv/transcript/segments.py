"""`SegmentWriter`: append messages to the segments of a transcript, and continue after a crash."""

from __future__ import annotations

from contextlib import suppress

import pyarrow as pa

from verfedsv.errors import TranscriptError
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import ENTRY_SIZE, Segment, pack_entry, read_segments
from verfedsv.transcript.description import Description
from verfedsv.transcript.format import Kind
from verfedsv.transcript.framing import LONGEST_HEAD, find_extent
from verfedsv.transcript.messages import RecordMessage
from verfedsv.transcript.storage import Storage


class SegmentWriter:
    """Writes the last segment of a transcript, seals it after `segment_rounds` rounds, and begins the next.

    `number` is that of the segment, 0 before the first record; `link` is the last link of the chain.
    """

    def __init__(self, storage: Storage, segment_rounds: int) -> None:
        self._storage, self._segment_rounds = storage, segment_rounds
        self.number = 0
        self.link = b""
        self._end = self._n_entries = self._n_rounds = 0
        self._is_sealed = False

    def _create(self) -> None:
        """Create the empty files of the next segment, so that a deleted one is noticed."""
        for name in (fmt.chain_file(self.number + 1), fmt.uploads_file(self.number + 1)):
            self._storage.append(name, b"")
        self.number += 1
        self._end = self._n_entries = self._n_rounds = 0
        self._is_sealed = False

    def write(self, kind: Kind, message: RecordMessage, description: Description) -> None:
        """Append a record; when this returns, the record survives a killed process.

        The first record also writes the description. If this raises, nothing of the record is left.
        """
        self._seal()
        if self._is_sealed:
            self._create()
        before, precision = self.link, description.precision or "float64"
        try:
            if self.number == 0:
                self._begin(description.to_json())
            if self._n_entries == 0:
                self._append(Kind.START, b"", self.link)
                self._append_plain(Kind.SCHEMA, fmt.upload_schema(precision).serialize())
            self._append(kind, *message.build(precision, self.link))
        except BaseException:
            if self.number and self._n_entries <= 2:
                self._go_back(before)
            raise
        self._n_rounds += kind is Kind.ROUND

    def seal_if_full(self) -> None:
        """Seal the segment if it has all its rounds; on a full disk, the next `write` seals it."""
        with suppress(OSError):
            self._seal()

    def _begin(self, description: bytes) -> None:
        """Create the first segment, and begin the chain with the description and the labels."""
        self._create()
        self._storage.sync()  # the description says that there are uploads: from then on, readers miss absent files
        self._storage.write(fmt.DESCRIPTION, description)
        self.link = fmt.first_link(description, self._storage.read(fmt.LABELS))

    def _go_back(self, link: bytes) -> None:
        """Remove a segment without records, or empty it if it is the first; `link` is that of the segment before."""
        if self.number == 1:
            _cut_off(self._storage, 1, 0, 0)
        else:
            for name in (fmt.uploads_file(self.number), fmt.chain_file(self.number)):
                self._storage.remove(name)
        self.number, self.link, self._is_sealed = self.number - 1, link, self.number > 1
        self._end = self._n_entries = 0

    def resume(self, link: bytes) -> str:
        """Continue the segments in the storage, whose last link is `link`, and cut off what a crash left unfinished.

        Return a description of what was cut off, or "". If what follows the last record cannot be the result of a
        crash, raise TranscriptError and change nothing.
        """
        segments = read_segments(self._storage)
        last = segments[-1]
        _check_end(self._storage, last)
        self.link = link
        if last.has_records:
            self.number, self._end, self._n_entries = last.number, last.end, len(last.entries)
            self._is_sealed = last.is_sealed
            self._n_rounds = last.n_rounds
        lost = _cut_off(self._storage, last.number, self._end, self._n_entries * ENTRY_SIZE)
        if not last.has_records and len(segments) > 1:
            self.number = last.number
            self._go_back(link)
        return lost if last.n_after or last.n_chain_after else ""

    def _seal(self) -> None:
        if self._is_sealed or self._n_rounds < self._segment_rounds:
            return
        self._append_plain(Kind.END, fmt.END_OF_STREAM)
        self._is_sealed = True
        self._storage.end(fmt.uploads_file(self.number), fmt.chain_file(self.number))

    def _append_plain(self, kind: Kind, message: pa.Buffer | bytes) -> None:
        """Append a message without uploads, which is hashed completely."""
        self._append(kind, message, fmt.next_link(self.link, message, [(0, len(memoryview(message)))]))

    def _append(self, kind: Kind, message: pa.Buffer | bytes | bytearray, link: bytes) -> None:
        content = memoryview(message)
        end = self._end + len(content)
        try:
            self._storage.append(fmt.uploads_file(self.number), content)
            self._storage.append(fmt.chain_file(self.number), pack_entry(end, kind, link))
        except BaseException:
            # A full disk, or Ctrl-C between the two.
            _cut_off(self._storage, self.number, self._end, self._n_entries * ENTRY_SIZE)
            raise
        self._end, self.link, self._n_entries = end, link, self._n_entries + 1


def _check_end(storage: Storage, segment: Segment) -> None:
    """Raise TranscriptError unless what follows the last complete record can be the result of a crash.

    A message is written before its entry. So a crash can leave part of a message, or a complete message without a
    complete entry. A power failure can also leave entries whose messages never reached the disk. Neither can leave two
    complete messages, or a complete message with another's entry.
    """
    uploads, chain = fmt.uploads_file(segment.number), fmt.chain_file(segment.number)
    end = segment.end
    stream = storage.stream(uploads)
    n_rest = stream.size - end
    rest = memoryview(stream.slice(end, min(n_rest, LONGEST_HEAD)))  # a sparse file may be larger than memory
    size = len(fmt.END_OF_STREAM)
    if rest[:size] != fmt.END_OF_STREAM:
        extent = find_extent(rest)
        if extent is None or extent.size > n_rest:
            return
        size = extent.size
    if segment.n_chain_after >= ENTRY_SIZE or size < n_rest:
        raise TranscriptError(
            f"{chain} is damaged: it has no entry for the record at byte {end:,} of {uploads}. Nothing was changed. "
            "Restore both files from a copy; or, to continue without that record and all after it, truncate "
            f"{uploads} to {end} bytes and {chain} to {len(segment.entries) * ENTRY_SIZE}"
        )


def _cut_off(storage: Storage, number: int, n_bytes: int, n_chain_bytes: int) -> str:
    """Truncate the two files of a segment; return in words what was cut off."""
    lost = []
    for name, kept in ((fmt.uploads_file(number), n_bytes), (fmt.chain_file(number), n_chain_bytes)):
        size = storage.size(name)
        if size > kept:
            storage.truncate(name, kept)
            lost.append(f"{size - kept} bytes of {name}")
    return ", ".join(lost)
