"""The closed form: Shapley values of a round to third order, with a proven bound on the rest.

Around the point half-way through the round the game is a cubic polynomial of the embeddings plus a remainder of fifth
order (even orders cancel, because a game and its dual have the same Shapley values). The cubic's values need two
passes over the embeddings and one evaluation of the loss. docs/closed-form.md has the formula, the proof of the bound
and its constants.

Everything is computed in float64, whatever the embeddings are stored in.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from verfedsv.compiled import add, compiled
from verfedsv.errors import InputError
from verfedsv.losses import Array, CubicForm, Floats, Loss
from verfedsv.shapley.blocks import compensated_sum
from verfedsv.shapley.class_sums import sum_classes
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.game import LARGEST_EMBEDDING, Block, RoundGame
from verfedsv.shapley.moments import RUN, BoundConstants, Moments, sum_moments, truncation_of
from verfedsv.shapley.plan import Estimator, Plan
from verfedsv.shapley.semivalues import SHAPLEY, Semivalue

_METHODS = frozenset({"closed-form"})


class ClosedForm(Estimator):
    """The estimator: the third order of all samples."""

    parts = ("closed-form",)

    def check(self, semivalue: Semivalue, n_players: int) -> None:  # noqa: ARG002  # any number of players
        """Raise InputError if it is not Shapley's value that is asked for."""
        if semivalue != SHAPLEY:
            raise InputError(
                f"method 'closed-form' computes Shapley values only; for semivalue {str(semivalue)!r} use method "
                "'auto', 'exact' or 'permutation'"
            )

    def estimate(self, game: RoundGame, plan: Plan, attempt: int) -> Estimate:  # noqa: ARG002  # nothing to choose
        """Return the third order of the values, with certified errors; not yet balanced."""
        return third_order(game)


def third_order(game: RoundGame, samples: NDArray[np.intp] | None = None) -> Estimate:
    """Return the third-order terms summed over `samples` (all if None), divided by the number of all samples."""
    n_players, n_summed = game.n_players, game.n_samples if samples is None else len(samples)
    if n_summed == 0:
        total = np.zeros(2 * n_players + 1)
    else:
        # One array for each block, not one Estimate: small rounds spend most of their time in the interpreter.
        total = compensated_sum(game.map_blocks(lambda block: sum_third_order(block, game.loss), samples=samples))
        if not np.isfinite(total[-1]):
            game.raise_not_finite()
        total /= game.n_samples
    values, errors, utility = total[:n_players], total[n_players:-1], np.asarray(total[-1])
    # The loss is evaluated before the round, half-way and after it.
    return Estimate(values, errors, utility, _METHODS, n_evaluations=3 * n_summed)


def sum_third_order(block: Block, loss: Loss) -> Floats:
    """Return the third-order values of a block, their errors and the utility in one array, as sums over its samples.

    The utility is NaN if an embedding is not finite, or too large to compute with.
    """
    constants = BoundConstants.of(loss, block)
    moments = sum_moments(block, constants.uses_range)
    if not moments.magnitude.max() < LARGEST_EMBEDDING:
        return np.full(2 * len(block.previous) + 1, np.nan)
    expansion = loss.expand(moments.base, moments.total, block.labels)
    values, errors = _sum_over_samples(block, moments, expansion.gradient, expansion.cubic, constants)
    return np.concatenate([values, errors, [expansion.decrease]])


def cubic_values(block: Block, cubic: CubicForm) -> Floats:
    """Return the Shapley values, summed over samples, of the game whose loss is only D^3 f[u, u, u]/6 at distance u."""
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
    """Return for each sample the largest error it causes in the value of any client, (samples,), not yet averaged."""

    def largest(block: Block) -> Floats:
        constants = BoundConstants.of(game.loss, block)
        moments = sum_moments(block, constants.uses_range)
        energy = moments.squares.sum(axis=-1)
        length = np.sqrt(np.square(moments.total).sum(axis=-1))
        per_spread = _truncation_each(length, energy, moments.path, constants)
        # No client's spread is larger than the path, nor than that of a change as long as all of them together.
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
    """Return for each client the sums over samples of its value and of its error, for scalar embeddings.

    phi = -d (f' + f3 (D^2/24 + Q/12)) + d^2 f3 D/12, with f3 the third derivative and D, Q the sums of d and d^2.
    """
    n_clients, n_samples = len(previous), len(moments.path)
    # The coefficients of 512 samples at a time stay in the first-level cache while the clients go by: 20 % faster than
    # all samples of a client at once.
    linear, quadratic, error = np.empty(512), np.empty(512), np.empty(512)
    values, lost, errors = np.zeros(n_clients), np.zeros(n_clients), np.zeros(n_clients)
    for first in range(0, n_samples, 512):
        n = min(512, n_samples - first)
        part = slice(first, first + n)
        _scalar_coefficients(
            moments.total.ravel()[part],
            moments.squares.ravel()[part],
            moments.path[part],
            moments.magnitude[part],
            gradient.ravel()[part],
            cubic.weights.ravel()[part],
            constants,
            linear,
            quadratic,
            error,
        )
        for k in range(n_clients):
            before = previous[k, start + first : start + first + n]
            after = current[k, start + first : start + first + n]
            value, value_lost, error_of_client = values[k], lost[k], errors[k]
            for i in range(0, n, RUN):
                run = slice(i, min(i + RUN, n))
                of_run, error_of_run = _sum_run(before[run], after[run], linear[run], quadratic[run], error[run])
                value, value_lost = add(value, value_lost, of_run)
                error_of_client += error_of_run
            values[k], lost[k], errors[k] = value, value_lost, error_of_client
    return values, errors


@compiled
def _scalar_coefficients(
    total: Floats,
    energy: Floats,
    path: Floats,
    magnitude: Floats,
    slope: Floats,
    third: Floats,
    constants: BoundConstants,
    linear: Floats,
    quadratic: Floats,
    error: Floats,
) -> None:
    """Write what the change of a client, its square and its absolute value are multiplied by."""
    for i in range(len(total)):
        linear[i] = slope[i] + third[i] * (total[i] * total[i] / 24 + energy[i] / 12)
        quadratic[i] = third[i] * total[i] / 12
        truncation = truncation_of(abs(total[i]), energy[i], path[i], constants)
        size = abs(linear[i]) + abs(quadratic[i]) * magnitude[i]
        error[i] = truncation + constants.midpoint_rounding * magnitude[i] + constants.sum_rounding * size


@compiled
def _sum_run(before: Array, after: Array, linear: Floats, quadratic: Floats, error: Floats) -> tuple[float, float]:
    """Return the value and the error of a client, summed over a run of samples."""
    value, error_of_client = 0.0, 0.0
    for i in range(len(before)):
        d = np.float64(after[i]) - np.float64(before[i])
        value += d * (quadratic[i] * d - linear[i])
        error_of_client += abs(d) * error[i]
    return value, error_of_client
