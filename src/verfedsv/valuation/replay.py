"""Rounds replayed onto a table of embeddings, and valued, a segment of them at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from verfedsv.losses import Floats
from verfedsv.shapley.blocks import split
from verfedsv.transcript import Upload
from verfedsv.valuation.chunks import Change, Chunk, Columns, Round, apply, together
from verfedsv.valuation.stream import Budget, Rounds, Stream, chunk_size
from verfedsv.valuation.trainings import Training

SEGMENT_ELEMENTS, SEGMENT_ROUNDS = 2**22, 64
"""So many numbers, offsets included, of so many rounds are held at a time and valued together."""


@dataclass(eq=False)
class Replay:
    """The server's table after some rounds, from which a later valuation goes on without reading what came before.

    `table` is (players, rows, classes), zero at the start; `is_seen` says which of the rows were ever uploaded. Next
    to be read is a record of the transcript, after `unstamped` uploads that no time stamp has followed yet.
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
        """Return the same, to go on from."""
        own = replace(self, budget=replace(self.budget), unstamped=list(self.unstamped))
        own.table, own.is_seen = self.table.copy(), self.is_seen.copy()
        return own


def of_rows(rounds: Iterable[Round], rows: NDArray[np.intp], n_samples: int) -> Iterator[Round]:
    """Yield rounds with samples as positions in the sorted `rows`, in that order; other samples are left out."""
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


def value_rounds(
    training: Training,
    rows: NDArray[np.intp],
    rounds: Iterable[Round],
    table: Floats,
    columns: Callable[[slice], Columns],
    stream: Stream,
    *,
    most_rounds: int | None = SEGMENT_ROUNDS,
    keeps_table: bool = True,
) -> Iterator[Rounds]:
    """Yield the values of rounds that begin with a table of embeddings, (players, rows, classes), in segments.

    The table goes along with them: to the last of them, or, unless it `keeps_table`, only as far as is needed.
    `columns` returns those of a part of the rows.
    """
    n_clients, labels = len(training.clients), training.labels[rows]
    parts = split(len(rows), chunk_size(n_clients, training.n_classes))
    valued: list[list[Round]] = []

    def advance() -> None:
        for part, of_part in zip(parts, valued, strict=False):
            apply(table[:, part], together(of_part), columns(part))
        valued.clear()

    def chunks() -> Iterator[Chunk]:
        for number, part in enumerate(parts):
            start = np.ascontiguousarray(table[:, part])
            yield Chunk(number, training.loss, labels[part], n_clients, start, valued[number], columns(part))

    for segment in _segments(rounds, most_rounds):
        advance()
        valued += _cut(segment, parts)
        yield stream.value(chunks, len(segment), n_clients, len(rows))
        if keeps_table:
            advance()


def _segments(rounds: Iterable[Round], most_rounds: int | None) -> Iterator[list[Round]]:
    """Yield rounds that are held and valued together."""
    segment, n_elements = list[Round](), 0
    for changes in rounds:
        segment.append(changes)
        n_elements += sum(change.values.size for change in changes)
        if n_elements >= SEGMENT_ELEMENTS or len(segment) == most_rounds:
            yield segment
            segment, n_elements = [], 0
    if segment:
        yield segment


def _cut(rounds: Sequence[Round], parts: Sequence[slice]) -> list[list[Round]]:
    """Return for each part of the rows the changes of its samples, as positions in it."""
    edges = [part.start for part in parts] + [parts[-1].stop]

    def of_change(change: Change) -> list[Change]:
        player, samples, values = change
        if samples is None:
            return [change] * len(parts)
        ends = np.searchsorted(samples, edges).tolist()
        return [
            Change(player, samples[first:last] - samples.dtype.type(part.start), values[first:last])
            for part, (first, last) in zip(parts, pairwise(ends), strict=True)
        ]

    by_round = [[of_change(change) for change in changes] for changes in rounds]
    return [[[cut[number] for cut in changes] for changes in by_round] for number in range(len(parts))]
