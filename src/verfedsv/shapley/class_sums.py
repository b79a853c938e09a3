"""The loops of the closed form for embeddings of several classes.

Eight samples at a time are valued in vectors, one lane for each sample: loops over few classes and clients then keep
their sums in registers, and all numbers of an octet stay in the first-level cache. Arrays are flat, as each slice in a
loop costs two atomic operations, to count references.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.compiled import add, compiled, inlined
from verfedsv.loss_loops import expand_softmax
from verfedsv.losses import CubicForm
from verfedsv.shapley.moments import RUN, BoundConstants, Moments, are_valid, read_ahead, truncation_each
from verfedsv.vectors import (
    LANES,
    Vector,
    absolute,
    fill,
    larger,
    load,
    load_apart,
    root,
    smaller,
    store,
    sum_lanes,
)


class Octet(NamedTuple):
    """Eight samples, with eight numbers for each of the classes, clients or both.

    `change` are the changes of the clients, (clients, classes); `base` and `total` the sums over clients of embeddings
    and changes; `weights` and `centre` the cubic form; `linear` the gradient, and then the factors of a client's
    change, as `quadratic` those of its centred square. `spreads`, `means` and `sizes` are, for each client, the spread
    of its change, its mean under `centre` and its summed absolute values; `values` and `errors` are summed over octets.
    """

    change: Floats
    base: Floats
    total: Floats
    weights: Floats
    centre: Floats
    linear: Floats
    quadratic: Floats
    spreads: Floats
    means: Floats
    sizes: Floats
    values: Floats
    errors: Floats


@inlined
def new_octet(n_clients: int, n_classes: int, is_softmax: bool) -> Octet:
    """Return space for an octet; softmax has the same weights and centre."""
    centre = np.empty(n_classes * LANES)
    return Octet(
        np.empty(n_clients * n_classes * LANES),
        np.empty(n_classes * LANES),
        np.empty(n_classes * LANES),
        centre if is_softmax else np.empty(n_classes * LANES),
        centre,
        np.empty(n_classes * LANES),
        np.empty(n_classes * LANES),
        np.empty(n_clients * LANES),
        np.empty(n_clients * LANES),
        np.empty(n_clients * LANES),
        np.empty(n_clients * LANES),
        np.empty(n_clients * LANES),
    )


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
    """Return the values and errors of all clients, summed over samples."""
    n_clients = len(previous)
    n_samples, n_classes = gradient.shape
    values, lost, errors = np.zeros(n_clients), np.zeros(n_clients), np.zeros(n_clients)
    octet = new_octet(n_clients, n_classes, False)
    width = RUN * n_classes
    sums, changes, lines, magnitudes = (
        np.zeros(4 * width),
        np.zeros(n_clients * width),
        np.zeros(5 * width),
        np.zeros(RUN),
    )
    for first in range(0, n_samples, RUN):
        n = min(RUN, n_samples - first)
        size, part = n * n_classes, slice(first, first + n)
        if n < RUN:
            changes[:], lines[:], magnitudes[:] = 0.0, 0.0, 0.0
        sums[:] = 0.0
        at = (start + first) * n_classes
        _add_changes(previous, current, at, size, sums, changes)
        lines[:size] = gradient[part].ravel()
        lines[width : width + size] = cubic.weights[part].ravel()
        lines[2 * width : 2 * width + size] = cubic.centre[part].ravel()
        lines[3 * width : 3 * width + size] = moments.total[part].ravel()
        lines[4 * width : 4 * width + size] = moments.squares[part].ravel()
        magnitudes[:n] = moments.magnitude[part]
        octet.values[:], octet.errors[:] = 0.0, 0.0
        for b in range(0, n, LANES):
            energy = fill(0.0)
            for c in range(n_classes):
                store(octet.linear, c * LANES, load_apart(lines, b * n_classes + c, n_classes))
                store(octet.weights, c * LANES, load_apart(lines, width + b * n_classes + c, n_classes))
                store(octet.centre, c * LANES, load_apart(lines, 2 * width + b * n_classes + c, n_classes))
                store(octet.total, c * LANES, load_apart(lines, 3 * width + b * n_classes + c, n_classes))
                energy += load_apart(lines, 4 * width + b * n_classes + c, n_classes)
            _read_changes(changes, b, n_classes, octet.change)
            add_octet(octet, energy, load(magnitudes, b), constants)
        add_run(octet, values, lost, errors)
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

    The decrease is NaN if an embedding is not finite or too large.
    """
    n_clients, n_samples = len(previous), len(labels)
    values, lost, errors = np.zeros(n_clients), np.zeros(n_clients), np.zeros(n_clients)
    decrease, decrease_lost = 0.0, 0.0
    octet, line = new_octet(n_clients, n_classes, True), np.empty(LANES)
    width = RUN * n_classes
    sums, changes, own_labels = np.zeros(4 * width), np.zeros(n_clients * width), np.zeros(RUN, np.intp)
    for first in range(0, n_samples, RUN):
        n = min(RUN, n_samples - first)
        size, at = n * n_classes, (start + first) * n_classes
        if n < RUN:
            changes[:], own_labels[:] = 0.0, 0
        own_labels[:n] = labels[first : first + n]
        sums[:] = 0.0
        if len(offset) > 0:
            own = offset[first : first + n].ravel()
            for i in range(size):
                sums[i] = own[i]
                sums[3 * width + i] = abs(own[i])
        _add_changes(previous, current, at, size, sums, changes)
        if not are_valid(sums[3 * width : 3 * width + size]):
            return values, errors, np.nan
        n_ahead = min(size, (n_samples - first - n) * n_classes)
        octet.values[:], octet.errors[:] = 0.0, 0.0
        of_run = 0.0
        for b in range(0, n, LANES):
            energy, magnitude = fill(0.0), fill(0.0)
            for c in range(n_classes):
                store(octet.base, c * LANES, load_apart(sums, b * n_classes + c, n_classes))
                store(octet.total, c * LANES, load_apart(sums, width + b * n_classes + c, n_classes))
                energy += load_apart(sums, 2 * width + b * n_classes + c, n_classes)
                magnitude = larger(magnitude, load_apart(sums, 3 * width + b * n_classes + c, n_classes))
            _read_changes(changes, b, n_classes, octet.change)
            # A part of the next run with each octet, as the processor waits if many reads are under way.
            ahead = at + size + b * n_classes, at + size + min((b + LANES) * n_classes, n_ahead)
            for k in range(n_clients):
                read_ahead(previous, k, ahead)
                read_ahead(current, k, ahead)
            of_run += expand_softmax(octet.base, octet.total, own_labels, b, octet.centre, octet.linear, line)
            add_octet(octet, energy, magnitude, constants)
        decrease, decrease_lost = add(decrease, decrease_lost, of_run)
        add_run(octet, values, lost, errors)
    return values, errors, decrease


