"""Kernels of the closed form for one round, from arrays of embeddings in the GPU's memory.

Embeddings are (clients, samples * classes). `offset` has no row, or one with the server's part of the sums, or two if
the server is the last player: before and after the round. `sums` and `lost` have a row for each block.
"""

from __future__ import annotations

import math
from functools import cache
from typing import Any

from numba import cuda, float64, int32, uint32, uint64

from verfedsv.gpu.lanes import Kernel, device, kernel, lane
from verfedsv.shapley.blocks import LARGEST_EMBEDDING
from verfedsv.shapley.gpu.block_sums import add_tile, compensated
from verfedsv.shapley.gpu.class_values import exchange_sums, value_sample
from verfedsv.shapley.gpu.scalar_losses import EXPANSIONS
from verfedsv.shapley.moments import BoundConstants, scalar_coefficients

MOST_AT_ONCE = 16
"""Clients of which a thread reads a sample's embeddings at once: so many reads are under way together."""

_scalar_coefficients = lane(scalar_coefficients)


@device
def bound_of(constants: Any, uses_range: bool) -> Any:
    """Return the constants of the bound from an array of them."""
    return BoundConstants(constants[0], constants[1], uses_range, constants[3], constants[4], constants[5])


@device
def added_to(sums: Any, h: float, d: float) -> Any:
    """Return base, total, squares, path and magnitude of a sample with an embedding and its change."""
    base, total, squares, path, magnitude = sums
    return base + h, total + d, squares + d * d, path + abs(d), magnitude + (abs(h) + abs(d))


@device
def _add_some(sums: Any, n: int, before: Any, after: Any, changes: Any, at: int, stride: int) -> Any:
    """Write the changes of n of the players that were read, and return the sums of a sample with them."""
    for j in range(len(before)):
        if j < n:
            changes[at + j * stride] = after[j] - before[j]
            sums = added_to(sums, before[j], after[j] - before[j])
    return sums


@device
def _add_samples(changes: Any, at: int, samples: Any, linear: Any, quadratic: Any, error: Any) -> tuple[float, float]:
    """Return the value and the error of a player, whose changes begin at an index, over some samples of a tile."""
    value, size = 0.0, 0.0
    for s in range(samples[0], samples[1]):
        d = changes[at + s]
        value += d * (quadratic[s] * d - linear[s])
        size += abs(d) * error[s]
    return value, size


