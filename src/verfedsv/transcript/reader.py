"""`Transcript`: read what was recorded, by memory map, and find out whether it was changed."""

from __future__ import annotations

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
from verfedsv.transcript.storage import FolderStorage, Storage

FOLDER = "transcript"
"""Where a run keeps its transcript."""

_ORIGIN = f"{fmt.DESCRIPTION}, {fmt.LABELS} or the head of {fmt.UPLOADS}"
_BETWEEN_REPORTS = 256
"""So many messages are checked from one call of `progress` to the next: some 20 ms."""


def folder_of(run: Path) -> Path:
    """Return where the transcript of a run lies: in a folder of the run's, or in the run's folder itself."""
    return run / FOLDER if (run / FOLDER / fmt.DESCRIPTION).exists() else run


@dataclass(frozen=True, eq=False)
class Upload:
    """Embeddings of one client, (samples, classes), for the samples numbered `samples`."""

    client: str
    time: float
    samples: NDArray[np.uint32]
    embeddings: Array


@dataclass(frozen=True, eq=False)
class Stamp:
    """A time of valuation: in synchronous training the end of an iteration.

    `offset` is the server's own part, (samples, classes), for the samples of the iteration, or in asynchronous training
    for all samples; None if there is none.
    """

    time: float
    offset: Array | None


@dataclass(frozen=True)
class Verified:
    """How much of a transcript is as it was written: so many messages, up to a link of a chain that began at `origin`.

    In them are `n_rounds` time stamps, and of each client so many uploads with so many embeddings.
    """

    origin: bytes
    link: bytes
    n_messages: int = 0
    n_rounds: int = 0
    n_uploads: Counter[str] = field(default_factory=Counter)
    n_embeddings: Counter[str] = field(default_factory=Counter)


