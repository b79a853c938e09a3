"""Some samples of a training, round by round, in a form that can be sent to another process.

A round is a list of changes, whatever the mode of the training: what players uploaded, or what completion found. A
chunk applies them to a table of embeddings and yields one `Block` per round: the embeddings before and after.

Players are the clients in their order and, last, the server with its own part of the sum. A block has a row for the
server only if the server moved in that round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedsv.compiled import compiled
from verfedsv.losses import Array, Floats, Loss
from verfedsv.shapley.game import Block


class Change(NamedTuple):
    """What the embeddings of a player became in a round.

    `values` are those of `samples`, (samples, classes). If `samples` is None, all samples changed, and `values` are
    the weights (classes, rank) that the player's `columns`, (rank, samples), are multiplied by.
    """

    player: int
    samples: Array | None
    values: Array


Round = Sequence[Change]
"""What changed in a round, in the order of the uploads. Players without a change keep their embeddings."""

Columns = Mapping[int, Floats]
"""Of each player whose changes are weights, the factors of the samples, (rank, samples), each row contiguous."""


def apply(table: Floats, changes: Round, columns: Columns) -> None:
    """Write changes to a table of embeddings, (players, samples, classes), in their order."""
    for player, samples, values in changes:
        if samples is None:
            _multiply(columns[player], values, table[player].reshape(-1))
        else:
            table[player, samples] = values


def together(rounds: Iterable[Round]) -> list[Change]:
    """Return the changes of several rounds, without those that a later change of all samples overwrites."""
    result: list[Change] = []
    for changes in rounds:
        if overwritten := {change.player for change in changes if change.samples is None}:
            result = [change for change in result if change.player not in overwritten]
        result += changes
    return result


@dataclass(frozen=True, eq=False)
class Chunk:
    """Samples of a training, in all rounds or in some that follow each other.

    `index` is that of the chunk in its training. `labels` are encoded. `table`, (players, samples, classes), are
    the embeddings before the first of the `rounds`; a server that has no part in any of them need not have a row.
    """

    index: int
    loss: Loss
    labels: Array
    n_clients: int
    table: Floats
    rounds: Sequence[Round]
    columns: Columns

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    @property
    def n_classes(self) -> int:
        return int(self.table.shape[2])

    @property
    def n_rounds(self) -> int:
        return len(self.rounds)

    def blocks(self, only: Collection[int] | None = None) -> Iterator[Block]:
        """Yield the rounds in which anything changed, or `only` some of them, in order, numbered from 0 on.

        Only the samples that changed are in a block: the others do not change the loss. The arrays of one block are
        overwritten by the next.
        """
        table, following = self.table.copy(), np.empty_like(self.table)
        skipped: list[Round] = []
        for t, changes in enumerate(self.rounds):
            if only is not None and t not in only:
                skipped.append(changes)
                continue
            apply(table, together(skipped), self.columns)
            skipped.clear()
            is_changed, server_moved = self._find_changed(table, changes)
            n_players = self.n_clients + server_moved
            if is_changed.all():
                # Two tables in turn: completed embeddings are written, and never copied.
                written = {change.player for change in changes if change.samples is None}
                for player in set(range(len(table))) - written:
                    following[player] = table[player]
                apply(following, changes, self.columns)
                table, following = following, table
                yield self._block(t, following, table, n_players, self.labels)
            elif is_changed.any():
                changed = np.flatnonzero(is_changed)
                previous = table.take(changed, axis=1)  # contiguous, as [:, changed] is not
                apply(table, changes, self.columns)
                yield self._block(t, previous, table.take(changed, axis=1), n_players, self.labels[changed])

    def _block(self, t: int, previous: Floats, current: Floats, n_players: int, labels: Array) -> Block:
        """Return a round of some samples, from their tables before and after it."""
        server_stays = len(previous) > self.n_clients == n_players
        offset = previous[self.n_clients] if server_stays else None
        before, after = (table[:n_players].reshape(n_players, -1) for table in (previous, current))
        return Block(t, before, after, 0, self.n_classes, labels, offset)

    def _find_changed(self, table: Floats, changes: Round) -> tuple[NDArray[np.bool_], bool]:
        """Return the samples that change in a round, (samples,), and whether the server is among those who move.

        All that clients upload counts. The server may repeat itself: only what differs from the table does.
        """
        is_changed, server_moved = np.zeros(self.n_samples, bool), False
        for player, samples, values in changes:
            if player < self.n_clients:
                is_changed[slice(None) if samples is None else samples] = True
                continue
            before = table[player]
            if samples is None:
                after = np.empty_like(before)
                apply(after[np.newaxis], [Change(0, None, values)], {0: self.columns[player]})
                differs = np.flatnonzero((before != after).any(axis=1))
            else:
                differs = samples[(before[samples] != values).any(axis=1)]
            is_changed[differs] = True
            server_moved |= len(differs) > 0
        return is_changed, server_moved


@compiled
def _multiply(columns: Floats, weights: Floats, result: Floats) -> None:
    """Write the embeddings of all samples, (samples * classes,): weights (classes, rank) times columns."""
    rank, n_samples = columns.shape
    n_classes = len(weights)
    # 512 at a time: they stay in the first-level cache while the rank goes by. Class by class, as loops over a few
    # classes are not vectorised.
    of_class = np.empty(512)
    for first in range(0, n_samples, 512):
        last = min(first + 512, n_samples)
        for c in range(n_classes):
            part = result[first:last] if n_classes == 1 else of_class[: last - first]
            part[:] = 0.0
            for a in range(rank):
                column, weight = columns[a, first:last], weights[c, a]
                for i in range(len(part)):
                    part[i] += weight * column[i]
            if n_classes > 1:
                interleaved = result[first * n_classes + c : last * n_classes]
                for i in range(len(part)):
                    interleaved[i * n_classes] = part[i]
