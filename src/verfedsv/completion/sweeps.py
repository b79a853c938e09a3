"""Alternating least squares for equation 2 of the paper, compiled.

The matrix of a client, (rounds * classes) x samples, is approximated by w_tc . h_i, with factors `rounds_factor`
(rounds, classes, rank) and `samples_factor` (samples, rank). Minimised is

    sum over observations (t, i) and classes c of (x_tci - w_tc . h_i)^2  +  regularization * (|w|^2 + |h|^2).

All classes of a sample are observed together, so the matrix of the normal equations of sample i is the sum over its
rounds of sum_c w_tc w_tc', and that of round t is, for all classes, the sum over its samples of h_i h_i'.

A sweep is one pass over the observations, sample by sample: h_i is solved for, and at once added to the normal
equations of the rounds that uploaded sample i. Then the rounds are solved for. Symmetric matrices are stored packed,
row by row up to the diagonal.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.compiled import compiled, inlined
from verfedsv.vectors import LANES, fill, load, load_first, root, store, sum_lanes


class Observed(NamedTuple):
    """Uploads sorted by sample, and in each by time: those of sample i are `starts[i]` to `starts[i + 1]` - 1.

    Of each, its round, whether it is held out, and its `values`, (observations, classes).
    """

    starts: Array
    rounds: Array
    is_held_out: Array
    values: Array


def as_lines(rounds_factor: Floats) -> Floats:
    """Return the factors of the rounds as `sweep_samples` takes them, padded to whole vectors.

    (rounds, rank, classes), or (rounds, 1, rank) if there is one class.
    """
    lines = rounds_factor if rounds_factor.shape[1] == 1 else rounds_factor.transpose(0, 2, 1)
    return padded(lines)


def from_lines(lines: Floats, n_classes: int, rank: int) -> Floats:
    """Return (rounds, classes, rank) from the form of `as_lines`."""
    return lines[:, :, :rank] if n_classes == 1 else lines[:, :, :n_classes].transpose(0, 2, 1)


def padded(array: Floats) -> Floats:
    """Return an array with zeros up to the next whole vector, along its last axis."""
    n_missing = -array.shape[-1] % LANES
    return np.ascontiguousarray(np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, n_missing)]))


@compiled
def sweep_samples(
    first: int,
    last: int,
    observed: Observed,
    by_round: Floats,
    lines: Floats,
    regularization: float,
    samples_factor: Floats,
    gram: Floats,
    target: Floats,
) -> None:
    """Solve for samples `first` to `last` - 1, and add them to the normal equations of the rounds.

    `by_round`, (rounds, packed), are the sums over classes of w w', padded, and `lines` the factors, see `as_lines`.
    `gram` and `target`, shaped alike, receive the sums over samples of h h' and of x h, the two sides of the equations,
    unless they have no rounds.
    """
    starts = observed.starts
    rank, stride = samples_factor.shape[1], by_round.shape[1]
    n_classes, width = observed.values.shape[1], lines.shape[2]
    # Flat: vectors are read from an index.
    by_round, lines, values = (
        by_round.reshape(by_round.size),
        lines.reshape(lines.size),
        observed.values.reshape(observed.values.size),
    )
    gram, target = gram.reshape(gram.size), target.reshape(target.size)
    packed, own = np.zeros(stride), np.zeros(max(rank, width))
    # The equations of eight samples are solved together, a lane for each.
    matrices, h = np.zeros(rank * (rank + 1) // 2 * LANES), np.zeros(rank * LANES)
    for block in range(first, last, LANES):
        n = min(LANES, last - block)
        for s in range(n):
            part = starts[block + s], starts[block + s + 1]
            _sum_rounds(observed, part, by_round, stride, packed)
            for j in range(rank * (rank + 1) // 2):
                matrices[j * LANES + s] = packed[j]
            if n_classes == 1:
                _sum_products(observed, part, values, lines, width, own)
            else:
                _sum_products_of_classes(observed, part, values, lines, width, rank, own)
            for a in range(rank):
                h[a * LANES + s] = own[a]
        factorise(matrices, rank, regularization)
        substitute(matrices, h, rank)
        for s in range(n):
            part = starts[block + s], starts[block + s + 1]
            for a in range(rank):
                own[a] = samples_factor[block + s, a] = h[a * LANES + s]
                for b in range(a + 1):
                    packed[a * (a + 1) // 2 + b] = own[a] * own[b]
            if gram.size > 0:
                _add_to_rounds(observed, part, values, packed, own, rank, width, gram, target)


@inlined
def _sum_rounds(observed: Observed, part: tuple[int, int], by_round: Floats, stride: int, packed: Floats) -> None:
    """Write the sum of w w' over the rounds of a sample."""
    for j in range(0, stride, LANES):
        total = fill(0.0)
        for p in range(part[0], part[1]):
            if not observed.is_held_out[p]:
                total = total + load(by_round, observed.rounds[p] * stride + j)
        store(packed, j, total)


