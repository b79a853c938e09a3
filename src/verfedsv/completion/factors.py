"""Fits low-rank factors to the uploaded entries of one client's embedding matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.completion import parts, sweeps
from verfedsv.completion.parts import Equations, Observations, Part
from verfedsv.completion.start import leading_directions, most_samples
from verfedsv.completion.sweeps import Observed
from verfedsv.errors import InputError
from verfedsv.threads import ordered_map

Result = TypeVar("Result")

NEGLIGIBLE, EXACT_BELOW, CLOSE = 1e-15, 1e-9, 1e-6
"""Fractions of the sum of squares: squared errors below the first are negligible; below the second they are summed one
by one, as a difference of sums is off by 1e-15 of these. So their relative error is below the third."""

SHORT = 0.25
"""A batch smaller than this fraction of the median is a short one."""


class Factors(NamedTuple):
    """The embedding of sample i in round t and class c is `rounds[t, c] . samples[i]`.

    `rounds` is (rounds, classes, rank), `samples` is (samples, rank).
    """

    rounds: Floats
    samples: Floats


class Fit(NamedTuple):
    """Factors of the rounds, (rounds, classes, rank), and the equations that those of the samples are solutions of.

    The factors of the samples are as large as a client's model would be for all rounds, and are solved for again where
    they are needed.
    """

    rounds: Floats
    equations: Equations


class FitErrors(NamedTuple):
    """Root mean squared error and largest error over some observations; NaN and 0 if there are none."""

    n_observations: int
    rmse: float
    largest: float


class LastSweep(NamedTuple):
    """What a fit continues from: the number of a sweep, the factors of the rounds after it, the squared errors left."""

    number: int
    rounds: Floats
    left: float


@dataclass
class CompiledSolver:
    """Alternating least squares on the uploads of one client, on a number of threads or an executor.

    `fit_sweeps` are the sweeps of each fit so far.
    """

    observations: Observations
    regularization: float
    tolerance: float
    max_sweeps: int
    workers: int | Executor
    fit_sweeps: list[int] = field(default_factory=list)
    _squares: Floats | None = None

    def start(self, rank: int) -> Floats:
        """Return a first guess of the rounds' factors from uploads that are not held out, best direction first."""
        seen = self.observations
        return leading_directions(
            self.gather(most_samples(seen.n_rounds * seen.n_classes)), seen.n_rounds, seen.n_seen, rank
        )

    def fit(self, rounds: Floats, *, uses_all: bool, n_sweeps: int | None = None) -> Fit:
        """Return the factors fitted from a first guess of the rounds' factors, to all uploads or those not held out.

        If rounding decides whether to stop, `n_sweeps` does instead.
        """
        size, (first, rounds, before) = self._size(uses_all=uses_all), self._begin(rounds)
        for sweep in range(first + 1, self.max_sweeps + 1):
            equations = Equations.of(rounds, self.regularization, uses_all=uses_all)
            gram, target = self._sum_equations(equations, rounds.shape[1])
            rounds = np.empty(target.shape)
            sweeps.solve_rounds(gram, target, self.regularization, rounds)
            # With w solved for, the squared errors and the penalty on w add up to |x|^2 - w . (sum of x h).
            # Not np.vdot, whose order of addition depends on the number of threads that OpenBLAS takes.
            left = size - float((rounds * (target + self.regularization * rounds)).sum())
            if left < EXACT_BELOW * size:
                fitted, _ = self.errors(Fit(rounds, equations))
                left = fitted.n_observations * fitted.rmse**2
            if has_settled(before, left, size, self.tolerance, None if n_sweeps is None else sweep >= n_sweeps):
                break
            before = left
            if sweep < self.max_sweeps:  # the last one is part of the fit
                self._note(LastSweep(sweep, rounds, left))
        self.fit_sweeps.append(sweep)
        if not (np.isfinite(rounds).all() and np.isfinite(target).all()):
            raise InputError(
                f"the least squares of completion broke down at regularization {self.regularization:g} and rank "
                f"{rounds.shape[2]}; use a larger regularization or a smaller rank"
            )
        sizes = self.observations.sizes
        _fill_empty_rounds(rounds, sizes > 0)
        short = find_short_rounds(sizes)
        if len(short):
            lacking = np.median(sizes[sizes > 0]) - sizes + (0 if uses_all else self.observations.held_out)
            usual = np.setdiff1d(np.flatnonzero(sizes), short)
            refit_short_rounds(rounds, short, usual, lacking, (gram, target, self._typical(equations)))
        return Fit(rounds, equations)

    def errors(self, fit: Fit) -> tuple[FitErrors, FitErrors]:
        """Return the errors on the uploads that a fit used, and on those that it did not."""
        counts, squares, largest = self._sum_errors(fit).T
        with np.errstate(invalid="ignore"):
            rmse = np.sqrt(squares / counts)
        used, held = (FitErrors(int(counts[k]), float(rmse[k]), float(largest[k])) for k in (0, 1))
        return used, held

    def solve(self, fit: Fit) -> Floats:
        """Return the factors of all samples, (samples, rank)."""
        return np.concatenate(list(self._map(partial(parts.solve, equations=fit.equations))))

    def gather(self, most: int) -> Observed:
        """Return the uploads of at most `most` of the samples that have any, evenly spaced."""
        return parts.joined(list(ordered_map(parts.gather, self.observations.chosen(most), self.workers)))

    def _begin(self, rounds: Floats) -> LastSweep:
        """Return what to begin a fit with: a guess of the rounds' factors."""
        return LastSweep(0, rounds, np.inf)

    def _note(self, last: LastSweep) -> None:  # only a solver that can be interrupted does
        """Note what a fit could be continued from."""

    def _map(self, function: Callable[[Part], Result]) -> Iterator[Result]:
        return ordered_map(function, self.observations.parts, self.workers)

    def _size(self, *, uses_all: bool) -> float:
        """Return the sum of squares of the uploads that a fit uses."""
        if self._squares is None:
            self._squares = self._sum_squares()
        return float(self._squares.sum() if uses_all else self._squares[0])

    def _sum_squares(self) -> Floats:
        """Return the sums of squares of the uploads that are not held out, and of those that are."""
        return np.asarray(np.sum(list(self._map(parts.sum_squares)), axis=0))

    def _sum_errors(self, fit: Fit) -> Floats:
        """Return the sums of `sweeps.sum_errors` over all samples."""
        sums = np.stack(list(self._map(partial(parts.sum_errors, equations=fit.equations, rounds=fit.rounds))))
        return np.concatenate([sums[:, :, :2].sum(axis=0), sums[:, :, 2:].max(axis=0)], axis=1)

    def _sum_equations(self, equations: Equations, n_classes: int) -> tuple[Floats, Floats]:
        """Solve for the samples; return the equations of the rounds, packed, and their right-hand sides."""
        sums, products = np.zeros(equations.by_round.shape), np.zeros(equations.lines.shape)
        for gram, target in self._map(partial(parts.sweep, equations=equations)):
            sums += gram
            products += target
        rank = equations.rank
        packed = np.ascontiguousarray(sums[:, : rank * (rank + 1) // 2])
        return packed, np.ascontiguousarray(sweeps.from_lines(products, n_classes, rank))

    def _typical(self, equations: Equations) -> Floats:
        """Return the mean of h h' over the samples whose factors are not zero."""
        moments, counts = zip(*self._map(partial(parts.sum_moment, equations=equations)), strict=True)
        return np.asarray(np.sum(moments, axis=0) / max(1, sum(counts)))


def has_settled(before: float, left: float, size: float, tolerance: float, if_close: bool | None) -> bool:
    """Return whether to stop after two sweeps with these squared errors, `size` being the sum of squares.

    That is if they are negligible, or no longer fall by the tolerance. If rounding decides that, `if_close` is returned
    unless it is None.
    """
    excess, beyond = abs(before - left) - 2 * tolerance * left, left - NEGLIGIBLE * size
    if if_close is not None and min(abs(excess), abs(beyond)) < CLOSE * left:
        return if_close
    return excess <= 0 or beyond <= 0


def _fill_empty_rounds(rounds: Floats, has_uploads: NDArray[np.bool_]) -> None:
    """Fill rounds without uploads with the last round before that has some, or else with the first."""
    last = np.maximum.accumulate(np.where(has_uploads, np.arange(len(rounds)), -1))
    rounds[:] = rounds[np.where(last < 0, has_uploads.argmax(), last)]


def find_short_rounds(sizes: Array) -> Array:
    """Return the rounds whose batches are short."""
    return np.flatnonzero((sizes > 0) & (sizes < SHORT * np.median(sizes[sizes > 0])))


def refit_short_rounds(
    rounds: Floats, short: Array, usual: Array, lacking: Floats, sums: tuple[Floats, Floats, Floats]
) -> None:
    """Solve for rounds with short batches again, in place, as if their batches were full.

    A batch of few samples, such as the last of an epoch, says little about the others, and lambda would shrink those to
    zero. So the samples that a round is `lacking` are interpolated between the `usual` rounds around it. The `sums` are
    those of h h', packed, and of x h over the batch of each round, and the mean of h h' over all samples.
    """
    gram, target, typical = sums
    lower = np.tril_indices(rounds.shape[2])
    for t in short.tolist():
        k = int(np.searchsorted(usual, t))
        before, after = usual[max(k - 1, 0)], usual[min(k, len(usual) - 1)]
        way = (t - before) / (after - before) if before < t < after else 0.0
        between = (1 - way) * rounds[before] + way * rounds[after]
        own = np.empty(typical.shape)
        own[lower] = own.T[lower] = gram[t]
        left, right = own + lacking[t] * typical, target[t] + lacking[t] * between @ typical
        rounds[t] = np.linalg.lstsq(left, right.T, rcond=None)[0].T
