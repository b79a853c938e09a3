"""The closed form: Shapley values of a round to third order, with a proven bound on the rest.

Around the point half-way through the round the game is a cubic polynomial of the embeddings plus a remainder of fifth
order (even orders cancel, because a game and its dual have the same Shapley values). The cubic's values need two
passes over the embeddings and one evaluation of the loss. docs/closed-form.md has the formula, the proof of the bound
and its constants.

Everything is computed in float64, whatever the embeddings are stored in.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedsv.compiled import compiled, inlined
from verfedsv.losses import Array, CubicForm, Floats, Loss
from verfedsv.shapley.game import LARGEST_EMBEDDING, Block, RoundGame

CLOSED_FORM_EVALUATIONS = 3
"""Evaluations of the loss: before the round, half-way and after it."""


class ThirdOrder(NamedTuple):
    """Values and their certified errors, (clients,) each, and the utility of all clients together."""

    values: Floats
    errors: Floats
    utility: float


class Moments(NamedTuple):
    """What the expansion needs to know of the clients' changes d_k together, for each sample of a block.

    `base` is the summed embedding before the round, `total` the sum of d_k, `squares` the sum of d_k squared, class by
    class, (samples, classes) each. `path` is the sum of the spreads of d_k, (samples,). `magnitude`, (samples,), is the
    largest over classes of the summed absolute embeddings and changes, which the rounding errors grow with.
    """

    base: Floats
    total: Floats
    squares: Floats
    path: Floats
    magnitude: Floats


class BoundConstants(NamedTuple):
    """What the terms of the error bound are multiplied by.

    `fifth` is K/24, and `norm` the fourth power of the largest spread of a vector of norm 1; `uses_range` says which
    spread. Rounding: the midpoint is a sum over clients, which moves the gradient; probabilities are quotients of sums
    over classes; a value is a sum over samples and classes.
    """

    fifth: float = 0.0
    norm: float = 0.0
    uses_range: bool = False
    midpoint_rounding: float = 0.0
    gradient_rounding: float = 0.0
    sum_rounding: float = 0.0

    @classmethod
    def of(cls, loss: Loss, block: Block) -> BoundConstants:
        """Return the constants of a loss for the size of a block."""
        unit = float(np.finfo(np.float64).eps / 2)
        n_clients, n_classes = len(block.previous), block.n_classes
        uses_range = loss.shift_invariant and n_classes > 1
        return cls(
            loss.fifth_derivative / 24,
            4.0 if uses_range else 1.0,
            uses_range,
            (4 + n_clients) * unit * loss.smoothness,
            (8 + n_classes) * unit if n_classes > 1 else 0.0,
            (16 + 2 * block.n_samples * n_classes) * unit,
        )


def closed_form(game: RoundGame) -> ThirdOrder:
    """Return the values of all clients to third order, with their certified errors.

    The values add up to the utility of all clients: the small difference that the third order leaves is spread over
    the clients in proportion to their errors, so that a client that did not move still gets exactly 0.
    """
    return balance(*sum_third_order(game))


def sum_third_order(game: RoundGame, samples: NDArray[np.intp] | None = None) -> ThirdOrder:
    """Return the third-order terms summed over `samples` (all if None), divided by the number of all samples."""
    # Values, errors and utility in one array, and what rounding cut off its sums so far (Kahan): so the number of
    # blocks does not add to the rounding error.
    total, lost = np.zeros((2, 2 * game.n_clients + 1))
    for part in game.map_blocks(lambda block: third_order(block, game.loss), samples=samples):
        if not np.isfinite(part.utility):
            game.raise_not_finite()
        term = np.concatenate([part.values, part.errors, [part.utility]]) - lost
        longer = total + term
        lost = (longer - total) - term
        total = longer
    values, errors, utility = np.split(total / game.n_samples, [game.n_clients, 2 * game.n_clients])
    return ThirdOrder(values, errors, float(utility[0]))


def balance(values: Floats, errors: Floats, utility: float) -> ThirdOrder:
    """Return the values moved within their errors so that they add up to `utility`, and the errors that then hold."""
    allowed = errors.sum()
    if allowed == 0 or not np.isfinite(allowed):
        return ThirdOrder(values, errors, utility)
    # The gap is at most the sum of the errors, up to the rounding of the utility itself.
    fraction = np.clip((utility - values.sum()) / allowed, -1, 1)
    return ThirdOrder(values + fraction * errors, errors * (1 + abs(fraction)), utility)


def third_order(block: Block, loss: Loss) -> ThirdOrder:
    """Return the third-order values of a block, their errors and the utility, as sums over its samples.

    The utility is NaN if an embedding is not finite, or too large to compute with.
    """
    constants = BoundConstants.of(loss, block)
    moments = sum_moments(block, constants.uses_range)
    if not moments.magnitude.max() < LARGEST_EMBEDDING:
        nothing = np.zeros(len(block.previous))
        return ThirdOrder(nothing, nothing, np.nan)
    expansion = loss.expand(moments.base, moments.total, block.labels)
    values, errors = _sum_over_samples(block, moments, expansion.gradient, expansion.cubic, constants)
    return ThirdOrder(values, errors, expansion.decrease)


def cubic_values(block: Block, cubic: CubicForm) -> Floats:
    """Return the Shapley values, summed over samples, of the game whose loss is only D^3 f[u, u, u]/6 at distance u."""
    moments = sum_moments(block)
    values, _ = _sum_over_samples(block, moments, np.zeros_like(moments.total), cubic, BoundConstants())
    return values


def _sum_over_samples(
    block: Block, moments: Moments, gradient: Floats, cubic: CubicForm, constants: BoundConstants
) -> tuple[Floats, Floats]:
    """Return the values and errors of all clients, summed over the samples of a block."""
    sum_it = _sum_scalars if block.n_classes == 1 else _sum_classes
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


def sum_moments(block: Block, uses_range: bool = False) -> Moments:
    """Return the moments of a block; spreads of several classes are ranges if `uses_range`, and norms if not."""
    shape = block.n_samples, block.n_classes
    arrays = block.previous, block.current, block.start
    base, total, squares, path, magnitude = _moments(*arrays, *shape, uses_range)
    moments = Moments(base.reshape(shape), total.reshape(shape), squares.reshape(shape), path, magnitude)
    if block.offset is not None:
        np.add(moments.base, block.offset, out=moments.base)
        np.add(moments.magnitude, np.abs(block.offset).max(axis=-1), out=moments.magnitude)
    return moments


# The compiled loops take (clients, samples * classes) and cut it into slices indexed from 0: only so does the compiler
# know that the numbers are contiguous and no index is negative, and uses vector instructions (four times faster).


@compiled
def _moments(
    previous: Array, current: Array, start: int, n_samples: int, n_classes: int, uses_range: bool
) -> tuple[Floats, Floats, Floats, Floats, Floats]:
    size = n_samples * n_classes
    base, total, squares, absolute = np.zeros(size), np.zeros(size), np.zeros(size), np.zeros(size)
    path = np.zeros(n_samples)
    # About 512 numbers at a time: their sums stay in the first-level cache while the clients go by.
    step = max(1, 512 // n_classes)
    for first in range(0, n_samples, step):
        last = min(first + step, n_samples)
        a, b = first * n_classes, last * n_classes
        for k in range(len(previous)):
            before = previous[k, start * n_classes + a : start * n_classes + b]
            after = current[k, start * n_classes + a : start * n_classes + b]
            if n_classes == 1:
                _add_scalar_moments(before, after, base[a:b], total[a:b], squares[a:b], absolute[a:b], path[a:b])
            else:
                _add_moments(before, after, base[a:b], total[a:b], squares[a:b], absolute[a:b])
                _add_spread(before, after, path[first:last], n_classes, uses_range)
    if n_classes == 1:
        return base, total, squares, path, absolute
    magnitude = np.empty(n_samples)
    for i in range(n_samples):
        magnitude[i] = absolute[i * n_classes : (i + 1) * n_classes].max()
    return base, total, squares, path, magnitude


@compiled
def _add_moments(before: Array, after: Array, base: Floats, total: Floats, squares: Floats, absolute: Floats) -> None:
    for j in range(len(before)):
        h = np.float64(before[j])
        d = np.float64(after[j]) - h
        base[j] += h
        total[j] += d
        squares[j] += d * d
        absolute[j] += abs(h) + abs(d)


@compiled
def _add_scalar_moments(
    before: Array, after: Array, base: Floats, total: Floats, squares: Floats, absolute: Floats, path: Floats
) -> None:
    for i in range(len(before)):
        h = np.float64(before[i])
        d = np.float64(after[i]) - h
        size = abs(d)
        base[i] += h
        total[i] += d
        squares[i] += d * d
        absolute[i] += abs(h) + size
        path[i] += size


@compiled
def _add_spread(before: Array, after: Array, path: Floats, n_classes: int, uses_range: bool) -> None:
    for i in range(len(path)):
        smallest, largest, squares = np.inf, -np.inf, 0.0
        for j in range(i * n_classes, (i + 1) * n_classes):
            d = np.float64(after[j]) - np.float64(before[j])
            smallest, largest, squares = min(smallest, d), max(largest, d), squares + d * d
        path[i] += largest - smallest if uses_range else np.sqrt(squares)


@inlined
def _truncation(length: float, energy: float, path: float, constants: BoundConstants) -> float:
    """Return K/24 times a bound on the mean fourth power of a coalition's distance from the midpoint.

    Two bounds, each the smaller one somewhere: half the path that all clients walk together, to the fourth; and the
    fourth moment itself, from the norm of the summed change (`length`) and the sum of squared changes (`energy`), which
    does not grow with the number of clients when their changes cancel.
    """
    reach = (length + np.sqrt(energy)) ** 2
    moment: float = reach * (reach / 80 + energy / 12) + energy * energy * (2 / 15)
    half_path = 0.25 * path * path
    return constants.fifth * min(half_path * half_path, constants.norm * moment)


@compiled
def _truncation_each(length: Floats, energy: Floats, path: Floats, constants: BoundConstants) -> Floats:
    result = np.empty(len(length))
    for i in range(len(length)):
        result[i] = _truncation(length[i], energy[i], path[i], constants)
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
    linear, quadratic, error = np.empty(n_samples), np.empty(n_samples), np.empty(n_samples)
    total, energy, path, magnitude = moments.total.ravel(), moments.squares.ravel(), moments.path, moments.magnitude
    slope, third = gradient.ravel(), cubic.weights.ravel()
    for i in range(n_samples):
        linear[i] = slope[i] + third[i] * (total[i] * total[i] / 24 + energy[i] / 12)
        quadratic[i] = third[i] * total[i] / 12
        error[i] = _truncation(abs(total[i]), energy[i], path[i], constants)
        size = abs(linear[i]) + abs(quadratic[i]) * magnitude[i]
        error[i] += constants.midpoint_rounding * magnitude[i] + constants.sum_rounding * size
    values, errors = np.zeros(n_clients), np.zeros(n_clients)
    for k in range(n_clients):
        before, after = previous[k, start : start + n_samples], current[k, start : start + n_samples]
        value_of_client, error_of_client = 0.0, 0.0
        for i in range(len(before)):
            d = np.float64(after[i]) - np.float64(before[i])
            value_of_client += d * (quadratic[i] * d - linear[i])
            error_of_client += abs(d) * error[i]
        values[k], errors[k] = value_of_client, error_of_client
    return values, errors


@compiled
def _sum_classes(
    previous: Array,
    current: Array,
    start: int,
    moments: Moments,
    gradient: Floats,
    cubic: CubicForm,
    constants: BoundConstants,
) -> tuple[Floats, Floats]:
    """Return the same for embeddings of several classes, the third derivative being a CubicForm.

    Some samples at a time are turned to (classes, samples), since loops over a few classes are not vectorised: that is
    2.5 times faster for seven classes.
    """
    n_clients = len(previous)
    n_samples, n_classes = gradient.shape
    values, errors = np.zeros(n_clients), np.zeros(n_clients)
    # As many samples as stay in the second-level cache with the changes of all clients.
    most = min(64, max(8, 2**14 // (n_clients * n_classes)))
    change, means = np.empty((n_clients, n_classes, most)), np.empty((n_clients, most))
    planes = np.empty((6, n_classes, most))
    scratch = np.empty((6, most))
    for first in range(0, n_samples, most):
        n = min(most, n_samples - first)
        linear, quadratic, weights, centre = planes[0], planes[1], planes[2], planes[3]
        total, squares = planes[4], planes[5]
        part = slice(first, first + n)
        _turn(gradient[part], linear)
        _turn(cubic.weights[part], weights)
        _turn(cubic.centre[part], centre)
        _turn(moments.total[part], total)
        _turn(moments.squares[part], squares)
        for k in range(n_clients):
            _turn_change(previous[k], current[k], (start + first) * n_classes, n, centre, change[k], means[k])
        truncation, rounding = scratch[0, :n], scratch[1, :n]
        _class_coefficients(change, means, total, weights, centre, linear, quadratic, n)
        _class_errors(
            total,
            squares,
            linear,
            quadratic,
            moments.path[part],
            moments.magnitude[part],
            constants,
            truncation,
            rounding,
        )
        for k in range(n_clients):
            value, error = _sum_client(
                change[k], means[k, :n], linear, quadratic, truncation, rounding, constants.uses_range, scratch[2:]
            )
            values[k] += value
            errors[k] += error
    return values, errors


@compiled
def _turn(rows: Floats, plane: Floats) -> None:
    """Write (samples, classes) as (classes, samples)."""
    for c in range(rows.shape[1]):
        column, line = rows[:, c], plane[c, : len(rows)]
        for i in range(len(line)):
            line[i] = column[i]


@compiled
def _turn_change(
    before: Array, after: Array, first: int, n: int, centre: Floats, change: Floats, means: Floats
) -> None:
    """Write the change of a client as (classes, samples), and its means under `centre`."""
    n_classes = len(change)
    mean = means[:n]
    mean[:] = 0.0
    for c in range(n_classes):
        old, new = before[first + c : first + n * n_classes], after[first + c : first + n * n_classes]
        line, weight = change[c, :n], centre[c, :n]
        for i in range(len(line)):
            line[i] = np.float64(new[i * n_classes]) - np.float64(old[i * n_classes])
        for i in range(len(line)):
            mean[i] += weight[i] * line[i]


@compiled
def _class_coefficients(
    change: Floats,
    means: Floats,
    total: Floats,
    weights: Floats,
    centre: Floats,
    linear: Floats,
    quadratic: Floats,
    n: int,
) -> None:
    """Write what a client's change and its centred square are multiplied by; `linear` comes with the gradient."""
    n_clients, n_classes, _ = change.shape
    mean_total, mean_cubic, centred_squares = np.zeros(n), np.zeros(n), np.empty(n)
    for c in range(n_classes):
        of_total, weight = total[c, :n], centre[c, :n]
        for i in range(n):
            mean_total[i] += weight[i] * of_total[i]
    for c in range(n_classes):
        centred_squares[:] = 0.0
        for k in range(n_clients):
            d, mean = change[k, c, :n], means[k, :n]
            for i in range(n):
                centred_squares[i] += (d[i] - mean[i]) ** 2
        of_total, weight, of_linear, of_quadratic = total[c, :n], weights[c, :n], linear[c, :n], quadratic[c, :n]
        for i in range(n):
            centred = of_total[i] - mean_total[i]
            term = weight[i] * (centred * centred / 24 + centred_squares[i] / 12)
            of_linear[i] += term
            mean_cubic[i] += term
            of_quadratic[i] = weight[i] * centred / 12
    for c in range(n_classes):
        of_linear, weight = linear[c, :n], centre[c, :n]
        for i in range(n):
            of_linear[i] -= weight[i] * mean_cubic[i]


