"""`Transcript`: read what was recorded, by memory map, and find out whether it was changed."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.errors import TranscriptError
from verfedsv.losses import Array
from verfedsv.shapley.result import count
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import Chain
from verfedsv.transcript.framing import UNREADABLE, read_file_of_one_batch
from verfedsv.transcript.meaning import Rules, check_labels, labels_of
from verfedsv.transcript.records import Stamp, Upload
from verfedsv.transcript.rows import Rows
from verfedsv.transcript.storage import FolderStorage, Storage

FOLDER = "transcript"
"""Where a run keeps its transcript."""

_ORIGIN = f"{fmt.DESCRIPTION}, {fmt.LABELS} or the head of {fmt.UPLOADS}"
_BETWEEN_REPORTS = 256
"""So many messages are checked from one call of `progress` to the next: some 20 ms."""


def folder_of(run: Path) -> Path:
    """Return where the transcript of a run lies: in a folder of the run's, or in the run's folder itself."""
    return run / FOLDER if (run / FOLDER / fmt.DESCRIPTION).exists() else run


@dataclass(frozen=True)
class Verified:
    """How much of a transcript is as it was written: so many messages, up to a link of a chain that began at `origin`.

    In them are `n_rounds` time stamps, and of each client so many uploads with so many embeddings. `last_time` is the
    time of the last record.
    """

    origin: bytes
    link: bytes
    last_time: float = -math.inf
    n_messages: int = 0
    n_rounds: int = 0
    n_uploads: Counter[str] = field(default_factory=Counter)
    n_embeddings: Counter[str] = field(default_factory=Counter)


class Transcript:
    """A recorded training. Open a folder with `Transcript.open`; iterate over its uploads and stamps in order.

    A record that a crash left unfinished is not part of it. All that is read is valid: what no `Recorder` would have
    written is a TranscriptError, when it is opened or when the record is read. `verify` finds what was changed.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        # In the order in which nothing is missing that a recorder writes meanwhile: it writes the last of them first.
        chain = storage.read(fmt.CHAIN)
        self._stream = storage.stream(fmt.UPLOADS)
        self._description_bytes = storage.read(fmt.DESCRIPTION).to_pybytes()
        self.description = fmt.Description.from_json(self._description_bytes)
        self._chain = Chain.of(chain, self._stream.size)
        self._check_files(chain.size)
        self._check_schema()
        self._labels = self._read_labels()

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, mapped: bool = True) -> Transcript:
        """Return the transcript in a folder, or in the folder `transcript` within it, as whole runs have it.

        A transcript that is not `mapped` reads its files record by record, which is for those that may be cut off
        or overwritten meanwhile: a view of such a file can end the process.
        """
        folder = folder_of(Path(path))
        if not (folder / fmt.DESCRIPTION).exists():
            why = f"it has no {fmt.DESCRIPTION}"
            if not folder.exists():
                why = "there is no such folder"
            elif not folder.is_dir():
                why = "that is a file; its folder is wanted"
            raise TranscriptError(f"there is no transcript in {folder}: {why}")
        return cls(FolderStorage(folder, mapped=mapped))

    @property
    def clients(self) -> tuple[str, ...]:
        """All clients that ever took part, in the order in which they joined."""
        return self.description.clients

    def __repr__(self) -> str:
        return f"<Transcript: {describe(self.description)}, {count(self.n_rounds, 'round')}>"

    def _check_files(self, chain_size: int) -> None:
        """Raise TranscriptError if there were uploads, and they are gone."""
        is_begun = self.description.mode is not None
        for name in (fmt.UPLOADS, fmt.CHAIN) if is_begun else ():
            if not self._storage.exists(name):
                raise TranscriptError(f"{name} is missing, and {fmt.DESCRIPTION} says that there were uploads")
        if not len(self._chain) and chain_size >= self._chain.entry_size:
            raise TranscriptError(f"{fmt.UPLOADS} was cut off or emptied: {fmt.CHAIN} says that there were uploads")
        if len(self._chain) and not is_begun:
            raise TranscriptError(f"{fmt.DESCRIPTION} is of a transcript without uploads, and there are some")

    def _read_labels(self) -> pa.RecordBatch:
        if not self._storage.exists(fmt.LABELS):
            raise TranscriptError(f"{fmt.LABELS} is missing")
        try:
            batch = read_file_of_one_batch(self._storage.read(fmt.LABELS))
        except UNREADABLE as error:
            raise TranscriptError(f"{fmt.LABELS} is damaged: it cannot be read ({error})") from None
        check_labels(batch, self.description)
        return batch

    @property
    def labels(self) -> Array:
        """The labels, (samples,) or (samples, classes): as they were given, or the numbers of `description.classes`."""
        return labels_of(self._labels)

    @property
    def receives_gradient(self) -> NDArray[np.bool_]:
        """Which samples receive gradients in training, (samples,)."""
        return np.asarray(self._labels.column("receives_gradient"))

    @property
    def head(self) -> str:
        """The last link of the hash chain, which stands for the whole transcript; empty if nothing was uploaded."""
        return self._chain.link(-1).hex() if len(self._chain) else ""

    @property
    def n_messages(self) -> int:
        """The number of messages: the schema, and one for each upload, time stamp or synchronous iteration."""
        return len(self._chain)

    def contains(self, head: str) -> bool:
        """Return whether this transcript once had that `head`: it is the same, or has grown since."""
        return self._chain.contains(head)

    def up_to(self, verified: Verified) -> Transcript:
        """Return the transcript as it was when only what was verified had been recorded."""
        earlier = copy(self)
        earlier._chain = self._chain.first(verified.n_messages)
        earlier.__dict__["n_rounds"] = verified.n_rounds
        return earlier

    @cached_property
    def n_rounds(self) -> int:
        """The number of time stamps."""
        n_records = max(0, len(self._chain) - 1)
        if self.description.mode == "synchronous":
            return n_records  # one in each
        batches = (self._batch(self._message(index), f"record {index}") for index in range(1, n_records + 1))
        return sum(batch.column("client").null_count for batch in batches)

    def __iter__(self) -> Iterator[Upload | Stamp]:
        return self.records()

    def records(self, first: int = 1) -> Iterator[Upload | Stamp]:
        """Yield the uploads and stamps in order, from a message on; message 0 is the schema, and has none.

        Raises TranscriptError, naming round and client, at a record that is not valid. What comes before `first` is not
        read.
        """
        rules = Rules(self.description, -math.inf if first == 1 else None)
        is_numbered = first == 1 or self.description.mode == "synchronous"
        round_number = first
        for index in range(first, len(self._chain)):
            place = f"round {round_number}" if is_numbered else f"record {index}"
            rows = _rows(self._batch(self._message(index), place), place)
            rules.check(rows, place)
            round_number += rows.clients[-1] is None
            yield from self._records(rows)

    @property
    def origin(self) -> tuple[bytes, bytes]:
        """The bytes of transcript.json and of labels.arrow, with which the hash chain begins."""
        return self._description_bytes, self._storage.read(fmt.LABELS).to_pybytes()

    def messages(self) -> Iterator[tuple[pa.Buffer, pa.RecordBatch | None, bytes]]:
        """Yield what the hash chain is made of: each message, the batch in it (None for the schema), and its link."""
        for index in range(len(self._chain)):
            message = self._message(index)
            yield message, None if index == 0 else self._batch(message, f"record {index}"), self._chain.link(index)

    def verify(self, *, may_go_on: bool = False) -> None:
        """Raise TranscriptError, naming the place, unless every byte is as it was written and every record is valid.

        With `may_go_on`, bytes after the last complete record are not looked at: those of one that is being written.
        """
        self.verify_on()
        if not may_go_on:
            self._check_ends()

    def verify_on(
        self,
        since: Verified | None = None,
        most: int | None = None,
        progress: Callable[[int, int], None] = lambda _done, _total: None,
    ) -> Verified:
        """Check what was recorded, at most so many messages of it; return what is verified, from where to go on.

        What was verified before is not read again if it still is the beginning of this transcript; if not, all is
        checked from the start. `progress` is called with the messages verified and the messages in all.
        """
        origin = fmt.first_link(*self.origin)
        if since is None or not self._begins_with(since, origin):
            since = Verified(origin, origin)
        link, last_time, n_rounds = since.link, since.last_time, since.n_rounds
        n_uploads, n_embeddings = since.n_uploads.copy(), since.n_embeddings.copy()
        rules = Rules(self.description, since.last_time)
        total = len(self._chain)
        last = total if most is None else min(total, since.n_messages + most)
        for index in range(since.n_messages, last):
            place = _ORIGIN if index == 0 else f"round {n_rounds + 1}"
            message = self._message(index)
            batch = None if index == 0 else self._batch(message, place)
            rows = None if batch is None else _rows(batch, place)
            try:
                ranges = fmt.frame_ranges(message, batch)
            except ValueError as error:
                raise TranscriptError(f"the transcript was changed: {place} is not as recorded ({error})") from None
            if rows is not None:
                _check_digests(rows, place)
            link = fmt.frame_hash(link, message, ranges)
            if link != self._chain.link(index):
                raise TranscriptError(f"the transcript was changed: {place}, or its entry in {fmt.CHAIN}")
            if rows is not None:
                rules.check(rows, place)
                last_time = rows.times[-1]
                n_rounds += rows.clients[-1] is None
                for client, n_samples in zip(rows.clients, rows.samples.lengths, strict=True):
                    if client is not None and n_samples:
                        n_uploads[client] += 1
                        n_embeddings[client] += n_samples
            if index % _BETWEEN_REPORTS == 0:
                progress(index, total)
        return Verified(origin, link, last_time, last, n_rounds, n_uploads, n_embeddings)

    def _begins_with(self, verified: Verified, origin: bytes) -> bool:
        n_messages = verified.n_messages
        if verified.origin != origin or not 0 < n_messages <= len(self._chain):
            return False
        return self._chain.link(n_messages - 1) == verified.link

    def _check_ends(self) -> None:
        """Raise TranscriptError if there are bytes that no link covers."""
        end, chain = self._chain.end(-1) if len(self._chain) else 0, self._storage.read(fmt.CHAIN).size
        after, entries = self._stream.size - end, chain - self._chain.n_bytes
        if after == entries == 0:
            return
        done = f"the transcript is whole up to round {self.n_rounds}, and"
        if entries >= self._chain.entry_size:
            why = f"{fmt.UPLOADS} ends within the next record: it was cut off"
        elif after == 0:
            why = f"{fmt.CHAIN} ends within an entry: it was cut off, or something was added"
        else:
            why = (
                f"{fmt.UPLOADS} has {after:,} bytes after it that {fmt.CHAIN} says nothing of: it is unfinished, "
                f"{fmt.CHAIN} was cut off, or something was added"
            )
        raise TranscriptError(f"{done} {why}")

    def _check_schema(self) -> None:
        """Raise TranscriptError if a reader that goes by the head of the stream would find other columns than this."""
        if not len(self._chain):
            return
        try:
            message = self._stream.slice(0, self._chain.end(0))
            fmt.check_schema(message, fmt.upload_schema(self.description.precision or "float64"))
        except UNREADABLE as error:
            raise TranscriptError(f"the head of {fmt.UPLOADS} is damaged: {error}") from None

    def _message(self, index: int) -> pa.Buffer:
        start = self._chain.end(index - 1) if index else 0
        end = self._chain.end(index)
        if not start <= end <= self._stream.size:
            raise TranscriptError(f"{fmt.CHAIN} is damaged: its entry {index} does not fit {fmt.UPLOADS}")
        message = self._stream.slice(start, end - start)
        if message.size < end - start:
            raise TranscriptError(f"the transcript was changed: {fmt.UPLOADS} was cut off while it was read")
        return message

    def _batch(self, message: pa.Buffer, place: str) -> pa.RecordBatch:
        schema = fmt.upload_schema(self.description.precision or "float64")
        try:
            return fmt.read_message(message, schema)
        except UNREADABLE as error:
            raise TranscriptError(f"the transcript was changed: {place} cannot be read ({error})") from None

    def _records(self, rows: Rows) -> Iterator[Upload | Stamp]:
        """Yield the uploads and stamps of valid rows, their arrays being views of the file."""
        n_classes = self.description.n_classes or 1
        absent = rows.absent
        for row, (client, time) in enumerate(zip(rows.clients, rows.times, strict=True)):
            if client is None:
                own = rows.offsets[row]
                offset = None if own is None else own.reshape(-1, n_classes)
                yield Stamp(time, offset, tuple(name for name in self.description.clients if name in absent))
            elif client not in absent:
                yield Upload(client, time, rows.samples.row(row), rows.embeddings.row(row).reshape(-1, n_classes))


def _rows(batch: pa.RecordBatch, place: str) -> Rows:
    try:
        return Rows.of(batch)
    except ValueError as error:
        raise TranscriptError(f"the transcript was changed: {place} is not as recorded ({error})") from None


def _check_digests(rows: Rows, place: str) -> None:
    """Raise TranscriptError at numbers that are not what their digest is of, or that have none."""
    for row, (client, digest) in enumerate(zip(rows.clients, rows.digests, strict=True)):
        samples, embeddings = rows.samples.row(row), rows.embeddings.row(row)
        if digest is None:
            if len(samples) or len(embeddings):
                which = "samples" if len(samples) else "embeddings"
                why = f"there are {which} that are part of no upload"
                raise TranscriptError(f"the transcript was changed: {place} is not as recorded ({why})")
        elif fmt.digest_of(samples, embeddings) != digest:
            raise TranscriptError(f"the transcript was changed: {place}, client {client!r}")


def describe(description: fmt.Description) -> str:
    """Return who and what a transcript is of, in a line."""
    size = f"{count(len(description.clients), 'client')}, {count(description.n_samples, 'sample')}"
    return f"{size}, {description.loss} loss, {description.mode or 'nothing uploaded yet'}"
