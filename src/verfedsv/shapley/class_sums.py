"""The loops of the closed form for embeddings of several classes."""

from __future__ import annotations

import numpy as np

from verfedsv.compiled import add, compiled, inlined
from verfedsv.loss_loops import expand_softmax
from verfedsv.losses import Array, CubicForm, Floats
from verfedsv.shapley.moments import (
    RUN,
    BoundConstants,
    Moments,
    add_scalar_moments,
    are_valid,
    read_ahead,
    truncation_of,
)

PADDING = 8
"""Numbers between the lines of transposed changes: lines a power of two apart would share a few lines of the cache."""


@compiled
def sum_classes(
    previous: Array,
    current: Array,
    start: int,
    moments: Moments,
    gradient: Floats,
    cubic: CubicForm,
    constants: BoundConstants,
) -> tuple[Floats, Floats]:
    """Return the values and errors of all clients, summed over samples.

    Runs of samples are transposed to (classes, samples), as loops over a few classes are not vectorised: 2.5 times
    faster for seven classes.
    """
    n_clients = len(previous)
    n_samples, n_classes = gradient.shape
    values, lost, errors = np.zeros(n_clients), np.zeros(n_clients), np.zeros(n_clients)
    most = min(RUN, n_samples)
    change, of_clients = np.empty((n_clients, n_classes, RUN + PADDING)), np.empty((2, n_clients, most))
    scratch = np.empty(most)
    linear, weights, centre, total, squares = np.empty((5, n_classes, most))
    for first in range(0, n_samples, most):
        n = min(most, n_samples - first)
        part = slice(first, first + n)
        _transpose(gradient[part], linear)
        _transpose(cubic.weights[part], weights)
        _transpose(cubic.centre[part], centre)
        _transpose(moments.total[part], total)
        _transpose(moments.squares[part], squares)
        at = (start + first) * n_classes
        for k in range(n_clients):
            _transpose_change(previous[k, at : at + n * n_classes], current[k, at : at + n * n_classes], n, change[k])
            _write_spread(change[k], constants.uses_range, scratch[:n], of_clients[0, k, :n])
        tile = Moments(total, total, squares, moments.path[part], moments.magnitude[part])
        _add_values(change, of_clients, tile, linear, CubicForm(weights, centre), constants, values, lost, errors)
    return values, errors


@compiled
def sum_softmax(
    previous: Array,
    current: Array,
    start: int,
    labels: Array,
    offset: Floats,
    n_classes: int,
    constants: BoundConstants,
) -> tuple[Floats, Floats, float]:
    """Return the same for the softmax loss with an `offset`, (samples, classes) or empty, and the decrease of the loss.

    A run of samples goes through all steps before the next, so embeddings are read and transposed once. The decrease is
    NaN if an embedding is not finite or too large.
    """
    n_clients, n_samples = len(previous), len(labels)
    values, lost, errors = np.zeros(n_clients), np.zeros(n_clients), np.zeros(n_clients)
    decrease, decrease_lost = 0.0, 0.0
    most = min(RUN, n_samples)
    change, of_clients = np.empty((n_clients, n_classes, RUN + PADDING)), np.empty((2, n_clients, most))
    scratch = np.empty(most)
    shape = n_classes, most
    base, total, squares, absolute = np.empty(shape), np.empty(shape), np.empty(shape), np.empty(shape)
    p, linear = np.empty(shape), np.empty(shape)
    paths, magnitudes = np.empty(most), np.empty(most)
    sums = np.empty((5, most * n_classes))
    for first in range(0, n_samples, most):
        n = min(most, n_samples - first)
        path, magnitude = paths[:n], magnitudes[:n]
        path[:], magnitude[:] = 0.0, 0.0
        size, at = n * n_classes, (start + first) * n_classes
        sums[:] = 0.0
        if len(offset) > 0:
            own = offset[first : first + n].ravel()
            for i in range(size):
                sums[0, i] = own[i]
                sums[3, i] = abs(own[i])
        # In the order of the embeddings: only the sums are transposed, not what is summed.
        add_scalar_moments(
            previous, current, at, (sums[0, :size], sums[1, :size], sums[2, :size], sums[3, :size], sums[4, :size])
        )
        if not are_valid(sums[3, :size]):
            return values, errors, np.nan
        _transpose(sums[0, :size].reshape(n, n_classes), base)
        _transpose(sums[1, :size].reshape(n, n_classes), total)
        _transpose(sums[2, :size].reshape(n, n_classes), squares)
        _transpose(sums[3, :size].reshape(n, n_classes), absolute)
        ahead = at + size, at + size + min(size, (n_samples - first - n) * n_classes)
        for k in range(n_clients):
            read_ahead(previous[k], ahead)
            read_ahead(current[k], ahead)
            _transpose_change(previous[k, at : at + size], current[k, at : at + size], n, change[k])
            _write_spread(change[k], constants.uses_range, scratch[:n], of_clients[0, k, :n])
            _accumulate(path, of_clients[0, k, :n])
        for c in range(n_classes):
            _write_larger(absolute[c, :n], magnitude)
        of_tile = expand_softmax(base, total, labels[first : first + n], p, linear)
        decrease, decrease_lost = add(decrease, decrease_lost, of_tile)
        tile = Moments(base, total, squares, path, magnitude)
        _add_values(change, of_clients, tile, linear, CubicForm(p, p), constants, values, lost, errors)
    return values, errors, decrease


