"""A training cut into pieces of its samples on disk: what completion and valuation read of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.completion.factors import CompiledSolver, Fit, LastSweep
from verfedsv.completion.parts import Equations, Part, solve_all
from verfedsv.completion.sweeps import Observed
from verfedsv.losses import Loss
from verfedsv.threads import ordered_map
from verfedsv.valuation.chunks import Change, Chunk, Round, State, chunks_of_rounds
from verfedsv.valuation.scratch import Scratch
from verfedsv.valuation.shuffle import read_uploads

if TYPE_CHECKING:
    from verfedsv.valuation.heads import TrainedHead

Result = TypeVar("Result")

LABELS, ROWS, FACTORS, WEIGHTS = "labels", "rows", "factors-{}-{}", "weights"
"""Names of files: labels of all samples; the rows to value; factors of the samples, for each player and part; factors
of the rounds."""


MOST_NUMBERS = 2**20
"""How many uploaded numbers of a chunk are held in memory at a time."""


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

    A task asks `parts_each` parts, one after the other: a scheduler takes 2 ms for each task. Once it `is_over`, as
    another player's fit failed, it raises CancelledError.
    """

    scratch: Scratch = field(kw_only=True)
    player: int = field(kw_only=True)
    is_over: Callable[[], bool] = field(kw_only=True)
    parts_each: int = field(kw_only=True, default=1)

    def _map(self, function: Callable[[Part], Result]) -> Iterator[Result]:
        if self.is_over():
            raise CancelledError
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

    @property
    def n_samples(self) -> int:
        return self.n_rows

    @property
    def n_rounds(self) -> int:
        return len(self.states)

    @cached_property
    def weights(self) -> dict[int, Floats]:
        """The factors of the rounds, (rounds, classes, rank), of each player whose embeddings are products."""
        return {int(name): array for name, array in self.scratch.load(WEIGHTS).items()}

    def part(self, rows: slice, index: int) -> Iterator[Chunk]:
        """Yield some of the rows in all rounds, as many at a time as memory allows."""
        samples = np.array(self.scratch.mapped(ROWS)[rows])
        at_once = self._rounds_at_once(samples)
        return chunks_of_rounds(self._begin(samples, index), self._rounds(samples, at_once), at_once)

    def chunk(self, samples: NDArray[np.intp]) -> Chunk:
        """Return samples, sorted, in all rounds."""
        return replace(self._begin(samples, 0), rounds=list(self._rounds(samples, self.n_rounds)))

    def _begin(self, samples: NDArray[np.intp], index: int) -> Chunk:
        """Return samples before the first round."""
        labels = np.array(self.scratch.mapped(LABELS)[samples])
        table = np.zeros((self.n_clients + 1, len(samples), self.width))
        factors = {player: self._factors(player, samples) for player in self.factored}
        return Chunk(self.loss, labels, self.n_clients, table, [], factors, index, self.head, self.first_state)

    def _rounds_at_once(self, samples: NDArray[np.intp]) -> int:
        """Return in how many rounds about as many numbers of some samples were uploaded as are held in memory."""
        n_numbers = sum(_n_numbers(piece, own) for p in self.uploaded for _, own, piece in self._pieces(p, samples))
        return max(1, self.n_rounds * MOST_NUMBERS // max(1, n_numbers))

    def _rounds(self, samples: NDArray[np.intp], at_once: int) -> Iterator[Round]:
        """Yield all rounds, with positions in the samples; uploads are looked for in some rounds at a time."""
        for first in range(0, self.n_rounds, at_once):
            changes: list[list[Change]] = [[] for _ in self.states[first : first + at_once]]
            for player in range(self.n_clients + 1):
                if player in self.factored:
                    own = self.factored[player]
                    begin, end = np.searchsorted(own, (first, first + at_once))
                    for t, weights in zip(own[begin:end].tolist(), self.weights[player][begin:end], strict=True):
                        changes[t - first].append(Change(player, None, weights))
                if player in self.uploaded:
                    for t, change in self._uploads(player, samples, first, first + at_once):
                        changes[t - first].append(change)
            yield from map(Round, changes, self.states[first : first + at_once])

    def _factors(self, player: int, samples: NDArray[np.intp]) -> Floats:
        if not self.scratch.has(f"{FACTORS.format(player, 0)}.npy"):
            return np.ones((len(samples), 1))  # an intercept of the server
        parts = np.searchsorted(self.part_edges, samples, side="right") - 1
        found = [
            np.array(self.scratch.mapped(FACTORS.format(player, p))[samples[parts == p] - self.part_edges[p]])
            for p in np.unique(parts)
        ]
        return np.concatenate(found)

    def _pieces(self, player: int, samples: NDArray[np.intp]) -> Iterator[tuple[Array, Array, Observed]]:
        """Yield the positions of some samples in each piece that has any, their indices there, and its uploads."""
        pieces, extents = np.searchsorted(self.piece_edges, samples, side="right") - 1, self.extents[player]
        for j in np.unique(pieces).tolist():
            positions = np.flatnonzero(pieces == j)
            uploads = read_uploads(self.scratch, j, extents.of_pieces[j], extents.width, extents.precision)
            yield positions, samples[positions] - self.piece_edges[j], uploads

    def _uploads(self, player: int, samples: NDArray[np.intp], first: int, end: int) -> Iterator[tuple[int, Change]]:
        """Yield the uploads in some rounds, with the index of the round."""
        begin, stop = np.searchsorted(self.uploaded[player], (first, end)).tolist()
        found = [
            _uploads_in(piece, local, positions, begin, stop)
            for positions, local, piece in self._pieces(player, samples)
        ]
        rounds, positions, values = (np.concatenate(arrays) for arrays in zip(*found, strict=True))
        order = np.argsort(rounds, kind="stable")
        edges = np.searchsorted(rounds[order], np.arange(begin, stop + 1))
        for t, a, b in zip(self.uploaded[player][begin:stop].tolist(), edges, edges[1:], strict=False):
            yield t, Change(player, positions[order[a:b]], values[order[a:b]])


def _n_numbers(piece: Observed, samples: Array) -> int:
    """Return how many numbers were uploaded of some samples of a piece."""
    n_uploads = int((piece.starts[samples + 1] - piece.starts[samples]).sum())
    return n_uploads * int(piece.values.shape[1])


def _uploads_in(piece: Observed, samples: Array, positions: Array, begin: int, end: int) -> tuple[Array, Array, Array]:
    """Return rounds, positions and values of the uploads of samples, sorted, in the rounds from `begin` to `end`."""
    first, last = piece.starts[samples[0]], piece.starts[samples[-1] + 1]
    rounds = piece.rounds[first:last]
    chosen = first + np.flatnonzero((rounds >= begin) & (rounds < end))
    owners = np.searchsorted(piece.starts, chosen, side="right") - 1
    index = np.searchsorted(samples, owners)
    if len(samples) < samples[-1] + 1 - samples[0]:
        is_wanted = samples[index] == owners
        chosen, index = chosen[is_wanted], index[is_wanted]
    return piece.rounds[chosen], positions[index], piece.values[chosen]
