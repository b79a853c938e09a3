"""A training cut into pieces of its samples on disk: what completion and valuation read of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.completion.factors import CompiledSolver, Fit, LastSweep
from verfedsv.completion.parts import Equations, Part, solve_all, take_samples
from verfedsv.completion.sweeps import Observed
from verfedsv.losses import Loss
from verfedsv.threads import ordered_map
from verfedsv.valuation.chunks import Change, Chunk, Round, State
from verfedsv.valuation.scratch import Scratch
from verfedsv.valuation.shuffle import read_uploads

if TYPE_CHECKING:
    from verfedsv.valuation.heads import TrainedHead

Result = TypeVar("Result")

LABELS, ROWS, FACTORS, WEIGHTS = "labels", "rows", "factors-{}-{}", "weights"
"""Names of files: labels of all samples; the rows to value; factors of the samples, for each player and part; factors
of the rounds."""


@dataclass(frozen=True, eq=False)
class Extents:
    """Where the uploads of a player lie in the pieces, (pieces, 6), and what they are."""

    player: int
    of_pieces: NDArray[np.int64]
    width: int
    precision: str


@dataclass(eq=False)
class StoredPart(Part):
    """The uploads of a player in a part of the samples: some pieces, of which one at a time is read."""

    scratch: Scratch
    first: int
    extents: Extents
    n_samples: int
    n_seen: int

    def pieces(self) -> Iterator[Observed]:
        own = self.extents
        for j, extent in enumerate(own.of_pieces, self.first):
            yield read_uploads(self.scratch, j, extent, own.width, own.precision)


def store_factors(part: StoredPart, equations: Equations, index: int) -> None:
    """Solve for the samples of a part and write their factors."""
    solved = (solve_all(piece, equations) for piece in part.pieces())
    part.scratch.save_rows(FACTORS.format(part.extents.player, index), (part.n_samples, equations.rank), solved)


@dataclass
class StoredSolver(CompiledSolver):
    """A solver that writes its fits and its last sweep to a scratch folder, and continues from them.

    A task asks `parts_each` parts, one after the other: a scheduler takes 2 ms for each task.
    """

    scratch: Scratch = field(kw_only=True)
    player: int = field(kw_only=True)
    parts_each: int = field(kw_only=True, default=1)

    def _map(self, function: Callable[[Part], Result]) -> Iterator[Result]:
        parts, size = self.observations.parts, self.parts_each
        groups = [parts[first : first + size] for first in range(0, len(parts), size)]
        return chain.from_iterable(ordered_map(partial(_each, function), groups, self.workers))

    def fit(self, rounds: Floats, *, uses_all: bool, n_sweeps: int | None = None) -> Fit:
        name = f"fit-{self.player}-{len(self.fit_sweeps)}"
        if self.scratch.has(f"{name}.npz"):
            kept = self.scratch.load(name)
            self.fit_sweeps.append(int(kept["n_sweeps"]))
            rank = kept["rounds"].shape[2]
            equations = Equations(kept["by_round"], kept["lines"], rank, self.regularization, uses_all)
            return Fit(kept["rounds"], equations)
        fit = super().fit(rounds, uses_all=uses_all, n_sweeps=n_sweeps)
        by_round, lines, *_ = fit.equations
        n_done = self.fit_sweeps[-1]
        self.scratch.save(name, {"rounds": fit.rounds, "by_round": by_round, "lines": lines, "n_sweeps": n_done})
        return fit

    def _begin(self, rounds: Floats) -> LastSweep:
        if self.scratch.has(f"sweep-{self.player}.npz"):
            kept = self.scratch.load(f"sweep-{self.player}")
            if kept["fit"] == len(self.fit_sweeps):
                return LastSweep(int(kept["number"]), kept["rounds"], float(kept["left"]))
        return super()._begin(rounds)

    def _note(self, last: LastSweep) -> None:
        self.scratch.save(f"sweep-{self.player}", {"fit": len(self.fit_sweeps), **last._asdict()})


def _each(function: Callable[[Part], Result], parts: Sequence[Part]) -> list[Result]:
    return [function(part) for part in parts]


@dataclass(frozen=True, eq=False)
class StoredTraining:
    """A training in pieces, from which chunks of rows are read where they are valued; it can be sent there.

    `part_edges` are the first samples of the parts, `piece_edges` those of the pieces. `factored` has the rounds of
    each player whose embeddings are products of factors there, which are 1 for an intercept of the server; `uploaded`
    those of each player whose embeddings are its uploads, and `extents` where these lie.
    """

    scratch: Scratch
    loss: Loss
    head: TrainedHead | None
    n_clients: int
    width: int
    n_rows: int
    states: tuple[State, ...]
    first_state: State
    part_edges: NDArray[np.int64]
    piece_edges: NDArray[np.int64]
    extents: Mapping[int, Extents]
    factored: Mapping[int, Array]
    uploaded: Mapping[int, Array]
    _read: OrderedDict[tuple[int, int], Observed] = field(default_factory=OrderedDict, repr=False)

    @property
    def n_samples(self) -> int:
        return self.n_rows

    @property
    def n_rounds(self) -> int:
        return len(self.states)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_read": OrderedDict()}

    @cached_property
    def weights(self) -> dict[int, Floats]:
        """The factors of the rounds, (rounds, classes, rank), of each player whose embeddings are products."""
        return {int(name): array for name, array in self.scratch.load(WEIGHTS).items()}

    def part(self, rows: slice, index: int) -> Chunk:
        """Return some of the rows, in all rounds."""
        return self.chunk(np.array(self.scratch.mapped(ROWS)[rows]), index)

    def chunk(self, samples: NDArray[np.intp], index: int = 0) -> Chunk:
        """Return samples, sorted, in all rounds."""
        n_players = self.n_clients + 1
        changes: list[list[Change]] = [[] for _ in self.states]
        for player in range(n_players):
            if player in self.factored:
                for t, weights in zip(self.factored[player].tolist(), self.weights[player], strict=True):
                    changes[t].append(Change(player, None, weights))
            if player in self.uploaded:
                for t, change in self._uploads(player, samples):
                    changes[t].append(change)
        rounds = [Round(own, state) for own, state in zip(changes, self.states, strict=True)]
        labels = np.array(self.scratch.mapped(LABELS)[samples])
        table = np.zeros((n_players, len(samples), self.width))
        factors = {player: self._factors(player, samples) for player in self.factored}
        return Chunk(self.loss, labels, self.n_clients, table, rounds, factors, index, self.head, self.first_state)

    def _factors(self, player: int, samples: NDArray[np.intp]) -> Floats:
        if not self.scratch.has(f"{FACTORS.format(player, 0)}.npy"):
            return np.ones((len(samples), 1))  # an intercept of the server
        parts = np.searchsorted(self.part_edges, samples, side="right") - 1
        found = [
            np.array(self.scratch.mapped(FACTORS.format(player, p))[samples[parts == p] - self.part_edges[p]])
            for p in np.unique(parts)
        ]
        return np.concatenate(found)

    def _uploads(self, player: int, samples: NDArray[np.intp]) -> Iterator[tuple[int, Change]]:
        """Yield the uploads of some samples, with the index of the round."""
        pieces = np.searchsorted(self.piece_edges, samples, side="right") - 1
        found = list[tuple[Array, Array, Array]]()
        for j in np.unique(pieces).tolist():
            own, uploads = np.flatnonzero(pieces == j), self._piece(j, player)
            some = take_samples(uploads, samples[own] - self.piece_edges[j])
            found.append((some.rounds, np.repeat(own, np.diff(some.starts)), some.values))
        rounds, positions, values = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        order = np.argsort(rounds, kind="stable")
        edges = np.searchsorted(rounds[order], np.arange(len(self.uploaded[player]) + 1))
        for t, a, b in zip(self.uploaded[player].tolist(), edges, edges[1:], strict=False):
            yield t, Change(player, positions[order[a:b]], values[order[a:b]])

    def _piece(self, piece: int, player: int) -> Observed:
        """Return the uploads of a player in a piece; those of the last piece are kept."""
        if next(iter(self._read), (piece, 0))[0] != piece:
            self._read.clear()
        if (piece, player) not in self._read:
            own = self.extents[player]
            self._read[piece, player] = read_uploads(
                self.scratch, piece, own.of_pieces[piece], own.width, own.precision
            )
        return self._read[piece, player]