@inlined
def _add_changes(previous: Array, current: Array, first: int, size: int, sums: Floats, changes: Floats) -> None:
    """Write the changes of all clients in `size` numbers, and add to base, total, squares and absolute sums.

    In the order of the embeddings, two clients at a time, so that the sums are read and written half as often.
    """
    width, last = len(sums) // 4, first + size
    base, total = sums[:size], sums[width : width + size]
    squares, magnitude = sums[2 * width : 2 * width + size], sums[3 * width : 3 * width + size]
    k = 0
    while k + 2 <= len(previous):
        before0, before1 = previous[k, first:last], previous[k + 1, first:last]
        after0, after1 = current[k, first:last], current[k + 1, first:last]
        change0, change1 = changes[k * width : k * width + size], changes[(k + 1) * width : (k + 1) * width + size]
        for i in range(size):
            h0, h1 = np.float64(before0[i]), np.float64(before1[i])
            d0, d1 = after0[i] - h0, after1[i] - h1
            change0[i], change1[i] = d0, d1
            base[i] += h0 + h1
            total[i] += d0 + d1
            squares[i] += d0 * d0 + d1 * d1
            magnitude[i] += (abs(h0) + abs(h1)) + (abs(d0) + abs(d1))
        k += 2
    if k < len(previous):
        before, after, change = previous[k, first:last], current[k, first:last], changes[k * width : k * width + size]
        for i in range(size):
            h = np.float64(before[i])
            d = after[i] - h
            change[i] = d
            base[i] += h
            total[i] += d
            squares[i] += d * d
            magnitude[i] += abs(h) + abs(d)


