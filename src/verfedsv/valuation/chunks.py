"""Samples of a training in some of its rounds, in a form that can be sent to another process.

A round is a list of changes, whatever the mode of the training: uploads, or what completion found. A chunk applies them
to a table of embeddings and yields the game of each round, from the embeddings before and after it. Rounds are cut into
chunks of all samples that fit in memory, and these by samples into the chunks that a backend values.

Players are the clients in their order and, last, the server with its own part of the sum. The server is a player of a
game only if it moved in that round.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.compiled import compiled
from verfedsv.losses import Loss
from verfedsv.shapley.factor_sums import FactoredRounds
from verfedsv.shapley.game import Game, RoundGame
from verfedsv.vectors import LANES, fill, load, load_first, store

if TYPE_CHECKING:
    from verfedsv.heads import HeadMove
    from verfedsv.shapley.head_game import HeadGame
    from verfedsv.valuation.heads import TrainedHead

State = tuple[str, ...]
"""The hashes of the parameters of a head."""

MOST_ELEMENTS = 2**22
"""How many uploaded numbers, offsets included, are held in memory and valued together."""


class Change(NamedTuple):
    """The new embeddings of a player in a round.

    `values` are those of `samples`, (samples, classes). If `samples` is None, all samples changed, and `values` are
    weights, (classes, rank), that the player's factors of the samples, (samples, rank), are multiplied by.
    """

    player: int
    samples: Array | None
    values: Array


Changes = Sequence[Change]
"""What changed in a round, in the order of the uploads. Players without a change keep their embeddings."""


class Round(NamedTuple):
    """What changed in a round, and the hashes of the head's parameters after it, if it has any."""

    changes: Changes
    state: State = ()


SampleFactors = Mapping[int, Floats]
"""The factors of the samples, (samples, rank), of each player whose changes are weights."""


class Columns(NamedTuple):
    """Factors as the compiled loop takes them: of all players stacked, (ranks, samples), rows contiguous.

    Those of a player begin with row `starts[player]`.
    """

    rows: Floats
    starts: Mapping[int, int]

    @classmethod
    def of(cls, factors: SampleFactors) -> Columns:
        """Return a copy of factors in that form."""
        starts = cls.starts_of(factors)
        n_ranks = sum(own.shape[1] for own in factors.values())
        rows = np.empty((n_ranks, max((len(own) for own in factors.values()), default=0)))
        for player, own in factors.items():
            rows[starts[player] : starts[player] + own.shape[1]] = own.T
        return cls(rows, starts)

    @staticmethod
    def starts_of(factors: SampleFactors) -> dict[int, int]:
        """Return the first row of each player, in the order of the players."""
        starts, n_ranks = dict[int, int](), 0
        for player, own in sorted(factors.items()):
            starts[player] = n_ranks
            n_ranks += own.shape[1]
        return starts


def rows_of(factors: SampleFactors) -> Floats:
    """Return the factors of all players as rows, (ranks, samples)."""
    return Columns.of(factors).rows


class Weights(NamedTuple):
    """The changes of some rounds in which all samples of every player change or none, as the compiled loop takes them.

    `values`, (rounds, classes, ranks), are those of all players with factors, stacked as their columns; `moved`,
    (rounds, players), says who changes.
    """

    values: Floats
    moved: NDArray[np.bool_]

    @classmethod
    def of(cls, rounds: Sequence[Round], factors: SampleFactors, n_players: int, n_classes: int) -> Weights | None:
        """Return rounds in that form, or None if some samples of a player change without the others."""
        if not factors or any(change.samples is not None for changes, _ in rounds for change in changes):
            return None
        starts = Columns.starts_of(factors)
        values = np.zeros((len(rounds), n_classes, sum(own.shape[1] for own in factors.values())))
        moved = np.zeros((len(rounds), n_players), np.bool_)
        for t, (changes, _) in enumerate(rounds):
            for player, _, weights in changes:
                values[t, : len(weights), starts[player] : starts[player] + weights.shape[1]] = weights
                moved[t, player] = True
        return cls(values, moved)


def apply(table: Floats, changes: Changes, columns: Columns) -> None:
    """Write changes to a table of embeddings, (players, samples, classes), in their order."""
    for is_of_all, group in groupby(changes, lambda change: change.samples is None):
        if is_of_all:  # in one call: threads wait for the interpreter between calls
            own = list(group)
            players = np.array([change.player for change in own])
            starts = np.array([columns.starts[change.player] for change in own])
            ranks = np.array([change.values.shape[1] for change in own])
            weights = np.concatenate([_padded(change.values, table.shape[2]) for change in own], axis=1)
            _multiply(columns.rows, starts, ranks, weights, players, table)
        else:
            for player, samples, values in group:
                table[player, samples, : values.shape[1]] = values


