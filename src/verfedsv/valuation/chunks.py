"""Some samples of a training, round by round, in a form that can be sent to another process.

A chunk yields one `Block` per round, numbered from 0 on: the embeddings of its samples before and after. Synchronous
and asynchronous training differ only in how these are made.

Players are the clients in their order and, last, the server with its own part of the sum. A block has a row for the
server only if the server moved in that round.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from verfedsv.compiled import compiled
from verfedsv.completion.factors import Factors
from verfedsv.losses import Array, Floats, Loss
from verfedsv.shapley.game import Block


@dataclass(frozen=True, eq=False)
class Chunk(ABC):
    """Samples of a training. `labels` are encoded; `number` counts the chunks of a training from 0 on."""

    number: int
    loss: Loss
    labels: Array
    n_clients: int
    n_rounds: int
    n_classes: int

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    @abstractmethod
    def blocks(self, only: Collection[int] | None = None) -> Iterator[Block]:
        """Yield the rounds in which anything changed, or `only` some of them, in order.

        The arrays of one are overwritten by the next.
        """


@dataclass(frozen=True, eq=False)
class FactorChunk(Chunk):
    """Embeddings from low-rank factors, one of each player; before the first round all are zero."""

    factors: Sequence[Factors]

    def blocks(self, only: Collection[int] | None = None) -> Iterator[Block]:
        shape = len(self.factors), self.n_samples * self.n_classes
        previous, current = np.zeros(shape), np.empty(shape)
        columns = [np.ascontiguousarray(samples.T) for _, samples in self.factors]
        known = -1
        for t in range(self.n_rounds) if only is None else sorted(only):
            if known < t - 1:
                self._reconstruct(columns, t - 1, previous)
            self._reconstruct(columns, t, current)
            yield Block(t, previous, current, 0, self.n_classes, self.labels, offset=None)
            previous, current, known = current, previous, t

    def _reconstruct(self, columns: Sequence[Floats], t: int, embeddings: Floats) -> None:
        for m, (rounds, _) in enumerate(self.factors):
            _reconstruct(columns[m], rounds[t], embeddings[m])


@compiled
def _reconstruct(columns: Floats, weights: Floats, result: Floats) -> None:
    """Write the embeddings of all samples in a round: weights (classes, rank) times columns (rank, samples)."""
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


@dataclass(frozen=True, eq=False)
class UploadsOfRound:
    """What changed in a round: for each upload the player, the samples (of a chunk or of all) and their embeddings."""

    players: Sequence[int]
    samples: Sequence[Array]
    embeddings: Sequence[Array]

    def __iter__(self) -> Iterator[tuple[int, Array, Array]]:
        return zip(self.players, self.samples, self.embeddings, strict=True)


@dataclass(frozen=True, eq=False)
class ReplayChunk(Chunk):
    """Embeddings as the server holds them: its table, (players, samples, classes), and what was uploaded from there on.

    Only the samples that change in a round are in its block: the others do not change the loss. When the server moves,
    these are all for which it does.
    """

    table: Floats
    uploads: Sequence[UploadsOfRound]

    def blocks(self, only: Collection[int] | None = None) -> Iterator[Block]:
        table, server = self.table.copy(), self.n_clients
        for t, uploads in enumerate(self.uploads):
            if only is not None and t not in only:
                apply(table, uploads)
                continue
            is_changed = np.zeros(self.n_samples, bool)
            n_players = self.n_clients
            for player, samples, embeddings in uploads:
                if player == server:
                    samples = samples[(table[server, samples] != embeddings).any(axis=1)]
                    n_players += len(samples) > 0
                is_changed[samples] = True
            changed = np.flatnonzero(is_changed)
            previous = table[:n_players, changed]
            apply(table, uploads)
            if len(changed) == 0:
                continue
            current = table[:n_players, changed]
            offset = None if n_players > server else table[server, changed]
            flat = n_players, -1
            labels = self.labels[changed]
            yield Block(t, previous.reshape(flat), current.reshape(flat), 0, self.n_classes, labels, offset)


def apply(table: Floats, uploads: UploadsOfRound) -> None:
    """Write uploads to a table of embeddings, (players, samples, classes), in their order."""
    for player, samples, embeddings in uploads:
        table[player, samples] = embeddings
