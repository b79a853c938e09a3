"""`Transcript`: open a recorded training, iterate over its records, and verify it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.arrays import Array
from verfedsv.errors import TranscriptError
from verfedsv.texts import count
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import Chain, Segment, read_segments
from verfedsv.transcript.description import Description
from verfedsv.transcript.format import Kind
from verfedsv.transcript.framing import UNREADABLE, read_file_of_one_batch
from verfedsv.transcript.heads import StateReader, read_program, read_tensor
from verfedsv.transcript.locations import as_location
from verfedsv.transcript.meaning import Roster, Rules, check_labels, labels_of
from verfedsv.transcript.objects import find_in_store
from verfedsv.transcript.records import Join, Leave, Record, Stamp, Upload
from verfedsv.transcript.rows import Rows
from verfedsv.transcript.storage import FolderStorage, Storage, refuse_links
from verfedsv.transcript.streams import Entry, SegmentReader
from verfedsv.transcript.verification import Verified, verify
from verfedsv.untrusted import MOST_JSON_BYTES


def folder_of(run: Path) -> Path:
    """Return the folder of a run's transcript: the subfolder `transcript`, or the run's own folder."""
    return run / fmt.FOLDER if (run / fmt.FOLDER / fmt.DESCRIPTION).exists() else run


class Transcript:
    """A recorded training. Open a folder with `Transcript.open`; iterate over its records in order.

    A record that a crash left unfinished is not part of it. Opening a transcript or reading a record raises
    TranscriptError for anything that a `Recorder` could not have written. `verify` finds what was changed.
    """

    trusts_head = False
    """Whether whoever opened it trusts a program that it holds as its head, which may run any code."""

    def __init__(self, storage: Storage, *, reads_labels: bool = True) -> None:
        self._storage = storage
        # Read in the reverse of the writing order, so that everything referred to already exists.
        segments = read_segments(storage)
        content = storage.read(fmt.DESCRIPTION, MOST_JSON_BYTES)
        self.description = Description.from_json(content)
        _check_begun(self.description, segments, storage)
        self._reader = SegmentReader(storage, segments, self.description.precision or "float64")
        self._merged_from: int | None = None
        self._content = content
        if reads_labels:
            self._labels_file  # noqa: B018  # which checks them

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, mapped: bool = False) -> Transcript:
        """Return the transcript in a folder, or in its subfolder `transcript`, as in runs.

        The folder may be in an object store: "s3://bucket/run". Records are read into memory on demand. With `mapped`,
        arrays are views of the files of a local folder, for transcripts larger than memory: then truncating a file
        kills the process.
        """
        path = as_location(path)
        if isinstance(path, str):
            return cls(find_in_store(path))
        folder = folder_of(path)
        if not (folder / fmt.DESCRIPTION).exists():
            why = f"it has no {fmt.DESCRIPTION}" if folder.is_dir() else "that is a file; pass its folder"
            raise TranscriptError(
                f"there is no transcript in {folder}: {why if folder.exists() else 'there is no such folder'}"
            )
        for other in (path, path / fmt.FOLDER, path / fmt.FOLDER / fmt.FOLDER):
            if other != folder and fmt.files_of(other):
                raise TranscriptError(f"there are two transcripts, in {folder} and in {other}: move one of them away")
        refuse_links(folder, with_itself=folder != path)
        return cls(FolderStorage(folder, mapped=mapped))

    @property
    def _chain(self) -> Chain:
        return self._reader.chain

    def __reduce__(self) -> tuple[Any, ...]:
        n_entries = len(self._chain)
        return _open_again, (self._storage, n_entries, self.head, self._merged_from, self.n_rounds, self.trusts_head)

    @property
    def location(self) -> str | None:
        """The folder or URI that it is read from; None if it is in memory."""
        return self._storage.location

    def __repr__(self) -> str:
        return f"<Transcript: {describe(self.description, len(self.clients))}, {count(self.n_rounds, 'round')}>"

    @property
    def origin(self) -> tuple[bytes, bytes]:
        """The bytes of transcript.json and of labels.arrow, with which the hash chain begins."""
        return self._content, self._labels_file[0]

    @property
    def _labels(self) -> pa.RecordBatch:
        return self._labels_file[1]

    @cached_property
    def _labels_file(self) -> tuple[bytes, pa.RecordBatch]:
        """The content of labels.arrow, as bytes and as a valid batch."""
        if not self._storage.exists(fmt.LABELS):
            raise TranscriptError(f"{fmt.LABELS} is missing")
        about = self.description
        most = 2**20 + 16 * about.n_samples * (about.n_classes or 1)
        if about.is_own_loss:  # its labels may have any width
            most = max(most, fmt.LARGEST_LABELS)
        content = self._storage.read(fmt.LABELS, most)
        try:
            batch = read_file_of_one_batch(pa.py_buffer(content))
        except UNREADABLE as error:
            raise TranscriptError(f"{fmt.LABELS} is damaged: it cannot be read ({error})") from None
        check_labels(batch, about)
        return content, batch

    @property
    def labels(self) -> Array:
        """The labels, (samples,) or (samples, classes), as given, or as indices of `description.classes`."""
        return labels_of(self._labels)

    @property
    def receives_gradient(self) -> NDArray[np.bool_]:
        """Which samples receive gradients in training, (samples,)."""
        return np.asarray(self._labels.column("receives_gradient"))

    @cached_property
    def clients(self) -> tuple[str, ...]:
        """All clients that ever took part, in the order in which they joined."""
        return self._roster_before(self.n_records + 1).clients

    @property
    def head(self) -> str:
        """The last link of the hash chain, which identifies the transcript; empty if nothing was uploaded."""
        return self._chain.link(-1).hex() if len(self._chain) else ""

    @property
    def n_records(self) -> int:
        """The number of records: uploads, time stamps, synchronous rounds, and clients that joined or left."""
        return len(self._chain.records)

    @cached_property
    def n_rounds(self) -> int:
        """The number of time stamps."""
        return len(self._chain.stamps)

    @property
    def n_uploads_of_rounds(self) -> NDArray[np.intp]:
        """The number of uploads in each round of an asynchronous training, (rounds,). Nothing is read."""
        before = np.searchsorted(self._chain.uploads, self._chain.stamps)
        return np.diff(before, prepend=0)

    @property
    def n_bytes_of_rounds(self) -> NDArray[np.int64]:
        """How many bytes the records of each round have, (rounds,). Nothing is read."""
        return np.diff(np.cumsum(self._chain.sizes)[self._chain.stamps], prepend=0)

    def first_record_of(self, round_index: int) -> int:
        """Return the number of the first record of a round, which is counted from 0."""
        if round_index == 0:
            return 1
        return int(np.searchsorted(self._chain.records, self._chain.stamps[round_index - 1])) + 2

    def contains(self, head: str) -> bool:
        """Return whether this transcript has that `head`, or had it before it grew."""
        return self._chain.contains(head)

    def up_to(self, verified: Verified) -> Transcript:
        """Return the transcript with only what was verified."""
        return self._first_entries(verified.n_entries)

    def _first_entries(self, n_entries: int) -> Transcript:
        earlier = object.__new__(type(self))  # `copy` would read it again, as pickle does
        earlier.__dict__.update(self.__dict__)
        for name in ("clients", "n_rounds", "widths"):
            earlier.__dict__.pop(name, None)
        earlier._reader = self._reader.first(n_entries)
        return earlier

    def merged(self, first: int, n_before: int, most: int) -> Transcript | None:
        """Return the transcript up to its last time stamp, with all rounds from record `first` on merged into one.

        The merged round has the uploads of at most the last `most` records. Earlier rounds count as `n_before`, fewer
        than were recorded if some were merged already. Returns None if no round ends after `first`. Nothing is read.
        """
        stamps = self._chain.stamps
        if not len(stamps) or first > self.n_records or stamps[-1] < self._chain.records[first - 1]:
            return None
        result = self._first_entries(int(stamps[-1]) + 1)
        result._merged_from = max(first, result.n_records + 1 - most)
        result.__dict__["n_rounds"] = n_before + 1
        return result

    @property
    def is_merged(self) -> bool:
        """Whether some of its rounds were merged into one."""
        return self._merged_from is not None

    def __iter__(self) -> Iterator[Record]:
        return self.records()

    def records(self, first: int = 1) -> Iterator[Record]:
        """Yield the records in order, beginning with record `first`, counted from 1.

        Raises TranscriptError, naming round and client, at a record that is not valid. Of earlier records, only joins
        and leaves are read.
        """
        if self._merged_from is None:
            yield from self._records(first)
            return
        stamp = None
        for record in self._records(max(first, self._merged_from)):
            if isinstance(record, Stamp):
                stamp = record
            else:
                yield record
        if stamp is not None:
            yield stamp

    def _records(self, first: int) -> Iterator[Record]:
        rules = Rules(self.description, self._roster_before(first), -math.inf if first == 1 else None)
        indices = self._chain.records[first - 1 :].tolist()
        round_number = self._reader.round_of(indices[0]) if indices else 1
        for index in indices:
            where = f"round {round_number}"
            kind, rows = self._chain.kind(index), self._reader.rows(index, where)
            rules.check(kind, rows, where)
            round_number += kind is Kind.ROUND
            yield from _as_records(rows, rules.roster, self.description.n_classes or 1)

    def _roster_before(self, record: int) -> Roster:
        """Return the roster before a record, counted from 1."""
        roster = Roster.of_founders(self.description.clients)
        records = self._chain.records
        end = int(records[record - 1]) if record <= len(records) else len(self._chain)
        for index in self._chain.changes.tolist():
            if index >= end:
                break
            where = f"round {self._reader.round_of(index)}"
            rows = self._reader.rows(index, where)
            rules = Rules(self.description, roster, None)
            rules.check_frame(self._chain.kind(index), rows, where)
            roster = rules.roster
        return roster

    def entries(self) -> Iterator[Entry]:
        """Return an iterator over the messages of all segments, with their links."""
        reader = self._reader
        return (reader.entry(index, f"round {reader.round_of(index)}") for index in range(len(self._chain)))

    def head_state(self, hashes: Sequence[str]) -> dict[str, Array]:
        """Return the parameters of the head by name, from the `state` of a `Stamp` or of `description.head`.

        Raises TranscriptError if one is missing, or was changed.
        """
        return self.head_reader(hashes)

    @property
    def head_reader(self) -> StateReader:
        """What `head_state` calls, without the rest of the transcript: it can be sent to another process."""
        return StateReader(self._storage, self.description.head.parameters)

    def head_program(self) -> bytes | None:
        """Return the program of the head, None if there is none; raise TranscriptError if it was changed.

        Loading it may run any code.
        """
        digest = self.description.head.program
        return None if digest is None else read_program(self._storage, digest)

    @cached_property
    def widths(self) -> dict[str, int]:
        """The width of the embeddings of each client, in the order in which the head takes them.

        As stated when the training began, else as uploaded: without those of clients that never uploaded anything.
        """
        head = self.description.head
        if head.clients:
            return dict(zip(head.clients, head.widths, strict=True))
        found = dict[str, int]()
        for record in self:
            if len(found) == len(self.clients):
                break
            if isinstance(record, Upload):
                found.setdefault(record.client, record.embeddings.shape[1])
        return {name: found[name] for name in self.clients if name in found}

    def verify(self, *, is_growing: bool = False) -> Verified:
        """Return what was recorded, if every byte is as it was written and every record is valid.

        Otherwise raise TranscriptError, naming round, client or file. With `is_growing`, bytes after the last complete
        record are ignored: a recorder may be writing the next one.
        """
        verified = self.verify_more()
        if not is_growing:
            self.check_end()
        return verified

    def check_end(self) -> None:
        """Raise TranscriptError if bytes follow the last complete record, as after a crash, or while one is written."""
        self._reader.check_end(self.n_rounds)

    def verify_more(
        self,
        since: Verified | None = None,
        most: int | None = None,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Verified:
        """Verify the transcript, or its next `most` messages; return what is verified, to be passed as `since` later.

        What was verified before is not read again, unless the transcript no longer begins with it: then verification
        starts over. `progress` is called with the number of verified messages and their total.
        """
        if since is None:
            self.head_program()
        check_tensor = partial(read_tensor, self._storage)
        return verify(self._reader, self.description, fmt.first_link(*self.origin), check_tensor, since, most, progress)


def _open_again(
    storage: Storage, n_entries: int, head: str, merged_from: int | None, n_rounds: int, trusts_head: bool
) -> Transcript:
    """Return a transcript that was sent to this process: its files are read here, as far as they went there."""
    result = Transcript(storage, reads_labels=False)._first_entries(n_entries)
    if result.head != head:
        raise TranscriptError(f"the transcript in {storage.location} is not the one that was sent here, or not yet")
    result.trusts_head, result._merged_from = trusts_head, merged_from
    result.__dict__["n_rounds"] = n_rounds
    return result


def _as_records(rows: Rows, roster: Roster, n_classes: int) -> Iterator[Record]:
    """Yield the records in valid rows."""
    absent = rows.absent
    for row, (kind, client, time) in enumerate(zip(rows.kinds, rows.clients, rows.times, strict=True)):
        if kind == "upload":
            samples = rows.samples.row(row)
            yield Upload(str(client), time, samples, rows.embeddings.row(row).reshape(len(samples), -1))
        elif kind == "stamp":
            offset = rows.offset
            if offset is not None and len(offset) != n_classes:
                offset = offset.reshape(-1, n_classes)
            state = tuple(digest.hex() for digest in rows.state or ())
            yield Stamp(time, offset, tuple(name for name in roster.clients if name in absent), state)
        elif kind != "absent":
            yield (Join if kind == "join" else Leave)(str(client), time)


def _check_begun(description: Description, segments: Sequence[Segment], storage: Storage) -> None:
    """Raise TranscriptError if uploads are missing, or rounds are not those that the description allows."""
    is_begun, n_rounds = description.mode is not None, sum(segment.n_rounds for segment in segments)
    if is_begun and not segments and not storage.exists(fmt.chain_file(1)):
        raise TranscriptError(f"{fmt.uploads_file(1)} is missing, but {fmt.DESCRIPTION} says that there were uploads")
    if description.n_planned is not None and n_rounds > description.n_planned:
        raise TranscriptError(f"there are {n_rounds:,} rounds, but {description.n_planned:,} were agreed (n_planned)")
    if not is_begun and any(segment.has_records for segment in segments):
        raise TranscriptError(f"{fmt.DESCRIPTION} says that nothing was uploaded, but there are uploads")
    size = description.segment_rounds
    for segment in segments:
        if segment.n_rounds > size or (segment.is_sealed and segment.n_rounds < size):
            name = fmt.chain_file(segment.number)
            raise TranscriptError(f"{name} is not valid: it has {count(segment.n_rounds, 'round')}, not {size:,}")


def describe(description: Description, n_clients: int) -> str:
    """Return a one-line summary of a transcript."""
    size = f"{count(n_clients, 'client')}, {count(description.n_samples, 'sample')}"
    return f"{size}, {description.loss} loss, {description.mode or 'nothing uploaded yet'}"