@inlined
def _write_larger(numbers: Floats, largest: Floats) -> None:
    """Replace `largest` by the absolute number where that is larger."""
    for i in range(len(numbers)):
        largest[i] = max(largest[i], abs(numbers[i]))


@inlined
def _accumulate(total: Floats, term: Floats) -> None:
    for i in range(len(total)):
        total[i] += term[i]


@inlined
def _transpose(rows: Floats, plane: Floats) -> None:
    """Write (samples, classes) as (classes, samples)."""
    for c in range(rows.shape[1]):
        column, line = rows[:, c], plane[c, : len(rows)]
        for i in range(len(line)):
            line[i] = column[i]


@inlined
def _transpose_change(before: Array, after: Array, n_samples: int, change: Floats) -> None:
    """Write a client's changes, (samples, classes) in one line, as (classes, samples)."""
    n_classes = len(change)
    for c in range(n_classes):
        old, new, line = before[c:], after[c:], change[c, :n_samples]
        for i in range(n_samples):
            line[i] = np.float64(new[i * n_classes]) - np.float64(old[i * n_classes])


@inlined
def _write_spread(change: Floats, uses_range: bool, smallest: Floats, spread: Floats) -> None:
    """Write the spreads of a client's changes, (classes, samples): their ranges over classes or their norms.

    `smallest` is scratch space.
    """
    n = len(spread)
    if uses_range:
        first = change[0, :n]
        for i in range(n):
            smallest[i] = spread[i] = first[i]
        for c in range(1, len(change)):
            d = change[c, :n]
            for i in range(n):
                smallest[i] = min(smallest[i], d[i])
                spread[i] = max(spread[i], d[i])
        for i in range(n):
            spread[i] -= smallest[i]
    else:
        spread[:] = 0.0
        for c in range(len(change)):
            d = change[c, :n]
            for i in range(n):
                spread[i] += d[i] * d[i]
        for i in range(n):
            spread[i] = np.sqrt(spread[i])


@inlined
def _add_values(
    change: Floats,
    of_clients: Floats,
    moments: Moments,
    linear: Floats,
    cubic: CubicForm,
    constants: BoundConstants,
    values: Floats,
    lost: Floats,
    errors: Floats,
) -> None:
    """Add the values and errors of all clients for a run of samples.

    `of_clients`, (2, clients, samples), holds the spreads of their changes, and then gets the means of these.
    `linear`, (classes, samples), holds the gradient, and is overwritten with the factors of a client's change.
    """
    n = len(moments.path)
    truncation, rounding = np.empty(n), np.empty(n)
    quadratic = np.empty(linear.shape)
    spreads, means = of_clients[0], of_clients[1]
    for k in range(len(change)):
        _write_mean(change[k], cubic.centre, means[k, :n])
    _write_coefficients(change, means, moments.total, cubic, n, linear, quadratic)
    _write_errors(moments, linear, quadratic, constants, truncation, rounding)
    for k in range(len(change)):
        value, error = _sum_client(
            change[k], means[k, :n], spreads[k, :n], linear, quadratic, truncation, rounding, constants.uses_range
        )
        values[k], lost[k] = add(values[k], lost[k], value)
        errors[k] += error


