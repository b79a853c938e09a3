"""Kernels of the closed form for completed embeddings: products of factors, valued round after round.

A thread values a sample in all rounds. `factors` are (factors, samples), `weights` (rounds, classes, factors), `edges`
and `moves` those of `FactoredRounds`. `table`, (players * classes, samples), holds the embeddings before the first
round, and after the kernel those after the last. `sums` and `lost` are (blocks, rounds, 2 players + 1).
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float64, int32

from verfedsv.gpu.lanes import Kernel, device, kernel, lane
from verfedsv.shapley.blocks import LARGEST_EMBEDDING
from verfedsv.shapley.gpu.array_kernels import added_to, bound_of, odd_stride
from verfedsv.shapley.gpu.block_sums import add_tile
from verfedsv.shapley.gpu.class_values import exchange_sums, value_sample
from verfedsv.shapley.gpu.scalar_losses import EXPANSIONS
from verfedsv.shapley.moments import scalar_coefficients

_scalar_coefficients = lane(scalar_coefficients)


@cache
def scalar_kernel(loss: str, n_players: int, n_threads: int) -> Kernel:
    """Return the kernel for scalar embeddings."""
    expand, stride = EXPANSIONS[loss], (2 * n_players + 1) | 1
    n_shared = n_threads * stride

    @kernel
    def sum_rounds(
        factors: Any,
        edges: Any,
        weights: Any,
        moves: Any,
        table: Any,
        labels: Any,
        constants: Any,
        sums: Any,
        lost: Any,
    ) -> None:
        space = cuda.shared.array(n_shared, float64)
        block, n_samples, bound = cuda.blockIdx.x, len(labels), bound_of(constants, False)
        own = space[cuda.threadIdx.x * stride : (cuda.threadIdx.x + 1) * stride]
        for first in range(block * n_threads, n_samples, cuda.gridDim.x * n_threads):
            i = min(first + cuda.threadIdx.x, n_samples - 1)
            is_sample = first + cuda.threadIdx.x < n_samples
            for t in range(len(weights)):
                sums_of_sample = 0.0, 0.0, 0.0, 0.0, 0.0
                for k in range(n_players):
                    before, d = table[k, i], 0.0
                    if moves[t, k]:
                        after = 0.0
                        for a in range(edges[k], edges[k + 1]):
                            after += factors[a, i] * weights[t, 0, a]
                        d = after - before
                        if is_sample:
                            table[k, i] = after
                    own[2 * k] = d
                    sums_of_sample = added_to(sums_of_sample, before, d)
                base, total, squares, path, magnitude = sums_of_sample
                slope, third, decrease = expand(base, total, labels[i])
                moments = total, squares, path, magnitude
                linear, quadratic, error = _scalar_coefficients(slope, third, moments, bound)
                for k in range(n_players):
                    d = own[2 * k]
                    own[2 * k] = d * (quadratic * d - linear) if is_sample else 0.0
                    own[2 * k + 1] = abs(d) * error if is_sample else 0.0
                decrease = decrease if magnitude < LARGEST_EMBEDDING else math.nan
                own[2 * n_players] = decrease if is_sample else 0.0
                add_tile(space, n_threads, n_threads, (stride, 2), sums[block, t], lost[block, t])

    return sum_rounds


@device
def _multiply(factors: Any, sample: int, part: Any, weights: Any, result: Any) -> None:
    """Write a part of the factors of a sample times the weights of each class."""
    for c in range(len(result)):
        result[c] = 0.0
    for a in range(part[0], part[1]):
        factor = factors[a, sample]
        for c in range(len(result)):
            result[c] += factor * weights[c, a]


@device
def _write(numbers: Any, rows: Any, sample: int, is_sample: bool) -> None:
    """Write a number for each class into the table, unless this is no sample but fills up a tile."""
    for c in range(len(numbers)):
        if is_sample:
            rows[c, sample] = numbers[c]


@device
def _add_change(before: Any, after: Any, changes: Any, sums: Any) -> None:
    """Write the change of a player, and add to base, total and absolute sums, a number for each class."""
    base, total, size = sums
    for c in range(len(base)):
        d = after[c] - before[c]
        changes[c] = d
        base[c] += before[c]
        total[c] += d
        size[c] += abs(before[c]) + abs(d)


@cache
def softmax_kernel(n_players: int, n_classes: int, n_samples_each: int, n_groups: int) -> Kernel:
    """Return the kernel for the softmax loss; the players of a sample are dealt to the threads of `n_groups` groups."""
    stride, width = odd_stride(n_players, n_classes), n_samples_each * n_classes
    n_shared, n_sums = n_samples_each * stride, 3 * width
    n_threads = n_groups * n_samples_each

    @kernel
    def sum_rounds(
        factors: Any,
        edges: Any,
        weights: Any,
        moves: Any,
        table: Any,
        labels: Any,
        constants: Any,
        sums: Any,
        lost: Any,
    ) -> None:
        space = cuda.shared.array(n_shared, float64)
        parts = cuda.shared.array((n_groups, n_sums), float64)
        before = cuda.local.array(n_classes, float64)
        after = cuda.local.array(n_classes, float64)
        base = cuda.local.array(n_classes, float64)
        total = cuda.local.array(n_classes, float64)
        centre = cuda.local.array(n_classes, float64)
        linear = cuda.local.array(n_classes, float64)
        quadratic = cuda.local.array(n_classes, float64)
        line = cuda.local.array(1, float64)
        label = cuda.local.array(1, int32)
        thread, group = cuda.threadIdx.x % n_samples_each, cuda.threadIdx.x // n_samples_each
        block, n_samples, bound = cuda.blockIdx.x, len(labels), bound_of(constants, True)
        own = space[thread * stride : (thread + 1) * stride]
        n = moves.shape[1]
        for first in range(block * n_samples_each, n_samples, cuda.gridDim.x * n_samples_each):
            i = min(first + thread, n_samples - 1)
            is_sample = first + thread < n_samples
            label[0] = labels[i]
            for t in range(len(weights)):
                for c in range(n_classes):
                    base[c] = 0.0
                    total[c] = 0.0
                    centre[c] = 0.0
                for k in range(group, n, n_groups):
                    changes = own[k * n_classes : (k + 1) * n_classes]
                    rows = table[k * n_classes : (k + 1) * n_classes]
                    for c in range(n_classes):
                        before[c] = rows[c, i]
                        after[c] = before[c]
                    if moves[t, k]:
                        _multiply(factors, i, (edges[k], edges[k + 1]), weights[t], after)
                        _write(after, rows, i, is_sample)
                    _add_change(before, after, changes, (base, total, centre))
                place = thread, n_samples_each, group
                magnitude, everything = exchange_sums(parts, place, (base, total, centre), False)
                spaces = centre, linear, quadratic, line
                decrease = value_sample(own, n, (base, total), label, magnitude, spaces, bound, parts, place)
                if group == 0:
                    own[n * n_classes] = decrease if everything < LARGEST_EMBEDDING else math.nan
                n_tile = min(n_samples_each, n_samples - first)
                add_tile(space, n_tile, n_threads, (stride, n_classes), sums[block, t], lost[block, t])

    return sum_rounds


@kernel
def write_columns(numbers: Any, columns: Any, first: int) -> None:
    """Write a matrix, (samples, columns), as rows of another from `first` on."""
    at = cuda.grid(1)
    n_columns = numbers.shape[1]
    if at < len(numbers) * n_columns:
        columns[first + at % n_columns, at // n_columns] = numbers[at // n_columns, at % n_columns]