class Transcript:
    """A recorded training. Open a folder with `Transcript.open`; iterate over its uploads and stamps in order.

    A record that a crash left unfinished is not part of it.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._description_bytes = storage.read(fmt.DESCRIPTION).to_pybytes()
        self.description = fmt.Description.from_json(self._description_bytes)
        self._stream = storage.stream(fmt.UPLOADS)
        self._chain = Chain.of(storage.read(fmt.CHAIN), self._stream.size)

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

    def __repr__(self) -> str:
        return f"<Transcript: {describe(self.description)}, {count(self.n_rounds, 'round')}>"

    @cached_property
    def _label_table(self) -> pa.Table:
        try:
            with pa.ipc.open_file(pa.BufferReader(self._storage.read(fmt.LABELS))) as reader:
                return reader.read_all()
        except (pa.ArrowInvalid, OSError, IndexError):
            raise TranscriptError(f"{fmt.LABELS} is damaged: it cannot be read") from None

    @property
    def labels(self) -> Array:
        """The labels as they were given, (samples,) or (samples, classes)."""
        column = self._label_table.column("label").combine_chunks()
        if pa.types.is_fixed_size_list(column.type):
            return np.asarray(column.values).reshape(len(column), -1)
        return np.asarray(column)

    @property
    def receives_gradient(self) -> NDArray[np.bool_]:
        """Which samples receive gradients in training, (samples,)."""
        return np.asarray(self._label_table.column("receives_gradient"))

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
        earlier.__dict__.pop("last_time", None)
        earlier.__dict__["n_rounds"] = verified.n_rounds
        return earlier

    @cached_property
    def n_rounds(self) -> int:
        """The number of time stamps."""
        batches = (self._batch(self._message(index), f"record {index}") for index in range(1, len(self._chain)))
        return sum(batch.column("client").null_count for batch in batches)

    @cached_property
    def last_time(self) -> float:
        """The time of the last record, minus infinity if there is none."""
        *_, last = [-np.inf, *(record.time for record in self.records(max(1, len(self._chain) - 1)))]
        return float(last)

    def __iter__(self) -> Iterator[Upload | Stamp]:
        return self.records()

    def records(self, first: int = 1) -> Iterator[Upload | Stamp]:
        """Yield the uploads and stamps in order, from a message on; message 0 is the schema, and has none."""
        for index in range(first, len(self._chain)):
            yield from self._records(self._batch(self._message(index), f"record {index}"))

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
        """Raise TranscriptError, naming the place, unless every byte is as it was written.

        With `may_go_on`, bytes after the last complete record are not looked at: those of one that is being written.
        """
        if not len(self._chain):
            return
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
        link, n_rounds = since.link, since.n_rounds
        n_uploads, n_embeddings = since.n_uploads.copy(), since.n_embeddings.copy()
        total = len(self._chain)
        last = total if most is None else min(total, since.n_messages + most)
        for index in range(since.n_messages, last):
            place = _ORIGIN if index == 0 else f"round {n_rounds + 1}"
            message = self._message(index)
            batch = None if index == 0 else self._batch(message, place)
            try:
                ranges = fmt.frame_ranges(message, batch)
            except ValueError as error:
                raise TranscriptError(f"the transcript was changed: {place} is not as recorded ({error})") from None
            if batch is not None:
                for upload in self._checked(batch, n_rounds + 1):
                    n_uploads[upload.client] += 1
                    n_embeddings[upload.client] += len(upload.samples)
            link = fmt.frame_hash(link, message, ranges)
            if link != self._chain.link(index):
                raise TranscriptError(f"the transcript was changed: {place}, or its entry in {fmt.CHAIN}")
            if batch is None:
                self._check_schema(message)
            else:
                n_rounds += batch.column("client").null_count
            if index % _BETWEEN_REPORTS == 0:
                progress(index, total)
        return Verified(origin, link, last, n_rounds, n_uploads, n_embeddings)

    def _begins_with(self, verified: Verified, origin: bytes) -> bool:
        n_messages = verified.n_messages
        if verified.origin != origin or not 0 < n_messages <= len(self._chain):
            return False
        return self._chain.link(n_messages - 1) == verified.link

    def _check_ends(self) -> None:
        """Raise TranscriptError if there are bytes that no link covers."""
        end, chain = self._chain.end(-1), self._storage.read(fmt.CHAIN).size
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

    def _check_schema(self, message: pa.Buffer) -> None:
        """Raise TranscriptError if a reader that goes by the head of the stream would find other columns than this."""
        try:
            fmt.check_schema(message, fmt.upload_schema(self.description.precision or "float64"))
        except (ValueError, OSError) as error:
            raise TranscriptError(f"the head of {fmt.UPLOADS} is damaged: {error}") from None

    def _checked(self, batch: pa.RecordBatch, round_number: int) -> Iterator[Upload]:
        """Yield the uploads of a batch; raise TranscriptError at one that is not what its digest is of."""
        for record, digest in zip(self._records(batch), batch.column("digest").to_pylist(), strict=True):
            if isinstance(record, Upload):
                if fmt.digest_of(record.samples, record.embeddings) != digest:
                    raise TranscriptError(f"the transcript was changed: round {round_number}, client {record.client!r}")
                yield record

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
            batch = fmt.read_message(message, schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            raise TranscriptError(f"the transcript was changed: {place} cannot be read ({error})") from None
        return batch

    def _records(self, batch: pa.RecordBatch) -> Iterator[Upload | Stamp]:
        """Yield the rows of a batch, their arrays being views of the file."""
        n_classes = self.description.n_classes or 1
        samples, embeddings, offsets = (batch.column(name) for name in ("samples", "embeddings", "offset"))
        times = batch.column("time").to_pylist()
        for row, client in enumerate(batch.column("client").to_pylist()):
            if client is None:
                own = offsets[row].values
                yield Stamp(times[row], None if own is None else np.asarray(own).reshape(-1, n_classes))
            else:
                numbers = np.asarray(embeddings[row].values).reshape(-1, n_classes)
                yield Upload(client, times[row], np.asarray(samples[row].values), numbers)


def describe(description: fmt.Description) -> str:
    """Return who and what a transcript is of, in a line."""
    size = f"{count(len(description.clients), 'client')}, {count(description.n_samples, 'sample')}"
    return f"{size}, {description.loss} loss, {description.mode or 'nothing uploaded yet'}"
