"""Fits low-rank factors to the uploaded entries of one client's embedding matrix."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.completion import sweeps
from verfedsv.completion.observations import Pattern
from verfedsv.completion.start import leading_directions
from verfedsv.errors import InputError
from verfedsv.threads import ordered_map, split

Result = TypeVar("Result")

N_PARTS = 16
"""Parts of the samples. Fixed, so that sums over them do not depend on the number of threads."""

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


class FitErrors(NamedTuple):
    """Root mean squared error and largest error over some observations; NaN and 0 if there are none."""

    n_observations: int
    rmse: float
    largest: float


@dataclass
class CompiledSolver:
    """Alternating least squares on the observations of one client that are not held out.

    `values` are (observations, classes), in the order of `pattern`; `fit_sweeps` are the sweeps of each fit so far.
    """

    pattern: Pattern
    values: Array
    regularization: float
    tolerance: float
    max_sweeps: int
    n_threads: int
    fit_sweeps: list[int] = field(default_factory=list)

    @property
    def n_classes(self) -> int:
        return int(self.values.shape[1])

    def start(self, is_held_out: NDArray[np.bool_], rank: int) -> Floats:
        """Return a first guess of the factors of the rounds, best direction first."""
        return leading_directions(self.pattern, self.values, is_held_out, rank)

    def fit(self, rounds: Floats, is_held_out: NDArray[np.bool_], n_sweeps: int | None = None) -> Factors:
        """Return the factors fitted from a first guess of the rounds' factors.

        If rounding decides whether to stop, `n_sweeps` does instead.
        """
        rounds = np.array(rounds, order="C")
        samples = np.zeros((self.pattern.n_samples, rounds.shape[2]))
        size = float(sum(self._map(lambda a, b: self._sum_squares(a, b, is_held_out))))
        before = np.inf
        for sweep in range(1, self.max_sweeps + 1):
            left = self._sweep(rounds, samples, is_held_out, size)
            if left < EXACT_BELOW * size:
                fitted, _ = self.errors(Factors(rounds, samples), is_held_out)
                left = fitted.n_observations * fitted.rmse**2
            if has_settled(before, left, size, self.tolerance, None if n_sweeps is None else sweep >= n_sweeps):
                break
            before = left
        self.fit_sweeps.append(sweep)
        if not (np.isfinite(rounds).all() and np.isfinite(samples).all()):
            raise InputError(
                f"the least squares of completion broke down at regularization {self.regularization:g} and rank "
                f"{rounds.shape[2]}; use a larger regularization or a smaller rank"
            )
        sizes = np.diff(self.pattern.edges)
        _fill_empty_rounds(rounds, sizes > 0)

        def used(t: int) -> tuple[Array, Array]:
            positions = self.pattern.of_round(t)
            positions = positions[~is_held_out[positions]]
            return np.searchsorted(self.pattern.starts, positions, side="right") - 1, self.values[positions]

        refit_short_rounds(Factors(rounds, samples), sizes, used)
        return Factors(rounds, samples)

    def errors(self, factors: Factors, is_held_out: NDArray[np.bool_]) -> tuple[FitErrors, FitErrors]:
        """Return the errors on the observations that are not held out, and on those that are."""

        def sum_errors(first: int, last: int) -> Floats:
            return sweeps.sum_errors(first, last, self._observed(is_held_out), factors.rounds, factors.samples)

        parts = np.stack(list(self._map(sum_errors)))
        counts, squares, largest = parts[:, :, 0].sum(axis=0), parts[:, :, 1].sum(axis=0), parts[:, :, 2].max(axis=0)
        with np.errstate(invalid="ignore"):
            rmse = np.sqrt(squares / counts)
        used, held = (FitErrors(int(counts[k]), float(rmse[k]), float(largest[k])) for k in (0, 1))
        return used, held

    def _map(self, function: Callable[[int, int], Result]) -> Iterator[Result]:
        parts = split(self.pattern.n_samples, -(-self.pattern.n_samples // N_PARTS))
        return ordered_map(lambda part: function(part.start, part.stop), parts, self.n_threads)

    def _observed(self, is_held_out: NDArray[np.bool_]) -> sweeps.Observed:
        return sweeps.Observed(self.pattern.starts, self.pattern.rounds, is_held_out, self.values)

    def _sum_squares(self, first: int, last: int, is_held_out: NDArray[np.bool_]) -> float:
        part = slice(self.pattern.starts[first], self.pattern.starts[last])
        return sweeps.sum_squares(self.values[part], is_held_out[part])

    def _sweep(self, rounds: Floats, samples: Floats, is_held_out: NDArray[np.bool_], size: float) -> float:
        """Solve for the samples, then for the rounds, in place; return the sum of squared errors."""
        _, n_classes, rank = rounds.shape
        by_round, lines = sweeps.padded(sweeps.sum_classes(rounds)), sweeps.as_lines(rounds)

        def solve_samples(first: int, last: int) -> tuple[Floats, Floats]:
            gram, target = np.zeros(by_round.shape), np.zeros(lines.shape)
            observed = self._observed(is_held_out)
            sweeps.sweep_samples(first, last, observed, by_round, lines, self.regularization, samples, gram, target)
            return gram, target

        sums, products = np.zeros(by_round.shape), np.zeros(lines.shape)
        for gram_of_part, target_of_part in self._map(solve_samples):
            sums += gram_of_part
            products += target_of_part
        gram = np.ascontiguousarray(sums[:, : rank * (rank + 1) // 2])
        target = np.ascontiguousarray(sweeps.from_lines(products, n_classes, rank))
        sweeps.solve_rounds(gram, target, self.regularization, rounds)
        # With w solved for, the squared errors and the penalty on w add up to |x|^2 - w . (sum of x h).
        # Not np.vdot, whose order of addition depends on the number of threads that OpenBLAS takes.
        return size - float((rounds * (target + self.regularization * rounds)).sum())


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


def refit_short_rounds(factors: Factors, sizes: Array, used: Callable[[int], tuple[Array, Array]]) -> None:
    """Solve for rounds with short batches again, in place, as if their batches were full.

    A batch of few samples, such as the last of an epoch, says little about the others, and lambda would shrink those to
    zero. So the missing samples are interpolated between the full rounds around it. `used` returns the samples of a
    round's batch and their embeddings, (samples, classes).
    """
    rounds, samples = factors
    full = float(np.median(sizes[sizes > 0]))
    is_short = (sizes > 0) & (sizes < SHORT * full)
    usual = np.flatnonzero((sizes > 0) & ~is_short)
    typical = samples.T @ samples / max(1, int(np.count_nonzero(samples.any(axis=1))))
    for t in np.flatnonzero(is_short).tolist():
        k = int(np.searchsorted(usual, t))
        before, after = usual[max(k - 1, 0)], usual[min(k, len(usual) - 1)]
        way = (t - before) / (after - before) if before < t < after else 0.0
        between = (1 - way) * rounds[before] + way * rounds[after]
        numbers, values = used(t)
        h, lacking = samples[numbers], full - len(numbers)
        gram = h.T @ h + lacking * typical
        target = values.T @ h + lacking * between @ typical
        rounds[t] = np.linalg.lstsq(gram, target.T, rcond=None)[0].T