@inlined
def _read_changes(changes: Floats, first: int, n_classes: int, change: Floats) -> None:
    """Transpose the changes of eight samples, of all clients."""
    for k in range(len(change) // (n_classes * LANES)):
        for c in range(n_classes):
            numbers = load_apart(changes, (k * RUN + first) * n_classes + c, n_classes)
            store(change, (k * n_classes + c) * LANES, numbers)


@inlined
def add_octet(octet: Octet, energy: Vector, magnitude: Vector, constants: BoundConstants) -> None:
    """Add the values and errors of all clients in an octet to those of the run.

    `energy` are the summed squares of all changes, `magnitude` the largest over classes of the summed absolute numbers.
    """
    n_clients, n_classes = len(octet.spreads) // LANES, len(octet.total) // LANES
    path = fill(0.0)
    for k in range(n_clients):
        spread, mean, size = measure_change(octet.change, k * n_classes * LANES, octet.centre, constants)
        path = path + spread
        store(octet.spreads, k * LANES, spread)
        store(octet.means, k * LANES, mean)
        store(octet.sizes, k * LANES, size)
    for c in range(0, n_classes * LANES, LANES):
        squares = fill(0.0)
        for k in range(n_clients):
            centred = load(octet.change, k * n_classes * LANES + c) - load(octet.means, k * LANES)
            squares = squares + centred * centred
        store(octet.quadratic, c, squares)
    parts = octet.total, octet.weights, octet.centre, octet.linear, octet.quadratic
    truncation, rounding = write_coefficients(parts, path, energy, magnitude, constants)
    for k in range(n_clients):
        at, mean = k * n_classes * LANES, load(octet.means, k * LANES)
        value = value_change(octet.change, at, mean, octet.linear, octet.quadratic, constants)
        error = load(octet.spreads, k * LANES) * truncation + load(octet.sizes, k * LANES) * rounding
        store(octet.values, k * LANES, load(octet.values, k * LANES) + value)
        store(octet.errors, k * LANES, load(octet.errors, k * LANES) + error)


@inlined
def measure_change(change: Floats, at: int, centre: Floats, constants: BoundConstants) -> tuple[Vector, Vector, Vector]:
    """Return the spread of a change from index `at` on, its mean under `centre` and its summed absolute values."""
    d = load(change, at)
    smallest, largest, squares = d, d, d * d
    mean, size = d * load(centre, 0), absolute(d)
    for c in range(LANES, len(centre), LANES):
        d = load(change, at + c)
        if constants.uses_range:
            smallest, largest = smaller(smallest, d), larger(largest, d)
        else:
            squares = squares + d * d
        mean = mean + d * load(centre, c)
        size = size + absolute(d)
    spread = largest - smallest if constants.uses_range else root(squares)
    return spread, mean, size


@inlined
def value_change(
    change: Floats, at: int, mean: Vector, linear: Floats, quadratic: Floats, constants: BoundConstants
) -> Vector:
    """Return the value of a change from index `at` on, given its mean."""
    # A loss whose spread is the range does not see a change of all classes alike, so the rounding of such a change must
    # not be multiplied by the others' changes.
    shift = 1.0 if constants.uses_range else 0.0
    value = fill(0.0)
    for c in range(0, len(linear), LANES):
        d = load(change, at + c)
        centred, seen = d - mean, d - shift * mean
        value = value + (load(quadratic, c) * centred * centred - load(linear, c) * seen)
    return value


Coefficients = tuple[Floats, Floats, Floats, Floats, Floats]


@inlined
def write_coefficients(
    parts: Coefficients, path: Vector, energy: Vector, magnitude: Vector, constants: BoundConstants
) -> tuple[Vector, Vector]:
    """Write the factors of a client's change and of its centred square; return those of its spread and size in errors.

    From the total change, weights and centre of the cubic form, in place of the gradient and of the summed centred
    squares of all changes.
    """
    totals, weights, centre, linears, quadratics = parts
    mean, length = fill(0.0), fill(0.0)
    for c in range(0, len(totals), LANES):
        total = load(totals, c)
        mean = mean + total * load(centre, c)
        length = length + total * total
    mean_cubic, largest_linear, largest_quadratic = fill(0.0), fill(0.0), fill(0.0)
    for c in range(0, len(totals), LANES):
        weight, centred = load(weights, c), load(totals, c) - mean
        term = weight * (centred * centred * (1 / 24) + load(quadratics, c) * (1 / 12))
        mean_cubic = mean_cubic + term
        quadratic = weight * centred * (1 / 12)
        store(linears, c, load(linears, c) + term)
        store(quadratics, c, quadratic)
        largest_quadratic = larger(largest_quadratic, absolute(quadratic))
    for c in range(0, len(totals), LANES):
        linear = load(linears, c) - load(centre, c) * mean_cubic
        store(linears, c, linear)
        largest_linear = larger(largest_linear, absolute(linear))
    truncation = truncation_each(root(length), energy, path, constants)
    # The size of a term of the sum, per unit of the change of a class.
    size = largest_linear + largest_quadratic * magnitude
    rounding = constants.midpoint_rounding * magnitude + constants.gradient_rounding + constants.sum_rounding * size
    return truncation, rounding


@inlined
def add_run(octet: Octet, values: Floats, lost: Floats, errors: Floats) -> None:
    """Add the values and errors of a run of samples, compensated."""
    for k in range(len(values)):
        values[k], lost[k] = add(values[k], lost[k], sum_lanes(load(octet.values, k * LANES)))
        errors[k] += sum_lanes(load(octet.errors, k * LANES))
