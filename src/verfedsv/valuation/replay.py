"""Asynchronous training: the server's table of embeddings, replayed from the uploads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from verfedsv.losses import Array, Floats, Loss
from verfedsv.shapley.estimate import Estimate
from verfedsv.transcript import Upload
from verfedsv.valuation.chunks import ReplayChunk, UploadsOfRound, apply
from verfedsv.valuation.stream import Budget, Stream
from verfedsv.valuation.trainings import Training

SEGMENT_ELEMENTS, SEGMENT_ROUNDS = 2**22, 64
"""So many numbers, offsets included, of so many rounds are held at a time and valued together."""


@dataclass(eq=False)
class Replay:
    """The server's table after some rounds, from which a later valuation goes on without reading what came before.

    `table` is (players, rows, classes), zero at time 0; `is_seen` says which of the rows were ever uploaded. Next to
    be read is a message of the transcript, after `unstamped` uploads that no time stamp has followed yet.
    """

    table: Floats
    is_seen: NDArray[np.bool_]
    budget: Budget
    n_rounds: int = 0
    next_message: int = 1
    unstamped: list[Upload] = field(default_factory=list)

    @classmethod
    def begin(cls, training: Training, rows: NDArray[np.intp], tolerance: float) -> Replay:
        """Return the table before the first round."""
        shape = len(training.clients) + 1, len(rows), training.n_classes
        return cls(np.zeros(shape), np.zeros(len(rows), bool), Budget(tolerance))

    def see(self, uploads: UploadsOfRound) -> None:
        """Mark the rows that clients uploaded."""
        server = len(self.table) - 1
        for player, samples, _ in uploads:
            if player != server:
                self.is_seen[samples] = True

    def copy(self) -> Replay:
        """Return the same, to go on from."""
        own = replace(self, budget=replace(self.budget), unstamped=list(self.unstamped))
        own.table, own.is_seen = self.table.copy(), self.is_seen.copy()
        return own


def value_replayed(
    training: Training,
    rows: NDArray[np.intp],
    replay: Replay,
    first_round: int,
    stream: Stream,
    progress: Callable[[int], None],
) -> Estimate:
    """Return the values of the rounds from `first_round` on; `replay` goes along with them, up to the last.

    `progress` is called with the number of rounds done.
    """
    place = np.full(training.n_samples, -1, np.int32 if training.n_samples < 2**31 else np.int64)
    place[rows] = np.arange(len(rows))
    labels = training.labels[rows]
    parts, segment, n_elements = list[Estimate](), list[UploadsOfRound](), 0

    def flush() -> None:
        if segment:
            parts.append(stream.value(ReplaySource(training.loss, labels, replay.table, segment)))
            for uploads in segment:
                apply(replay.table, uploads)
            segment.clear()

    for recorded in training.rounds(replay.next_message, replay.unstamped):
        uploads = _of_rows(recorded, place)
        replay.see(uploads)
        replay.n_rounds += 1
        if replay.n_rounds <= first_round:
            apply(replay.table, uploads)
            if replay.n_rounds % SEGMENT_ROUNDS == 0:
                progress(replay.n_rounds)
            continue
        segment.append(uploads)
        n_elements += sum(values.size for values in uploads.embeddings)
        if n_elements >= SEGMENT_ELEMENTS or len(segment) == SEGMENT_ROUNDS:
            flush()
            n_elements = 0
            progress(replay.n_rounds)
    if segment:
        flush()
        progress(replay.n_rounds)
    replay.next_message = training.transcript.n_messages
    return Estimate.joined(parts) if parts else Estimate.none(0, len(training.clients) + 1)


@dataclass(frozen=True, eq=False)
class ReplaySource:
    """Chunks of the server's table, (players, rows, classes), and of the uploads of some rounds from there on."""

    loss: Loss
    labels: Array
    table: Floats
    uploads: Sequence[UploadsOfRound]

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    @property
    def n_rounds(self) -> int:
        return len(self.uploads)

    @property
    def n_clients(self) -> int:
        return len(self.table) - 1

    @property
    def n_classes(self) -> int:
        return int(self.table.shape[2])

    def chunk(self, part: slice, index: int) -> ReplayChunk:
        """Return some of the rows in all rounds."""
        table, uploads = np.ascontiguousarray(self.table[:, part]), [_cut(of_round, part) for of_round in self.uploads]
        shape = self.n_clients, self.n_rounds, self.n_classes
        return ReplayChunk(index, self.loss, self.labels[part], *shape, table, uploads)


def _of_rows(uploads: UploadsOfRound, place: Array) -> UploadsOfRound:
    """Return the uploads with the places of their samples among the rows, sorted, and others left out."""
    samples, embeddings = [], []
    for _, numbers, values in uploads:
        places = place[numbers]
        order = np.argsort(places, kind="stable")
        order = order[np.searchsorted(places, 0, sorter=order) :]
        samples.append(places[order])
        embeddings.append(values[order])
    return UploadsOfRound(uploads.players, samples, embeddings)


def _cut(uploads: UploadsOfRound, part: slice) -> UploadsOfRound:
    """Return the uploads of a chunk of the rows, with places within it."""
    samples, embeddings = [], []
    for _, places, values in uploads:
        first, last = np.searchsorted(places, [part.start, part.stop])
        samples.append(places[first:last] - places.dtype.type(part.start))
        embeddings.append(values[first:last])
    return UploadsOfRound(uploads.players, samples, embeddings)
