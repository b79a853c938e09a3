"""The closed form: Shapley values of a round to third order, with a proven bound on the remainder.

Around the midpoint of the round the game is a cubic polynomial of the embeddings plus a remainder of fifth order (even
orders cancel, because a game and its dual have the same Shapley values). The values of the cubic take two passes over
the embeddings and its derivatives at one point. docs/closed-form.md has the formula, the proof of the bound and its
constants. All arithmetic is in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.compiled import add, compiled, inlined
from verfedsv.errors import InputError
from verfedsv.loss_checks import as_shaped
from verfedsv.loss_loops import expand_logistic
from verfedsv.losses import CubicForm, Logistic, Loss, Softmax
from verfedsv.shapley.blocks import LARGEST_EMBEDDING, MOST_SAMPLES, Block, block_size, compensated_sum
from verfedsv.shapley.class_sums import sum_classes, sum_softmax
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.factor_sums import FactoredRounds, Sums, sum_logistic_rounds, sum_softmax_rounds
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.moments import (
    RUN,
    TILE,
    BoundConstants,
    Moments,
    add_scalar_moments,
    are_valid,
    read_ahead,
    scalar_coefficients,
    sum_moments,
    truncation_of,
)
from verfedsv.shapley.plan import Estimator, Plan
from verfedsv.shapley.semivalues import SHAPLEY, Semivalue
from verfedsv.threads import split
from verfedsv.vectors import LANES, Vector, fill, load, load_first, store, sum_lanes

MOST_NUMBERS = 2**29
"""Embeddings of all rounds that one call of a compiled loop values, in less than a second: Ctrl-C waits for it."""

_METHODS = frozenset({"closed-form"})


class ClosedForm(Estimator[RoundGame]):
    """The closed form on all samples."""

    parts = ("closed-form",)

    def check(self, semivalue: Semivalue, n_players: int) -> None:  # noqa: ARG002  # any number of players
        """Raise InputError unless the semivalue is Shapley's."""
        if semivalue != SHAPLEY:
            raise InputError(
                f"method 'closed-form' computes Shapley values only; for semivalue {str(semivalue)!r} use method "
                "'auto', 'exact' or 'permutation'"
            )

    def is_closed_form(self, semivalue: Semivalue) -> bool:
        """Return whether the semivalue is Shapley's."""
        return semivalue == SHAPLEY

    def estimate(self, game: RoundGame, plan: Plan, call: int) -> Estimate:  # noqa: ARG002  # nothing to choose
        """Return the values to third order, with certified errors; not yet balanced."""
        return third_order(game)


def third_order(game: RoundGame, samples: NDArray[np.intp] | None = None) -> Estimate:
    """Return the values summed over `samples` (all if None) and divided by the number of all samples."""
    n_players, n_summed = game.n_players, game.n_samples if samples is None else len(samples)
    found = game.third_order_sums() if samples is None else None
    if n_summed == 0:
        total = np.zeros(2 * n_players + 1)
    elif found is not None:
        total = _mean(found, game)
    else:
        # An array for each block, not an Estimate: small rounds spend most of their time in the interpreter.
        sums = game.map_blocks(lambda block: sum_third_order(block, game.loss), size=_size(game), samples=samples)
        total = _mean(compensated_sum(sums), game)
    values, errors, utility = total[:n_players], total[n_players:-1], np.asarray(total[-1])
    if max(game.loss.smoothness, game.loss.fifth_derivative) == math.inf:
        errors[errors > 0] = np.inf
    # Counted as one evaluation before, one in the middle of, and one after the round.
    return Estimate(values, errors, utility, _METHODS, n_evaluations=3 * n_summed)


def _mean(total: Floats, game: RoundGame) -> Floats:
    if not np.isfinite(total[-1]):
        game.raise_not_finite()
    return total / game.n_samples


