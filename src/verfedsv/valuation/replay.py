"""Asynchronous training: the server's table of embeddings, replayed from the uploads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from verfedsv.losses import Array, Floats
from verfedsv.shapley.blocks import split
from verfedsv.transcript import Upload
from verfedsv.valuation.chunks import ReplayChunk, UploadsOfRound, apply
from verfedsv.valuation.stream import Budget, Rounds, Stream, chunk_size
from verfedsv.valuation.trainings import Training

SEGMENT_ELEMENTS, SEGMENT_ROUNDS = 2**22, 64
"""So many numbers, offsets included, of so many rounds are held at a time and valued together."""


@dataclass(eq=False)
class Replay:
    """The server's table after some rounds, from which a later valuation goes on without reading what came before.

    `table` is (players, rows, classes), zero at time 0; `is_seen` says which of the rows were ever uploaded. Next to
    be read is a record of the transcript, after `unstamped` uploads that no time stamp has followed yet.
    """

    table: Floats
    is_seen: NDArray[np.bool_]
    budget: Budget
    n_rounds: int = 0
    next_record: int = 1
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
) -> Rounds:
    """Return the values of the rounds from `first_round` on; `replay` goes along with them, up to the last.

    `progress` is called with the number of rounds done.
    """
    place = np.full(training.n_samples, -1, np.int32 if training.n_samples < 2**31 else np.int64)
    place[rows] = np.arange(len(rows))
    parts, segment, n_elements = list[Rounds](), list[UploadsOfRound](), 0

    def flush() -> None:
        if segment:
            parts.append(_value_segment(training, rows, replay.table, segment, stream))
            for uploads in segment:
                apply(replay.table, uploads)
            segment.clear()

    for recorded in training.rounds(replay.next_record, replay.unstamped):
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
    replay.next_record = training.transcript.n_records + 1
    return Rounds.joined(parts) if parts else Rounds.none(len(training.clients) + 1)


def _value_segment(
    training: Training, rows: NDArray[np.intp], table: Array, segment: Sequence[UploadsOfRound], stream: Stream
) -> Rounds:
    n_clients = len(training.clients)
    labels = training.labels[rows]
    parts = split(len(rows), chunk_size(n_clients, training.n_classes))
    edges = [part.start for part in parts] + [len(rows)]
    cut = [_cut(uploads, edges) for uploads in segment]

    def chunks() -> Iterator[ReplayChunk]:
        for number, part in enumerate(parts):
            yield ReplayChunk(
                number,
                training.loss,
                labels[part],
                n_clients,
                len(segment),
                training.n_classes,
                np.ascontiguousarray(table[:, part]),
                [of_round[number] for of_round in cut],
            )

    return stream.value(chunks, len(segment), n_clients, len(rows))


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


def _cut(uploads: UploadsOfRound, edges: Sequence[int]) -> list[UploadsOfRound]:
    """Return the uploads for each chunk of samples, numbered within it."""
    where = [np.searchsorted(samples, edges) for samples in uploads.samples]
    result = []
    for number in range(len(edges) - 1):
        first = edges[number]
        slices = [slice(ends[number], ends[number + 1]) for ends in where]
        samples = [s[part] - s.dtype.type(first) for s, part in zip(uploads.samples, slices, strict=True)]
        embeddings = [e[part] for e, part in zip(uploads.embeddings, slices, strict=True)]
        result.append(UploadsOfRound(uploads.players, samples, embeddings))
    return result
