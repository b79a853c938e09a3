"""The uploads of one client in parts of the samples, and what completion asks of a part.

Whatever completion needs of the uploads are sums over samples: each part returns its own, and the solver adds them in
the order of the parts. So results do not depend on who computes a part. A part may be read in pieces that fit in
memory; sums over pieces are continued from one to the next, and have the same bits for any number of pieces.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.completion import sweeps
from verfedsv.completion.observations import Pattern, evenly_spaced
from verfedsv.completion.sweeps import Observed
from verfedsv.threads import split

N_PARTS = 16
"""Parts of the samples. Fixed, so that sums over them depend on nothing else."""


class Equations(NamedTuple):
    """What the factors of the samples are solved from: the factors of the rounds, in the forms that `sweeps` takes.

    With `uses_all`, held-out uploads are used too.
    """

    by_round: Floats
    lines: Floats
    rank: int
    regularization: float
    uses_all: bool

    @classmethod
    def of(cls, rounds: Floats, regularization: float, *, uses_all: bool) -> Equations:
        """Return the equations with factors of the rounds, (rounds, classes, rank)."""
        by_round = sweeps.padded(sweeps.sum_classes(rounds))
        return cls(by_round, sweeps.as_lines(rounds), rounds.shape[2], regularization, uses_all)

    def of_uploads(self, piece: Observed) -> Observed:
        """Return a piece in which only those uploads are held out that are not to be used."""
        return piece._replace(is_held_out=np.zeros(len(piece.rounds), bool)) if self.uses_all else piece


class Part(ABC):
    """The uploads of consecutive samples, of which `n_seen` have any."""

    n_samples: int
    n_seen: int

    @abstractmethod
    def pieces(self) -> Iterator[Observed]:
        """Yield the uploads, sorted by sample and in each by time, in one or several pieces."""

    def keep(self, equations: Equations, samples: Floats) -> None:  # noqa: B027  # only a part in memory does
        """Keep the factors of the samples of the only piece, which are likely to be needed next."""

    def kept(self, equations: Equations) -> Floats | None:  # noqa: ARG002
        """Return what was kept from the same equations."""
        return None

    def solved(self, equations: Equations) -> Iterator[tuple[Observed, Floats]]:
        """Yield each piece with the factors of its samples, (samples, rank)."""
        for piece in self.pieces():
            samples = self.kept(equations)
            yield piece, solve_all(piece, equations) if samples is None else samples


@dataclass(eq=False)
class PartInMemory(Part):
    """A part of one piece."""

    piece: Observed
    _kept: tuple[Equations, Floats] | None = None

    def __post_init__(self) -> None:
        self.n_samples = len(self.piece.starts) - 1
        self.n_seen = int(np.count_nonzero(np.diff(self.piece.starts)))

    def pieces(self) -> Iterator[Observed]:
        yield self.piece

    def keep(self, equations: Equations, samples: Floats) -> None:
        self._kept = equations, samples

    def kept(self, equations: Equations) -> Floats | None:
        return self._kept[1] if self._kept is not None and self._kept[0] is equations else None


@dataclass(frozen=True, eq=False)
class Observations:
    """All uploads of a client. `sizes` has their number in each round, `held_out` how many of these are held out."""

    parts: Sequence[Part]
    n_classes: int
    sizes: Array
    held_out: Array

    @classmethod
    def in_memory(cls, pattern: Pattern, values: Array, fraction: float, seed: int) -> Observations:
        """Return the uploads of a pattern, `values` (observations, classes), a random fraction of them held out."""
        is_held_out = pattern.hold_out(fraction, seed)

        def part(samples: slice) -> Part:
            starts = pattern.starts[samples.start : samples.stop + 1]
            own = slice(int(starts[0]), int(starts[-1]))
            return PartInMemory(Observed(starts - starts[0], pattern.rounds[own], is_held_out[own], values[own]))

        parts = [part(samples) for samples in parts_of(pattern.n_samples)]
        held_out = np.bincount(pattern.rounds[is_held_out], minlength=pattern.n_rounds)
        return cls(parts, values.shape[1], np.diff(pattern.edges), held_out)

    @property
    def n_rounds(self) -> int:
        return len(self.sizes)

    @property
    def n_observations(self) -> int:
        return int(self.sizes.sum())

    @property
    def n_held_out(self) -> int:
        return int(self.held_out.sum())

    @property
    def n_samples(self) -> int:
        return sum(part.n_samples for part in self.parts)

    @property
    def n_seen(self) -> int:
        return sum(part.n_seen for part in self.parts)

    def chosen(self, most: int) -> list[tuple[Part, Array]]:
        """Return at most `most` of the samples with uploads: of each part, their numbers among these."""
        chosen, result, first = evenly_spaced(self.n_seen, most), list[tuple[Part, Array]](), 0
        for part in self.parts:
            own = chosen[np.searchsorted(chosen, first) : np.searchsorted(chosen, first + part.n_seen)] - first
            if len(own):
                result.append((part, own))
            first += part.n_seen
        return result


def parts_of(n_samples: int) -> list[slice]:
    """Return the samples of each part."""
    return split(n_samples, -(-n_samples // N_PARTS))


def solve_all(piece: Observed, equations: Equations) -> Floats:
    """Return the factors of the samples of a piece, (samples, rank)."""
    nothing = np.zeros((0, equations.by_round.shape[1])), np.zeros((0, *equations.lines.shape[1:]))
    return _solve(piece, equations, *nothing)


def _solve(piece: Observed, equations: Equations, gram: Floats, target: Floats) -> Floats:
    """Return the factors of the samples, and add them to the sums over the rounds."""
    n_samples = len(piece.starts) - 1
    samples = np.empty((n_samples, equations.rank))
    by_round, lines, _, regularization, _ = equations
    used = equations.of_uploads(piece)
    sweeps.sweep_samples(0, n_samples, used, by_round, lines, regularization, samples, gram, target)
    return samples


def sweep(part: Part, equations: Equations) -> tuple[Floats, Floats]:
    """Return both sides of the equations of the rounds, summed over the samples of a part, which are solved for."""
    gram, target = np.zeros(equations.by_round.shape), np.zeros(equations.lines.shape)
    for piece in part.pieces():
        part.keep(equations, _solve(piece, equations, gram, target))
    return gram, target


def sum_squares(part: Part) -> Floats:
    """Return the sums of squares of the uploads that are not held out, and of those that are."""
    total = np.zeros(2)
    for piece in part.pieces():
        sweeps.sum_squares(piece.values, piece.is_held_out, total)
    return total


def sum_errors(part: Part, equations: Equations, rounds: Floats) -> Floats:
    """Return the sums of `sweeps.sum_errors`, with these factors of the rounds; those of the samples are solved for."""
    total = np.zeros((2, 3))
    for piece, samples in part.solved(equations):
        sweeps.sum_errors(equations.of_uploads(piece), rounds, samples, total)
    return total


def sum_moment(part: Part, equations: Equations) -> tuple[Floats, int]:
    """Return the sum of h h' over the factors of the samples, and the number of those that are not zero."""
    total, n_samples = np.zeros((equations.rank, equations.rank)), 0
    for _, samples in part.solved(equations):
        sweeps.sum_moment(samples, total)
        n_samples += int(np.count_nonzero(samples.any(axis=1)))
    return total, n_samples