def _padded(weights: Floats, n_rows: int) -> Floats:
    """Return weights, (width, rank), with rows of zeros for the widths that other players have."""
    return weights if len(weights) == n_rows else np.pad(weights, ((0, n_rows - len(weights)), (0, 0)))


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

    for changes, state in rounds:
        yield Round([of_change(change) for change in changes], state)


def together(rounds: Iterable[Round]) -> list[Change]:
    """Return the changes of several rounds, without those that a later change of all samples overwrites."""
    result: list[Change] = []
    for changes, _ in rounds:
        if overwritten := {change.player for change in changes if change.samples is None}:
            result = [change for change in result if change.player not in overwritten]
        result += changes
    return result


@dataclass(frozen=True, eq=False)
class Chunk:
    """Samples of a training in consecutive rounds.

    `labels` are encoded. `table`, (players, samples, width), has the embeddings before the first of the `rounds`; a
    server that has no part in any of them need not have a row. Under a sum, the width is the number of classes; under a
    `head`, the largest of all clients, whose other columns are zero. `state` is that of the head before the first
    round. `index` counts the chunks of the same rounds.
    """

    loss: Loss
    labels: Array
    n_clients: int
    table: Floats
    rounds: Sequence[Round]
    factors: SampleFactors
    index: int = 0
    head: TrainedHead | None = None
    state: State = ()

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    @property
    def width(self) -> int:
        return int(self.table.shape[2])

    @property
    def n_rounds(self) -> int:
        return len(self.rounds)

    def part(self, samples: slice, index: int) -> Chunk:
        """Return some of the samples, in all rounds; the samples of every change must be sorted."""
        is_of_all = self.weights is not None
        result = replace(
            self,
            labels=self.labels[samples],
            table=np.ascontiguousarray(self.table[:, samples]),
            rounds=self.rounds
            if is_of_all
            else [Round([_cut(each, samples) for each in changes], state) for changes, state in self.rounds],
            factors={player: own[samples] for player, own in self.factors.items()},
            index=index,
        )
        vars(result)["weights"] = self.weights  # the same for all parts
        return result

    @cached_property
    def weights(self) -> Weights | None:
        """The changes of all rounds as weights, or None if some samples of a player change without the others."""
        return Weights.of(self.rounds, self.factors, len(self.table), self.width)

    def factored(self, stack: Callable[[SampleFactors], Any] = rows_of) -> FactoredRounds | None:
        """Return all rounds as products of factors, or None if some samples of a player change without the others.

        Under a head there is no loop for that, and the result is None. `stack` makes rows of the factors of all
        players, (ranks, samples).
        """
        if self.weights is None or self.head is not None:
            return None
        values, moved = self.weights
        # A server without a part in the sum is no player.
        has_server = moved[:, self.n_clients :].any() or self.table[self.n_clients :].any()
        n_players = len(self.table) if has_server else self.n_clients
        ranks = [self.factors[player].shape[1] if player in self.factors else 0 for player in range(n_players)]
        return FactoredRounds(
            stack(self.factors),
            np.cumsum([0, *ranks]),
            values,
            np.ascontiguousarray(moved[:, :n_players]),
            self.table[:n_players],
        )

    @property
    def last_state(self) -> State:
        """The state of the head after the last round."""
        return self.rounds[-1].state if self.rounds else self.state

    def advance(self) -> None:
        """Bring the table to the end of the last round."""
        for change in together(self.rounds):  # one at a time: columns are copies of factors
            own = {player: own for player, own in self.factors.items() if player == change.player}
            apply(self.table, [change], Columns.of(own))

    def games(self, only: Collection[int] | None = None) -> Iterator[tuple[int, Game]]:
        """Yield index and game of each round in which anything changed, or of `only` some of them, in order.

        A game has only the samples that changed: the others do not change the loss. The arrays of one game are
        overwritten by the next.
        """
        table, following, columns = self.table.copy(), np.empty_like(self.table), Columns.of(self.factors)
        skipped: list[Round] = []
        for t, (changes, _) in enumerate(self.rounds):
            if only is not None and t not in only:
                skipped.append(self.rounds[t])
                continue
            apply(table, together(skipped), columns)
            skipped.clear()
            move = None if self.head is None else self.head.move(self._state_before(t), self._state_before(t + 1))
            is_changed, server_moved = self._find_changed(table, changes, columns)
            n_players = self.n_clients + server_moved
            if is_changed.all() or (move is not None and move.is_move):
                # Two tables in turn: completed embeddings are written, and never copied.
                written = {change.player for change in changes if change.samples is None}
                for player in set(range(len(table))) - written:
                    following[player] = table[player]
                apply(following, changes, columns)
                table, following = following, table
                yield t, self._game(following, table, n_players, self.labels, move)
            elif is_changed.any():
                changed = np.flatnonzero(is_changed)
                previous = table.take(changed, axis=1)  # contiguous, as [:, changed] is not
                apply(table, changes, columns)
                yield t, self._game(previous, table.take(changed, axis=1), n_players, self.labels[changed], move)

    def _state_before(self, t: int) -> State:
        """Return the state of the head before round t of this chunk."""
        return self.state if t == 0 else self.rounds[t - 1].state

    def _game(
        self, previous: Floats, current: Floats, n_players: int, labels: Array, move: HeadMove | None
    ) -> RoundGame | HeadGame:
        """Return the game of some samples, from their tables before and after a round, for the calling thread."""
        if self.head is not None and move is not None:
            return self.head.game(previous, current, labels, self.loss, move)
        server_stays = len(previous) > self.n_clients == n_players
        offset = previous[self.n_clients] if server_stays else None
        return RoundGame(previous[:n_players], current[:n_players], labels, self.loss, offset, n_threads=1)

    def _find_changed(self, table: Floats, changes: Changes, columns: Columns) -> tuple[NDArray[np.bool_], bool]:
        """Return which samples change in a round, (samples,), and whether the server moves.

        Everything that clients upload counts as changed; the server's own part only where it differs from the table.
        """
        is_changed, server_moved = np.zeros(self.n_samples, bool), False
        for player, samples, values in changes:
            if player < self.n_clients:
                is_changed[slice(None) if samples is None else samples] = True
                continue
            before = table[player]
            if samples is None:
                after = np.empty_like(before)
                start = columns.starts[player]
                apply(after[np.newaxis], [Change(0, None, values)], Columns(columns.rows, {0: start}))
                differs = np.flatnonzero((before != after).any(axis=1))
            else:
                differs = samples[(before[samples] != values).any(axis=1)]
            is_changed[differs] = True
            server_moved |= len(differs) > 0
        return is_changed, server_moved


