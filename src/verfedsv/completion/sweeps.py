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

from verfedsv.compiled import compiled, inlined, inlined_in_order
from verfedsv.losses import Array, Floats


class Observed(NamedTuple):
    """The arrays of a `Pattern`, which observations are held out, and their values, (observations, classes)."""

    starts: Array
    rounds: Array
    is_held_out: Array
    values: Array


@compiled
def sweep_samples(
    first: int,
    last: int,
    observed: Observed,
    by_round: Floats,
    rounds_factor: Floats,
    regularization: float,
    samples_factor: Floats,
    gram: Floats,
    target: Floats,
) -> None:
    """Solve for samples `first` to `last` - 1, and add them to the normal equations of the rounds.

    `by_round`, (rounds, packed), are the sums over classes of w w'. `gram`, (rounds, packed), and `target`, (rounds,
    classes, rank), receive the sums over samples of h h' and of x h, the two sides of the equations.
    """
    starts, rounds, is_held_out, values = observed
    n_classes, rank = rounds_factor.shape[1:]
    size = rank * (rank + 1) // 2
    matrix, h = np.empty(size), np.empty(rank)
    for i in range(first, last):
        matrix[:], h[:] = 0.0, 0.0
        for p in range(starts[i], starts[i + 1]):
            if is_held_out[p]:
                continue
            t = rounds[p]
            _add(matrix, by_round[t])
            for c in range(n_classes):
                _add_scaled(h, rounds_factor[t, c], values[p, c])
        _solve(matrix, h, regularization)
        samples_factor[i] = h
        for a in range(rank):
            for b in range(a + 1):
                matrix[a * (a + 1) // 2 + b] = h[a] * h[b]
        for p in range(starts[i], starts[i + 1]):
            if is_held_out[p]:
                continue
            t = rounds[p]
            _add(gram[t], matrix)
            for c in range(n_classes):
                _add_scaled(target[t, c], h, values[p, c])


@compiled
def solve_rounds(gram: Floats, target: Floats, regularization: float, rounds_factor: Floats) -> None:
    """Solve the normal equations of all rounds; `gram` is overwritten."""
    n_rounds, n_classes, _ = rounds_factor.shape
    for t in range(n_rounds):
        _factorise(gram[t], target.shape[2], regularization)
        for c in range(n_classes):
            rounds_factor[t, c] = target[t, c]
            _substitute(gram[t], rounds_factor[t, c])


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
def sum_errors(first: int, last: int, observed: Observed, rounds_factor: Floats, samples_factor: Floats) -> Floats:
    """Return the number, sum of squares and largest absolute value of the errors of samples `first` to `last` - 1.

    (2, 3): of the observations used, and of those held out.
    """
    starts, rounds, is_held_out, values = observed
    n_classes, rank = rounds_factor.shape[1:]
    result = np.zeros((2, 3))
    for i in range(first, last):
        h = samples_factor[i]
        for p in range(starts[i], starts[i + 1]):
            t, kind = rounds[p], 1 if is_held_out[p] else 0
            for c in range(n_classes):
                error = np.float64(values[p, c])
                for a in range(rank):
                    error -= rounds_factor[t, c, a] * h[a]
                result[kind, 1] += error * error
                result[kind, 2] = max(result[kind, 2], abs(error))
            result[kind, 0] += n_classes
    return result


@compiled
def sum_squares(values: Array, is_held_out: Array) -> float:
    """Return the sum of squares of the observations that are not held out."""
    total = 0.0
    for p in range(len(values)):
        if not is_held_out[p]:
            for c in range(values.shape[1]):
                total += np.float64(values[p, c]) ** 2
    return total


@inlined_in_order
def _add(total: Floats, term: Floats) -> None:
    for j in range(len(total)):
        total[j] += term[j]


@inlined_in_order
def _add_scaled(total: Floats, term: Floats, scale: float) -> None:
    for j in range(len(total)):
        total[j] += term[j] * scale


@inlined_in_order
def _solve(matrix: Floats, vector: Floats, regularization: float) -> None:
    """Replace `vector` by the solution of (matrix + regularization I) x = vector; `matrix` is overwritten."""
    _factorise(matrix, len(vector), regularization)
    _substitute(matrix, vector)


@inlined
def _factorise(matrix: Floats, rank: int, regularization: float) -> None:
    """Replace a packed matrix by the Cholesky factor of (matrix + regularization I), its diagonal inverted."""
    for a in range(rank):
        row = a * (a + 1) // 2
        for b in range(a + 1):
            column = b * (b + 1) // 2
            total = matrix[row + b]
            for j in range(b):
                total -= matrix[row + j] * matrix[column + j]
            if b == a:
                matrix[row + a] = 1 / np.sqrt(total + regularization)
            else:
                matrix[row + b] = total * matrix[column + b]


@inlined
def _substitute(factor: Floats, vector: Floats) -> None:
    """Replace `vector` by the solution of L L' x = vector, with L a packed factor whose diagonal is inverted."""
    rank = len(vector)
    for a in range(rank):
        row = a * (a + 1) // 2
        total = vector[a]
        for j in range(a):
            total -= factor[row + j] * vector[j]
        vector[a] = total * factor[row + a]
    for a in range(rank - 1, -1, -1):
        total = vector[a]
        for j in range(a + 1, rank):
            total -= factor[j * (j + 1) // 2 + a] * vector[j]
        vector[a] = total * factor[a * (a + 1) // 2 + a]
