"""Rounds replayed onto a table of embeddings, a segment of them at a time, from which chunks are cut."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from verfedsv.losses import Array, Floats, Loss
from verfedsv.transcript import Upload
from verfedsv.valuation.chunks import Change, Chunk, Columns, Round, apply, together
from verfedsv.valuation.stream import Budget
from verfedsv.valuation.trainings import RecordedTraining

SEGMENT_ELEMENTS, SEGMENT_ROUNDS = 2**22, 64
"""The most numbers, offsets included, and rounds that are held in memory and valued together."""


@dataclass(eq=False)
class Replay:
    """The server's table after some rounds, from which a later valuation continues without reading earlier records.

    `table` is (players, rows, classes), zero at the start; `is_seen` marks the rows that were ever uploaded.
    `next_record` of the transcript is read next; `unstamped` are uploads that no time stamp has followed yet.
    """

    table: Floats
    is_seen: NDArray[np.bool_]
    budget: Budget
    n_rounds: int = 0
    next_record: int = 1
    unstamped: list[Upload] = field(default_factory=list)

    @classmethod
    def begin(cls, training: RecordedTraining, rows: NDArray[np.intp], tolerance: float) -> Replay:
        """Return the table before the first round."""
        shape = len(training.clients) + 1, len(rows), training.n_classes
        return cls(np.zeros(shape), np.zeros(len(rows), bool), Budget(tolerance))

    def follow(self, rounds: Iterable[Round]) -> Iterator[Round]:
        """Yield rounds of the rows, and note which rows clients uploaded in them."""
        server = len(self.table) - 1
        for changes in rounds:
            for player, samples, _ in changes:
                if player != server and samples is not None:
                    self.is_seen[samples] = True
            self.n_rounds += 1
            yield changes

    def columns(self, part: slice) -> Columns:
        """Return what the weights of changes for all samples are multiplied by: an intercept of the server's by 1."""
        return {len(self.table) - 1: np.ones((1, part.stop - part.start))}

    def copy(self) -> Replay:
        """Return a copy that can be advanced independently."""
        own = replace(self, budget=replace(self.budget), unstamped=list(self.unstamped))
        own.table, own.is_seen = self.table.copy(), self.is_seen.copy()
        return own


def of_rows(rounds: Iterable[Round], rows: NDArray[np.intp], n_samples: int) -> Iterator[Round]:
    """Yield rounds with samples as positions in the sorted `rows`, in that order; other samples are omitted."""
    position = np.full(n_samples, -1, np.int32 if n_samples < 2**31 else np.int64)
    position[rows] = np.arange(len(rows))

    def of_change(change: Change) -> Change:
        if change.samples is None:
            return change
        positions = position[change.samples]
        order = np.argsort(positions, kind="stable")
        order = order[np.searchsorted(positions, 0, sorter=order) :]
        return Change(change.player, positions[order], change.values[order])

    for changes in rounds:
        yield [of_change(change) for change in changes]


@dataclass(frozen=True, eq=False)
class RoundSegment:
    """Rounds that are held and valued together; `table`, (players, rows, classes), is what they begin with.

    `labels` are encoded. `columns` returns what the weights of changes of all samples in a part are multiplied by.
    """

    loss: Loss
    labels: Array
    n_clients: int
    table: Floats
    rounds: Sequence[Round]
    columns: Callable[[slice], Columns]

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    @property
    def n_rounds(self) -> int:
        return len(self.rounds)

    @property
    def n_classes(self) -> int:
        return int(self.table.shape[2])

    def chunk(self, part: slice, index: int) -> Chunk:
        """Return some of the samples in all rounds; `index` counts the chunks from 0 on."""
        rounds = [[_cut(change, part) for change in changes] for changes in self.rounds]
        table = np.ascontiguousarray(self.table[:, part])
        return Chunk(index, self.loss, self.labels[part], self.n_clients, table, rounds, self.columns(part))

    def advance(self) -> None:
        """Let the table be that after the last of the rounds."""
        apply(self.table, together(self.rounds), self.columns(slice(0, self.n_samples)))


def segments(
    training: RecordedTraining,
    rows: NDArray[np.intp],
    rounds: Iterable[Round],
    table: Floats,
    columns: Callable[[slice], Columns],
    most_rounds: int | None = None,
) -> Iterator[RoundSegment]:
    """Yield rounds of the rows in segments, each as long as memory allows, or of `most_rounds`.

    All have the same table, which is advanced from one to the next; most often there is only one.
    """
    labels, segment = training.labels[rows], None
    for held in _held_together(rounds, most_rounds):
        if segment is not None:
            segment.advance()
        segment = RoundSegment(training.loss, labels, len(training.clients), table, held, columns)
        yield segment


def _held_together(rounds: Iterable[Round], most_rounds: int | None) -> Iterator[list[Round]]:
    held, n_elements = list[Round](), 0
    for changes in rounds:
        held.append(changes)
        n_elements += sum(change.values.size for change in changes)
        if n_elements >= SEGMENT_ELEMENTS or len(held) == most_rounds:
            yield held
            held, n_elements = [], 0
    if held:
        yield held


def _cut(change: Change, part: slice) -> Change:
    """Return a change of the samples of a part, as positions in it."""
    player, samples, values = change
    if samples is None:
        return change
    first, last = np.searchsorted(samples, (part.start, part.stop))
    return Change(player, samples[first:last] - samples.dtype.type(part.start), values[first:last])