def chunks_of_rounds(start: Chunk, rounds: Iterable[Round], most_rounds: int | None = None) -> Iterator[Chunk]:
    """Yield rounds of all samples, as many at a time as memory allows, or `most_rounds`.

    All chunks share the table of `start`, which is advanced from one to the next.
    """
    chunk = start
    for held in _held_together(rounds, most_rounds):
        chunk.advance()
        chunk = replace(start, rounds=held, state=chunk.last_state)
        yield chunk


def _held_together(rounds: Iterable[Round], most_rounds: int | None) -> Iterator[list[Round]]:
    held, n_elements = list[Round](), 0
    for each in rounds:
        held.append(each)
        n_elements += sum(change.values.size for change in each.changes)
        if n_elements >= MOST_ELEMENTS or len(held) == most_rounds:
            yield held
            held, n_elements = [], 0
    if held:
        yield held


def _cut(change: Change, part: slice) -> Change:
    """Return the part of a change within a slice of samples, as positions in it."""
    player, samples, values = change
    if samples is None:
        return change
    first, last = np.searchsorted(samples, (part.start, part.stop))
    return Change(player, samples[first:last] - samples.dtype.type(part.start), values[first:last])


@compiled
def _multiply(columns: Floats, starts: Array, ranks: Array, weights: Floats, players: Array, table: Floats) -> None:
    """Write the embeddings of some players for all samples into a table: their weights times their columns.

    `weights`, (classes, ranks), are those of all these players side by side. Products are added in the same order as
    where rounds are valued from their factors.
    """
    n_samples, n_classes = columns.shape[1], len(weights)
    lines, first_weight = np.empty(n_classes * LANES), 0
    for k in range(len(players)):
        for i in range(0, n_samples, LANES):
            n = min(LANES, n_samples - i)
            for c in range(n_classes):
                total = fill(0.0)
                for a in range(ranks[k]):
                    at = (starts[k] + a) * n_samples + i
                    column = load(columns, at) if n == LANES else load_first(columns, at, n)
                    total = total + column * weights[c, first_weight + a]
                store(lines, c * LANES, total)
            if n_classes == 1 and n == LANES:
                store(table, players[k] * n_samples + i, load(lines, 0))
            else:
                for j in range(n):
                    for c in range(n_classes):
                        table[players[k], i + j, c] = lines[c * LANES + j]
        first_weight += ranks[k]