@compiled
def _class_errors(
    total: Floats,
    squares: Floats,
    linear: Floats,
    quadratic: Floats,
    path: Floats,
    magnitude: Floats,
    constants: BoundConstants,
    truncation: Floats,
    rounding: Floats,
) -> None:
    """Write what the spread of a client's change, and the sum of its sizes, are multiplied by in its error."""
    n_classes, n = len(total), len(path)
    length, energy, largest_linear, largest_quadratic = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    for c in range(n_classes):
        of_total, of_squares = total[c, :n], squares[c, :n]
        for i in range(n):
            length[i] += of_total[i] * of_total[i]
            energy[i] += of_squares[i]
        of_linear, of_quadratic = linear[c, :n], quadratic[c, :n]
        for i in range(n):
            largest_linear[i] = max(largest_linear[i], abs(of_linear[i]))
            largest_quadratic[i] = max(largest_quadratic[i], abs(of_quadratic[i]))
    for i in range(n):
        truncation[i] = _truncation(np.sqrt(length[i]), energy[i], path[i], constants)
        # Of a term of the sum, per unit of the change of a class.
        size = largest_linear[i] + largest_quadratic[i] * magnitude[i]
        rounding[i] = constants.midpoint_rounding * magnitude[i] + constants.gradient_rounding
        rounding[i] += constants.sum_rounding * size