@inlined
def _sum_products(
    observed: Observed, part: tuple[int, int], values: Array, lines: Floats, width: int, result: Floats
) -> None:
    """Write the sum of x w over the rounds of a sample of one class."""
    for j in range(0, width, LANES):
        total = fill(0.0)
        for p in range(part[0], part[1]):
            if not observed.is_held_out[p]:
                total = total + load(lines, observed.rounds[p] * width + j) * np.float64(values[p])
        store(result, j, total)


@inlined
def _sum_products_of_classes(
    observed: Observed, part: tuple[int, int], values: Array, lines: Floats, width: int, rank: int, result: Floats
) -> None:
    """Write the sum of x w over the rounds and classes of a sample."""
    n_classes = observed.values.shape[1]
    for a in range(rank):
        total = fill(0.0)
        for p in range(part[0], part[1]):
            if not observed.is_held_out[p]:
                at = (observed.rounds[p] * rank + a) * width
                for c in range(0, n_classes, LANES):
                    total = total + load(lines, at + c) * load_first(values, p * n_classes + c, n_classes - c)
        result[a] = sum_lanes(total)


@inlined
def _add_to_rounds(
    observed: Observed,
    part: tuple[int, int],
    values: Array,
    packed: Floats,
    h: Floats,
    rank: int,
    width: int,
    gram: Floats,
    target: Floats,
) -> None:
    """Add h h' and, for all classes, x h to the rounds of a sample."""
    if observed.values.shape[1] == 1:
        _add_one_class(observed, part, values, packed, h, width, gram, target)
    else:
        _add_classes(observed, part, values, packed, h, rank, width, gram, target)


@inlined
def _add_one_class(
    observed: Observed,
    part: tuple[int, int],
    values: Array,
    packed: Floats,
    h: Floats,
    width: int,
    gram: Floats,
    target: Floats,
) -> None:
    for p in range(part[0], part[1]):
        if not observed.is_held_out[p]:
            at, x = observed.rounds[p] * len(packed), np.float64(values[p])
            for j in range(0, len(packed), LANES):
                store(gram, at + j, load(gram, at + j) + load(packed, j))
            at = observed.rounds[p] * width
            for j in range(0, width, LANES):
                store(target, at + j, load(target, at + j) + load(h, j) * x)


@inlined
def _add_classes(
    observed: Observed,
    part: tuple[int, int],
    values: Array,
    packed: Floats,
    h: Floats,
    rank: int,
    width: int,
    gram: Floats,
    target: Floats,
) -> None:
    n_classes = observed.values.shape[1]
    for p in range(part[0], part[1]):
        if not observed.is_held_out[p]:
            at = observed.rounds[p] * len(packed)
            for j in range(0, len(packed), LANES):
                store(gram, at + j, load(gram, at + j) + load(packed, j))
            for c in range(0, n_classes, LANES):
                x = load_first(values, p * n_classes + c, n_classes - c)
                for a in range(rank):
                    at = (observed.rounds[p] * rank + a) * width + c
                    store(target, at, load(target, at) + x * h[a])


@inlined
def factorise(matrices: Floats, rank: int, regularization: float) -> None:
    """Replace eight packed matrices by the Cholesky factors of (matrix + regularization I), diagonals inverted."""
    for a in range(rank):
        row = a * (a + 1) // 2
        for b in range(a + 1):
            column = b * (b + 1) // 2
            total = load(matrices, (row + b) * LANES)
            for j in range(b):
                total = total - load(matrices, (row + j) * LANES) * load(matrices, (column + j) * LANES)
            if b == a:
                store(matrices, (row + a) * LANES, 1.0 / root(total + regularization))
            else:
                store(matrices, (row + b) * LANES, total * load(matrices, (column + b) * LANES))