def solve(part: Part, equations: Equations) -> Floats:
    """Return the factors of the samples of a part, (samples, rank)."""
    return np.concatenate([samples for _, samples in part.solved(equations)])


def gather(chosen: tuple[Part, Array]) -> Observed:
    """Return the uploads of some samples of a part, given by their numbers among those that have any."""
    part, numbers = chosen
    found, first = list[Observed](), 0
    for piece in part.pieces():
        seen = np.flatnonzero(np.diff(piece.starts))
        found.append(take_samples(piece, seen[numbers[(numbers >= first) & (numbers < first + len(seen))] - first]))
        first += len(seen)
    return joined(found)


def take_samples(piece: Observed, samples: Array) -> Observed:
    """Return a copy of the uploads of some samples."""
    sizes = np.diff(piece.starts)[samples]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    own = np.arange(starts[-1]) + np.repeat(piece.starts[samples] - starts[:-1], sizes)
    return Observed(starts, piece.rounds[own], piece.is_held_out[own], piece.values[own])


def joined(pieces: Sequence[Observed]) -> Observed:
    """Return successive pieces as one."""
    sizes = np.concatenate([np.diff(piece.starts) for piece in pieces])
    starts = np.concatenate([[0], np.cumsum(sizes)])
    _, rounds, is_held_out, values = (np.concatenate(arrays) for arrays in zip(*pieces, strict=True))
    return Observed(starts, rounds, is_held_out, values)