@compiled
def _sum_client(
    change: Floats,
    mean: Floats,
    linear: Floats,
    quadratic: Floats,
    truncation: Floats,
    rounding: Floats,
    uses_range: bool,
    scratch: Floats,
) -> tuple[float, float]:
    """Return the sums over some samples of the value of a client and of its error."""
    n_classes, n = len(change), len(mean)
    smallest, largest, squares, length = scratch[0, :n], scratch[1, :n], scratch[2, :n], scratch[3, :n]
    smallest[:], largest[:], squares[:], length[:] = np.inf, -np.inf, 0.0, 0.0
    value, error = 0.0, 0.0
    for c in range(n_classes):
        d, of_linear, of_quadratic = change[c, :n], linear[c, :n], quadratic[c, :n]
        for i in range(n):
            value += of_quadratic[i] * (d[i] - mean[i]) ** 2 - of_linear[i] * d[i]
            length[i] += abs(d[i])
        for i in range(n):
            smallest[i] = min(smallest[i], d[i])
            largest[i] = max(largest[i], d[i])
            squares[i] += d[i] * d[i]
    for i in range(n):
        spread = largest[i] - smallest[i] if uses_range else np.sqrt(squares[i])
        error += spread * truncation[i] + length[i] * rounding[i]
    return value, error