@inlined
def substitute(factors: Floats, vectors: Floats, rank: int) -> None:
    """Replace eight vectors by the solutions of L L' x = vector, with L packed factors whose diagonals are inverted."""
    for a in range(rank):
        row = a * (a + 1) // 2
        total = load(vectors, a * LANES)
        for j in range(a):
            total = total - load(factors, (row + j) * LANES) * load(vectors, j * LANES)
        store(vectors, a * LANES, total * load(factors, (row + a) * LANES))
    for a in range(rank - 1, -1, -1):
        total = load(vectors, a * LANES)
        for j in range(a + 1, rank):
            total = total - load(factors, (j * (j + 1) // 2 + a) * LANES) * load(vectors, j * LANES)
        store(vectors, a * LANES, total * load(factors, (a * (a + 1) // 2 + a) * LANES))


@compiled
def solve_rounds(gram: Floats, target: Floats, regularization: float, rounds_factor: Floats) -> None:
    """Solve the normal equations of all rounds: `gram`, (rounds, packed), and `target`, (rounds, classes, rank)."""
    n_rounds, n_classes, rank = rounds_factor.shape
    size = rank * (rank + 1) // 2
    matrices, h = np.zeros(size * LANES), np.zeros(rank * LANES)
    for block in range(0, n_rounds, LANES):
        n = min(LANES, n_rounds - block)
        for s in range(n):
            for j in range(size):
                matrices[j * LANES + s] = gram[block + s, j]
        factorise(matrices, rank, regularization)
        for c in range(n_classes):
            for s in range(n):
                for a in range(rank):
                    h[a * LANES + s] = target[block + s, c, a]
            substitute(matrices, h, rank)
            for s in range(n):
                for a in range(rank):
                    rounds_factor[block + s, c, a] = h[a * LANES + s]


@compiled
def sum_classes(rounds_factor: Floats) -> Floats:
    """Return the sums over classes of w w', (rounds, packed)."""
    n_rounds, n_classes, rank = rounds_factor.shape
    result = np.zeros((n_rounds, rank * (rank + 1) // 2))
    for t in range(n_rounds):
        for c in range(n_classes):
            for a in range(rank):
                for b in range(a + 1):
                    result[t, a * (a + 1) // 2 + b] += rounds_factor[t, c, a] * rounds_factor[t, c, b]
    return result


@compiled
def sum_errors(observed: Observed, rounds_factor: Floats, samples_factor: Floats, total: Floats) -> None:
    """Add the number, sum of squares and largest absolute value of the errors of all samples to a total.

    (2, 3): of the observations used, and of those held out.
    """
    starts, rounds, is_held_out, values = observed
    n_classes, rank = rounds_factor.shape[1:]
    for i in range(len(samples_factor)):
        h = samples_factor[i]
        for p in range(starts[i], starts[i + 1]):
            t, kind = rounds[p], 1 if is_held_out[p] else 0
            for c in range(n_classes):
                error = np.float64(values[p, c])
                for a in range(rank):
                    error -= rounds_factor[t, c, a] * h[a]
                total[kind, 1] += error * error
                total[kind, 2] = max(total[kind, 2], abs(error))
            total[kind, 0] += n_classes


@compiled
def sum_squares(values: Array, is_held_out: Array, total: Floats) -> None:
    """Add the squares of the observations to two totals: of those used, and of those held out."""
    for p in range(len(values)):
        for c in range(values.shape[1]):
            total[1 if is_held_out[p] else 0] += np.float64(values[p, c]) ** 2


@compiled
def sum_moment(samples_factor: Floats, total: Floats) -> None:
    """Add h h' of all samples to a total, (rank, rank)."""
    for i in range(len(samples_factor)):
        for a in range(samples_factor.shape[1]):
            for b in range(samples_factor.shape[1]):
                total[a, b] += samples_factor[i, a] * samples_factor[i, b]