@cache
def scalar_kernel(loss: str, n_clients: int, has_server: bool, n_threads: int) -> Kernel:  # noqa: C901  # two phases
    """Return the kernel for scalar embeddings.

    The threads of a block value a tile of a sample for each, and write the changes into shared memory. Then each thread
    adds a part of the tile for one player, always the same: its sums stay in registers.
    """
    expand, n_players = EXPANSIONS[loss], n_clients + has_server
    n_parts = max(1, n_threads // n_players)
    n_own = -(-n_players // n_threads)
    in_part = -(-n_threads // n_parts)
    stride, at_once = n_threads + 1, -(-n_clients // -(-n_clients // MOST_AT_ONCE))
    n_shared = n_players * stride

    @kernel
    def sum_round(previous: Any, current: Any, offset: Any, labels: Any, constants: Any, sums: Any) -> None:
        changes = cuda.shared.array(n_shared, float64)
        linear = cuda.shared.array(n_threads, float64)
        quadratic = cuda.shared.array(n_threads, float64)
        error = cuda.shared.array(n_threads, float64)
        before = cuda.local.array(at_once, float64)
        after = cuda.local.array(at_once, float64)
        values = cuda.local.array(n_own, float64)
        values_lost = cuda.local.array(n_own, float64)
        errors = cuda.local.array(n_own, float64)
        thread, n_samples, bound = cuda.threadIdx.x, len(labels), bound_of(constants, False)
        part, fallen, fallen_lost = thread // n_players, 0.0, 0.0
        for j in range(n_own):
            values[j] = 0.0
            values_lost[j] = 0.0
            errors[j] = 0.0
        for first in range(cuda.blockIdx.x * n_threads, n_samples, cuda.gridDim.x * n_threads):
            i = min(first + thread, n_samples - 1)
            base = offset[0, i] if len(offset) == 1 else 0.0
            sums_of_sample = base, 0.0, 0.0, 0.0, abs(base)
            for start in range(0, n_clients, at_once):
                for j in range(at_once):
                    k = min(start + j, n_clients - 1)
                    before[j] = float64(previous[k, i])
                    after[j] = float64(current[k, i])
                n = min(at_once, n_clients - start)
                sums_of_sample = _add_some(sums_of_sample, n, before, after, changes, start * stride + thread, stride)
            if has_server:
                h = offset[0, i]
                d = offset[1, i] - h
                changes[n_clients * stride + thread] = d
                sums_of_sample = added_to(sums_of_sample, h, d)
            base, total, squares, path, magnitude = sums_of_sample
            slope, third, decrease = expand(base, total, labels[i])
            moments = total, squares, path, magnitude
            own_linear, own_quadratic, own_error = _scalar_coefficients(slope, third, moments, bound)
            is_sample = first + thread < n_samples
            linear[thread] = own_linear if is_sample else 0.0
            quadratic[thread] = own_quadratic if is_sample else 0.0
            error[thread] = own_error if is_sample else 0.0
            decrease = decrease if magnitude < LARGEST_EMBEDDING else math.nan
            fallen, fallen_lost = compensated(fallen, fallen_lost, decrease if is_sample else 0.0)
            cuda.syncthreads()
            for j in range(n_own):
                k = thread % n_players + j * n_threads
                if part < n_parts and k < n_players:
                    samples = part * in_part, min((part + 1) * in_part, n_threads)
                    value, size = _add_samples(changes, k * stride, samples, linear, quadratic, error)
                    values[j], values_lost[j] = compensated(values[j], values_lost[j], value)
                    errors[j] += size
            cuda.syncthreads()
        own = sums[cuda.blockIdx.x]
        for j in range(n_own):
            k = thread % n_players + j * n_threads
            if part < n_parts and k < n_players:
                own[(2 * k) * n_parts + part] = values[j]
                own[(2 * k + 1) * n_parts + part] = errors[j]
        own[2 * n_players * n_parts + thread] = fallen

    return sum_round


@cache
def softmax_kernel(n_clients: int, has_server: bool, n_classes: int, n_samples_each: int, n_groups: int) -> Kernel:
    """Return the kernel for the softmax loss: a block values a tile of so many samples after the other.

    The players are dealt to `n_groups` groups of threads, one for each sample. The threads of a group read a tile in
    the order of memory, and write the changes of each sample side by side into shared memory. The stride from sample to
    sample is odd, so that threads do not wait for each other's bank.
    """
    n_players, n_threads = n_clients + has_server, n_groups * n_samples_each
    stride, width = odd_stride(n_players, n_classes), n_samples_each * n_classes
    n_shared, n_sums = n_samples_each * stride, 3 * width

    @kernel
    def sum_round(previous: Any, current: Any, offset: Any, labels: Any, constants: Any, sums: Any, lost: Any) -> None:
        space = cuda.shared.array(n_shared, float64)
        parts = cuda.shared.array((n_groups, n_sums), float64)
        before = cuda.local.array(n_classes, float64)
        after = cuda.local.array(n_classes, float64)
        base = cuda.local.array(n_classes, float64)
        total = cuda.local.array(n_classes, float64)
        centre = cuda.local.array(n_classes, float64)
        linear = cuda.local.array(n_classes, float64)
        quadratic = cuda.local.array(n_classes, float64)
        # Unsigned, as a negative index counts from the end.
        sources = cuda.local.array(n_classes, uint64)
        places = cuda.local.array(n_classes, uint32)
        line = cuda.local.array(1, float64)
        label = cuda.local.array(1, int32)
        block, thread = cuda.blockIdx.x, cuda.threadIdx.x % n_samples_each
        group = cuda.threadIdx.x // n_samples_each
        n_samples, bound = len(labels), bound_of(constants, True)
        for c in range(n_classes):
            at = c * n_samples_each + thread
            places[c] = at // n_classes * stride + at % n_classes
        own = space[thread * stride : (thread + 1) * stride]
        for first in range(block * n_samples_each, n_samples, cuda.gridDim.x * n_samples_each):
            # Sums of each class, in the order of memory. Threads beyond the last sample take its last numbers.
            for c in range(n_classes):
                sources[c] = min(first * n_classes + c * n_samples_each + thread, n_samples * n_classes - 1)
                base[c] = offset[0, sources[c]] if len(offset) == 1 and group == 0 else 0.0
                centre[c] = abs(base[c])
                total[c] = 0.0
            of_player = sources, places, base, total, centre
            for k in range(group, n_clients, n_groups):
                _add_player(previous[k], current[k], of_player, before, after, space[k * n_classes :])
            if has_server and group == n_clients % n_groups:
                _add_player(offset[0], offset[1], of_player, before, after, space[n_clients * n_classes :])
            place = thread, n_samples_each, group
            magnitude, everything = exchange_sums(parts, place, (base, total, centre), True)
            label[0] = labels[min(first + thread, n_samples - 1)]
            spaces = centre, linear, quadratic, line
            decrease = value_sample(own, n_players, (base, total), label, magnitude, spaces, bound, parts, place)
            if group == 0:
                own[n_players * n_classes] = decrease if everything < LARGEST_EMBEDDING else math.nan
            n_tile = min(n_samples_each, n_samples - first)
            add_tile(space, n_tile, n_threads, (stride, n_classes), sums[block], lost[block])

    return sum_round


@device
def _add_player(own_before: Any, own_after: Any, of_player: Any, before: Any, after: Any, changes: Any) -> None:
    """Write the changes of a player, and add to base, total and absolute sums, a number for each class."""
    sources, places, base, total, size = of_player
    for c in range(len(base)):  # all reads are under way at once
        before[c] = float64(own_before[sources[c]])
        after[c] = float64(own_after[sources[c]])
    for c in range(len(base)):
        d = after[c] - before[c]
        changes[places[c]] = d
        base[c] += before[c]
        total[c] += d
        size[c] += abs(before[c]) + abs(d)


def odd_stride(n_players: int, n_classes: int) -> int:
    """Return the numbers of a sample in shared memory: its changes, the decrease of its loss, and an odd number."""
    return (n_players * n_classes + 1) | 1
