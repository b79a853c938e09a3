"""`Transcript`: read what was recorded, by memory map, and find out whether it was changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.errors import TranscriptError
from verfedsv.losses import Array
from verfedsv.shapley.result import count
from verfedsv.transcript import format as fmt
from verfedsv.transcript.storage import FolderStorage, Storage

FOLDER = "transcript"
"""Where a run keeps its transcript."""


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


class Transcript:
    """A recorded training. Open a folder with `Transcript.open`; iterate over its uploads and stamps in order.

    A record that a crash left unfinished is not part of it.
    """

    def __init__(self, storage: Storage) -> None:
        self._storage = storage
        self._description_bytes = storage.read(fmt.DESCRIPTION).to_pybytes()
        self.description = fmt.Description.from_json(self._description_bytes)
        self._stream = storage.read(fmt.UPLOADS)
        links = fmt.unpack_chain(storage.read(fmt.CHAIN).to_pybytes())
        self._links = [link for link in links if link[0] <= self._stream.size]

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Transcript:
        """Return the transcript in a folder, or in the folder `transcript` within it, as whole runs have it."""
        folder = Path(path)
        if (folder / FOLDER / fmt.DESCRIPTION).exists():
            folder = folder / FOLDER
        if not (folder / fmt.DESCRIPTION).exists():
            why = f"it has no {fmt.DESCRIPTION}"
            if not folder.exists():
                why = "there is no such folder"
            elif not folder.is_dir():
                why = "that is a file; its folder is wanted"
            raise TranscriptError(f"there is no transcript in {folder}: {why}")
        return cls(FolderStorage(folder))

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
        return self._links[-1][1].hex() if self._links else ""

    def contains(self, head: str) -> bool:
        """Return whether this transcript once had that `head`: it is the same, or has grown since."""
        return any(digest.hex() == head for _, digest in self._links)

    @cached_property
    def n_rounds(self) -> int:
        """The number of time stamps."""
        return sum(isinstance(record, Stamp) for record in self)

    @cached_property
    def last_time(self) -> float:
        """The time of the last record, minus infinity if there is none."""
        *_, last = [-np.inf, *(record.time for record in self)]
        return float(last)

    def __iter__(self) -> Iterator[Upload | Stamp]:
        for index in range(1, len(self._links)):
            yield from self._records(self._batch(index))

    @property
    def origin(self) -> tuple[bytes, bytes]:
        """The bytes of transcript.json and of labels.arrow, with which the hash chain begins."""
        return self._description_bytes, self._storage.read(fmt.LABELS).to_pybytes()

    def messages(self) -> Iterator[tuple[pa.Buffer, pa.RecordBatch | None, bytes]]:
        """Yield what the hash chain is made of: each message, the batch in it (None for the schema), and its link."""
        for index, (_, link) in enumerate(self._links):
            yield self._message(index), None if index == 0 else self._batch(index), link

    def verify(self, *, may_go_on: bool = False) -> None:
        """Raise TranscriptError, naming the place, unless every byte is as it was written.

        With `may_go_on`, bytes after the last complete record are not looked at: those of one that is being written.
        """
        if not self._links:
            return
        head = fmt.first_link(*self.origin)
        place, n_rounds = f"{fmt.DESCRIPTION}, {fmt.LABELS} or the head of {fmt.UPLOADS}", 0
        for index, (_, expected) in enumerate(self._links):
            message = self._message(index)
            batch = None if index == 0 else self._batch(index, place)
            try:
                ranges = fmt.frame_ranges(message, batch)
                if batch is not None:
                    self._check_digests(batch, n_rounds + 1)
            except ValueError as error:
                raise TranscriptError(f"the transcript was changed: {place} is not as recorded ({error})") from None
            head = fmt.frame_hash(head, message, ranges)
            if head != expected:
                raise TranscriptError(f"the transcript was changed: {place}")
            if batch is None:
                self._check_schema(message)
            else:
                n_rounds += batch.column("client").null_count
            place = f"round {n_rounds + 1}"
        if not may_go_on:
            self._check_ends()

    def _check_ends(self) -> None:
        """Raise TranscriptError if there are bytes that no link covers."""
        end, chain = self._links[-1][0], self._storage.read(fmt.CHAIN).size
        if self._stream.size != end or chain != len(self._links) * len(fmt.pack_link(0, b"")):
            raise TranscriptError("the transcript has bytes after its last record: unfinished, or added later")

    def _check_schema(self, message: pa.Buffer) -> None:
        """Raise TranscriptError if a reader that goes by the head of the stream would find other columns than this."""
        try:
            fmt.check_schema(message, fmt.upload_schema(self.description.precision or "float64"))
        except (ValueError, OSError) as error:
            raise TranscriptError(f"the head of {fmt.UPLOADS} is damaged: {error}") from None

    def _check_digests(self, batch: pa.RecordBatch, round_number: int) -> None:
        for record, digest in zip(self._records(batch), batch.column("digest").to_pylist(), strict=True):
            if isinstance(record, Upload) and fmt.digest_of(record.samples, record.embeddings) != digest:
                raise TranscriptError(f"the transcript was changed: round {round_number}, client {record.client!r}")

    def _message(self, index: int) -> pa.Buffer:
        start = self._links[index - 1][0] if index else 0
        end = self._links[index][0]
        if not start <= end <= self._stream.size:
            raise TranscriptError(f"{fmt.CHAIN} is damaged: its entry {index} does not fit {fmt.UPLOADS}")
        return self._stream.slice(start, end - start)

    def _batch(self, index: int, place: str | None = None) -> pa.RecordBatch:
        schema = fmt.upload_schema(self.description.precision or "float64")
        try:
            batch = fmt.read_message(self._message(index), schema)
            batch.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            where = place or f"record {index}"
            raise TranscriptError(f"the transcript was changed: {where} cannot be read ({error})") from None
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