def third_order_of_factors(rounds: FactoredRounds, labels: Array, loss: Loss) -> Estimate | None:
    """Return the values of several rounds, (rounds, players), summed over samples, from products of factors.

    None if the loss has no such loop, or an embedding is not finite or too large.
    """
    if type(loss) not in (Logistic, Softmax):
        return None
    n_players, n_samples, n_classes = rounds.table.shape
    constants = BoundConstants.of(loss, n_players, n_samples, n_classes)
    sum_rounds = sum_softmax_rounds if type(loss) is Softmax else sum_logistic_rounds
    at_a_time = RUN * max(1, MOST_NUMBERS // max(1, rounds.moves.size * n_classes * RUN))
    return as_estimate(
        (sum_rounds(rounds, labels, part.start, part.stop, constants) for part in split(n_samples, at_a_time)),
        rounds.moves,
        n_samples,
    )


def as_estimate(parts: Iterable[Sums], moves: Array, n_samples: int) -> Estimate | None:
    """Return the sum of values, errors and decreases of rounds over all samples, or None if it is not finite."""
    found = Estimate.sum(Estimate(*sums, _METHODS) for sums in parts)
    n_evaluations = 3 * int(moves.any(axis=1).sum()) * n_samples
    return replace(found, n_evaluations=n_evaluations) if np.isfinite(found.utility).all() else None


def _size(game: RoundGame) -> int | None:
    """Return the size of blocks: long ones where they need not fit the cache, as a block is read ahead tile by tile."""
    if not game.is_plain:
        return None
    return max(block_size(game.n_players, game.n_classes), min(MOST_SAMPLES, game.n_samples // 16))


def sum_third_order(block: Block, loss: Loss) -> Floats:
    """Return values, errors and utility of a block in one array, summed over its samples.

    The utility is NaN if an embedding is not finite or too large.
    """
    constants = BoundConstants.of(loss, len(block.previous), block.n_samples, block.n_classes)
    arrays = block.previous, block.current, block.start, block.labels
    # Not isinstance: a subclass may have other derivatives.
    if type(loss) is Logistic:
        offset = np.empty(0) if block.offset is None else block.offset.ravel()
        values, errors, decrease = sum_logistic(*arrays, offset, constants)
    elif type(loss) is Softmax:
        offset = np.empty((0, 0)) if block.offset is None else block.offset
        values, errors, decrease = sum_softmax(*arrays, offset, block.n_classes, constants)
    else:
        moments, labels = sum_moments(block, constants.uses_range), block.labels
        if not moments.magnitude.max() < LARGEST_EMBEDDING:
            return np.full(2 * len(block.previous) + 1, np.nan)
        middle, end = moments.base + 0.5 * moments.total, moments.base + moments.total
        gradient = as_shaped(loss, "gradient", loss.gradient(middle, labels), middle.shape)
        weights, centre = (as_shaped(loss, "cubic_form", a, middle.shape) for a in loss.cubic_form(middle, labels))
        cubic = CubicForm(weights, centre)
        values, errors = _sum_over_samples(block, moments, gradient, cubic, constants)
        decrease = loss.value(moments.base, labels).sum() - loss.value(end, labels).sum()
    return np.concatenate([values, errors, [decrease]])


def cubic_values(block: Block, cubic: CubicForm) -> Floats:
    """Return the Shapley values, summed over samples, of the loss D^3 f[u, u, u]/6 at distance u from the midpoint."""
    moments = sum_moments(block)
    values, _ = _sum_over_samples(block, moments, np.zeros_like(moments.total), cubic, BoundConstants())
    return values


def _sum_over_samples(
    block: Block, moments: Moments, gradient: Floats, cubic: CubicForm, constants: BoundConstants
) -> tuple[Floats, Floats]:
    """Return the values and errors of all clients, summed over the samples of a block."""
    sum_it = _sum_scalars if block.n_classes == 1 else sum_classes
    return sum_it(block.previous, block.current, block.start, moments, gradient, cubic, constants)


def sample_errors(game: RoundGame) -> Floats:
    """Return for each sample a bound on the truncation error of any client's value, (samples,)."""

    def largest(block: Block) -> Floats:
        constants = BoundConstants.of(game.loss, len(block.previous), block.n_samples, block.n_classes)
        moments = sum_moments(block, constants.uses_range)
        energy = moments.squares.sum(axis=-1)
        length = np.sqrt(np.square(moments.total).sum(axis=-1))
        per_spread = _truncation_each(length, energy, moments.path, constants)
        # A client's spread is at most the path, and at most that of a vector as long as all changes together.
        per_spread *= np.minimum(moments.path, constants.norm**0.25 * np.sqrt(energy))
        return per_spread

    return np.concatenate(list(game.map_blocks(largest)))


@compiled
def _truncation_each(length: Floats, energy: Floats, path: Floats, constants: BoundConstants) -> Floats:
    result = np.empty(len(length))
    for i in range(len(length)):
        result[i] = truncation_of(length[i], energy[i], path[i], constants)
    return result


@compiled
def _sum_scalars(
    previous: Array,
    current: Array,
    start: int,
    moments: Moments,
    gradient: Floats,
    cubic: CubicForm,
    constants: BoundConstants,
) -> tuple[Floats, Floats]:
    """Return the values and errors of all clients, summed over samples, for scalar embeddings.

    phi = -d (f' + f3 (D^2/24 + Q/12)) + d^2 f3 D/12, with f3 the third derivative and D, Q the sums of d and d^2.
    """
    n_clients, n_samples = len(previous), len(moments.path)
    values, lost, errors = np.zeros(n_clients), np.zeros(n_clients), np.zeros(n_clients)
    slope, third = gradient.ravel(), cubic.weights.ravel()
    total, squares = moments.total.ravel(), moments.squares.ravel()
    linear, quadratic, error = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    for first in range(0, n_samples, TILE):
        n = min(TILE, n_samples - first)
        for i in range(0, n, LANES):
            at, left = first + i, n - i
            sums = (
                load_first(total, at, left),
                load_first(squares, at, left),
                load_first(moments.path, at, left),
                load_first(moments.magnitude, at, left),
            )
            of_samples = scalar_coefficients(load_first(slope, at, left), load_first(third, at, left), sums, constants)
            _store(of_samples, linear, quadratic, error, i)
        coefficients = linear[:n], quadratic[:n], error[:n]
        _add_values(previous, current, start + first, 0, coefficients, values, lost, errors)
    return values, errors


@inlined
def _store(numbers: tuple[Vector, Vector, Vector], first: Floats, second: Floats, third: Floats, index: int) -> None:
    store(first, index, numbers[0])
    store(second, index, numbers[1])
    store(third, index, numbers[2])


@compiled
def sum_logistic(
    previous: Array, current: Array, start: int, labels: Floats, offset: Floats, constants: BoundConstants
) -> tuple[Floats, Floats, float]:
    """Return the same for the logistic loss with an `offset`, (samples,) or empty, and the decrease of the loss.

    A tile of samples goes through all steps before the next, so embeddings are read from memory once: twice as fast.
    The decrease is NaN if an embedding is not finite or too large.
    """
    n_clients, n_samples = len(previous), len(labels)
    values, lost, errors = np.zeros(n_clients), np.zeros(n_clients), np.zeros(n_clients)
    decrease, decrease_lost = 0.0, 0.0
    sums = np.empty(TILE), np.empty(TILE), np.empty(TILE), np.empty(TILE), np.empty(TILE)
    linear, quadratic, error = np.empty(TILE), np.empty(TILE), np.empty(TILE)
    for first in range(0, n_samples, TILE):
        n = min(TILE, n_samples - first)
        for i in range(TILE):
            sums[0][i], sums[1][i], sums[2][i], sums[3][i], sums[4][i] = 0.0, 0.0, 0.0, 0.0, 0.0
        add_scalar_moments(
            previous, current, start + first, (sums[0][:n], sums[1][:n], sums[2][:n], sums[3][:n], sums[4][:n])
        )
        if len(offset) > 0:
            for i in range(n):
                sums[0][i] += offset[first + i]
                sums[3][i] += abs(offset[first + i])
        if not are_valid(sums[3]):
            return values, errors, np.nan
        for run in range(0, n, RUN):
            of_run = fill(0.0)
            for i in range(run, min(run + RUN, n), LANES):
                total = load(sums[1], i)
                signs = load_first(labels, first + i, n - i)
                slope, third, of_block = expand_logistic(load(sums[0], i), total, signs)
                moments = total, load(sums[2], i), load(sums[4], i), load(sums[3], i)
                _store(scalar_coefficients(slope, third, moments, constants), linear, quadratic, error, i)
                of_run = of_run + of_block
            decrease, decrease_lost = add(decrease, decrease_lost, sum_lanes(of_run))
        coefficients = linear[:n], quadratic[:n], error[:n]
        n_ahead = min(n, n_samples - first - n)
        _add_values(previous, current, start + first, n_ahead, coefficients, values, lost, errors)
    return values, errors, decrease


Coefficients = tuple[Floats, Floats, Floats]


@inlined
def _add_values(
    previous: Array,
    current: Array,
    first: int,
    n_ahead: int,
    coefficients: Coefficients,
    values: Floats,
    lost: Floats,
    errors: Floats,
) -> None:
    """Add the values and errors of all clients for the samples from `first` on, in compensated runs.

    Four clients at a time, so that the coefficients are read a quarter as often; the last group is filled up with its
    last client, as another loop would round the values of identical clients differently. Meanwhile the `n_ahead`
    samples after these are read into the cache.
    """
    linear, quadratic, error = coefficients
    n, last = len(linear), len(previous) - 1
    for k in range(0, last + 1, 4):
        k1, k2, k3 = min(k + 1, last), min(k + 2, last), min(k + 3, last)
        for i in range(0, n, RUN):
            j = min(i + RUN, n)
            a, b = first + i, first + j
            for m in range(k, k3 + 1):
                read_ahead(previous, m, (a + n, first + n + min(j, n_ahead)))
                read_ahead(current, m, (a + n, first + n + min(j, n_ahead)))
            v0, v1, v2, v3, e0, e1, e2, e3 = _sum_four(
                (previous[k, a:b], previous[k1, a:b], previous[k2, a:b], previous[k3, a:b]),
                (current[k, a:b], current[k1, a:b], current[k2, a:b], current[k3, a:b]),
                (linear[i:j], quadratic[i:j], error[i:j]),
            )
            values[k], lost[k] = add(values[k], lost[k], v0)
            errors[k] += e0
            if k1 == k + 1:
                values[k1], lost[k1] = add(values[k1], lost[k1], v1)
                errors[k1] += e1
            if k2 == k + 2:
                values[k2], lost[k2] = add(values[k2], lost[k2], v2)
                errors[k2] += e2
            if k3 == k + 3:
                values[k3], lost[k3] = add(values[k3], lost[k3], v3)
                errors[k3] += e3


Four = tuple[Array, Array, Array, Array]


@inlined
def _sum_four(before: Four, after: Four, of_run: Coefficients) -> tuple[float, ...]:
    """Return the values of four clients, summed over a run of samples, and then their errors."""
    linear, quadratic, error = of_run
    (before0, before1, before2, before3), (after0, after1, after2, after3) = before, after
    v0, v1, v2, v3, e0, e1, e2, e3 = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for i in range(len(linear)):
        d0, d1 = np.float64(after0[i]) - before0[i], np.float64(after1[i]) - before1[i]
        d2, d3 = np.float64(after2[i]) - before2[i], np.float64(after3[i]) - before3[i]
        v0 += d0 * (quadratic[i] * d0 - linear[i])
        v1 += d1 * (quadratic[i] * d1 - linear[i])
        v2 += d2 * (quadratic[i] * d2 - linear[i])
        v3 += d3 * (quadratic[i] * d3 - linear[i])
        e0 += abs(d0) * error[i]
        e1 += abs(d1) * error[i]
        e2 += abs(d2) * error[i]
        e3 += abs(d3) * error[i]
    return v0, v1, v2, v3, e0, e1, e2, e3