@inlined
def _write_mean(vectors: Floats, centre: Floats, mean: Floats) -> None:
    """Write the means under `centre` of vectors, (classes, samples)."""
    n = len(mean)
    mean[:] = 0.0
    for c in range(len(vectors)):
        v, weight = vectors[c, :n], centre[c, :n]
        for i in range(n):
            mean[i] += weight[i] * v[i]


@inlined
def _write_coefficients(
    change: Floats, means: Floats, total: Floats, cubic: CubicForm, n: int, linear: Floats, quadratic: Floats
) -> None:
    """Write the factors of a client's change and of its centred square; `linear` holds the gradient before."""
    weights, centre = cubic
    n_clients, n_classes, _ = change.shape
    # The sums of centred squares are gathered in `quadratic` until it is written.
    for c in range(n_classes):
        quadratic[c, :n] = 0.0
    for k in range(n_clients):
        mean = means[k, :n]
        for c in range(n_classes):
            d, squares = change[k, c, :n], quadratic[c, :n]
            for i in range(n):
                squares[i] += (d[i] - mean[i]) ** 2
    mean, mean_cubic = np.empty(n), np.zeros(n)
    _write_mean(total, centre, mean)
    for c in range(n_classes):
        of_total, weight, of_linear, of_quadratic = total[c, :n], weights[c, :n], linear[c, :n], quadratic[c, :n]
        for i in range(n):
            centred = of_total[i] - mean[i]
            term = weight[i] * (centred * centred / 24 + of_quadratic[i] / 12)
            of_linear[i] += term
            mean_cubic[i] += term
            of_quadratic[i] = weight[i] * centred / 12
    for c in range(n_classes):
        of_linear, weight = linear[c, :n], centre[c, :n]
        for i in range(n):
            of_linear[i] -= weight[i] * mean_cubic[i]


@inlined
def _write_errors(
    moments: Moments,
    linear: Floats,
    quadratic: Floats,
    constants: BoundConstants,
    truncation: Floats,
    rounding: Floats,
) -> None:
    """Write the factors of the spread of a client's change, and of its summed absolute change, in its error."""
    total, squares, path, magnitude = moments.total, moments.squares, moments.path, moments.magnitude
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
        truncation[i] = truncation_of(np.sqrt(length[i]), energy[i], path[i], constants)
        # The size of a term of the sum, per unit of the change of a class.
        size = largest_linear[i] + largest_quadratic[i] * magnitude[i]
        rounding[i] = constants.midpoint_rounding * magnitude[i] + constants.gradient_rounding
        rounding[i] += constants.sum_rounding * size


@inlined
def _sum_client(
    change: Floats,
    mean: Floats,
    spread: Floats,
    linear: Floats,
    quadratic: Floats,
    truncation: Floats,
    rounding: Floats,
    uses_range: bool,
) -> tuple[float, float]:
    """Return a client's value and error, summed over a run of samples."""
    n = len(mean)
    # A loss whose spread is the range does not see a change of all classes alike, so the rounding of such a change must
    # not be multiplied by the others' changes.
    shift = 1.0 if uses_range else 0.0
    value, error = 0.0, 0.0
    for c in range(len(change)):
        d, of_linear, of_quadratic = change[c, :n], linear[c, :n], quadratic[c, :n]
        for i in range(n):
            value += of_quadratic[i] * (d[i] - mean[i]) ** 2 - of_linear[i] * (d[i] - shift * mean[i])
            error += abs(d[i]) * rounding[i]
    for i in range(n):
        error += spread[i] * truncation[i]
    return value, error
