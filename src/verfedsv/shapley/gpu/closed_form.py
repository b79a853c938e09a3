"""The closed form with its certificate, computed by kernels: of a round from arrays, of several from factors."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import cuda

from verfedsv.arrays import Array, Floats
from verfedsv.gpu.lanes import one_each
from verfedsv.gpu.memory import free_bytes, upload, zeros
from verfedsv.losses import Logistic, Loss, Softmax, Squared
from verfedsv.shapley.factor_sums import FactoredRounds, Sums
from verfedsv.shapley.gpu import array_kernels, factor_kernels
from verfedsv.shapley.gpu.array_kernels import odd_stride
from verfedsv.shapley.gpu.block_sums import add_blocks
from verfedsv.shapley.moments import BoundConstants
from verfedsv.threads import split

ARRAY_BLOCKS, FACTOR_BLOCKS = 1584, 1056
"""Blocks of threads, the same on every GPU, so that sums are: 12 and 8 for each of an H200's 132 multiprocessors."""

ARRAY_GROUPS, FACTOR_GROUPS = 2, 2
"""Threads for each sample of several classes, which share its players."""

SHARED_NUMBERS = 48 * 1024 // 8
"""Numbers that the threads of a block may share."""

MOST_TERMS = 64
"""Terms that are added plainly, as on the CPU, so that the same bound on rounding holds."""

MOST_SUMS = 2**24
"""Numbers of the sums that blocks hold, one for each round and player."""


def _by_kind(numbers: Floats) -> Sums:
    """Return values, errors and decreases from what kernels write, (rounds, 2 players + 1)."""
    return numbers[:, :-1:2].copy(), numbers[:, 1:-1:2].copy(), numbers[:, -1].copy()


def can_value(loss: Loss, n_players: int, n_classes: int) -> bool:
    """Return whether there is a kernel for a loss and that many players and classes."""
    if type(loss) is Softmax:
        return _n_threads(_per_sample(n_players, n_classes), 1) > 0
    return type(loss) in (Logistic, Squared) and n_classes == 1 and _n_threads(2 * n_players + 5, 1) > 0


def _per_sample(n_players: int, n_classes: int, n_groups: int = ARRAY_GROUPS) -> int:
    """Return the numbers that threads share for each sample of several classes."""
    return odd_stride(n_players, n_classes) + n_groups * 3 * n_classes


def _n_threads(per_sample: int, most: int, for_all: int = 0) -> int:
    """Return how many samples a block takes at a time, a power of two: at most so many, and 0 if not one fits.

    Threads share `per_sample` numbers for each sample, and some `for_all` of them.
    """
    fitting = min(most, max(0, SHARED_NUMBERS - for_all) // per_sample)
    return 1 << (fitting.bit_length() - 1) if fitting else 0


def _constants(loss: Loss, n_players: int, n_samples: int, n_classes: int) -> Any:
    return upload(np.array(BoundConstants.of(loss, n_players, n_samples, n_classes), np.float64))


class DeviceRound(NamedTuple):
    """A round in the GPU's memory, as the kernels of `array_kernels` take it; `labels` are encoded."""

    previous: Any
    current: Any
    offset: Any
    labels: Any


def sum_round(arrays: DeviceRound, loss: Loss, n_classes: int) -> Sums:
    """Return the sums of a round, (1, players); its decrease is NaN if an embedding is not finite or too large."""
    found = _added(launch_round(arrays, loss, n_classes))
    n_players = len(arrays.previous) + (len(arrays.offset) == 2)
    if n_classes > 1:
        return _by_kind(found.reshape(1, -1))
    # Each number is the sum of several threads' parts.
    n_threads = _scalar_threads(n_players)
    players = found[:-n_threads].reshape(2 * n_players, -1).sum(axis=1)
    return _by_kind(np.append(players, found[-n_threads:].sum()).reshape(1, -1))


def launch_round(arrays: DeviceRound, loss: Loss, n_classes: int) -> Any:
    """Launch the kernel of a round, and return the sums of each block on the GPU."""
    n_clients, n_samples = len(arrays.previous), len(arrays.labels)
    has_server = len(arrays.offset) == 2
    n_players = n_clients + has_server
    constants = _constants(loss, n_players, n_samples, n_classes)
    if n_classes > 1:
        n_threads = _n_threads(_per_sample(n_players, n_classes, ARRAY_GROUPS), 32)
        sums, lost = zeros(ARRAY_BLOCKS, 2 * n_players + 1), zeros(ARRAY_BLOCKS, 2 * n_players + 1)
        kernel = array_kernels.softmax_kernel(n_clients, has_server, n_classes, n_threads, ARRAY_GROUPS)
        kernel[ARRAY_BLOCKS, ARRAY_GROUPS * n_threads](*arrays, constants, sums, lost)
    else:
        n_threads = _scalar_threads(n_players)
        sums = zeros(ARRAY_BLOCKS, 2 * n_players * max(1, n_threads // n_players) + n_threads)
        kernel = array_kernels.scalar_kernel(loss.name, n_clients, has_server, n_threads)
        kernel[ARRAY_BLOCKS, n_threads](*arrays, constants, sums)
    return sums


def _scalar_threads(n_players: int) -> int:
    """Return the threads of a block for scalar embeddings: each adds at most `MOST_TERMS` samples at a time."""
    return _n_threads(n_players + 3, MOST_TERMS if n_players > MOST_TERMS else 128, for_all=n_players)


def sum_rounds(rounds: FactoredRounds, labels: Array, loss: Loss) -> Sums:
    """Return the sums of several rounds; a decrease is NaN if an embedding is not finite or too large.

    The factors of the samples are those of `stack`, in the GPU's memory.
    """
    n_players, n_samples, n_classes = rounds.table.shape
    if n_classes > 1:
        n_threads = _n_threads(_per_sample(n_players, n_classes, FACTOR_GROUPS), 32)
        kernel = factor_kernels.softmax_kernel(n_players, n_classes, n_threads, FACTOR_GROUPS)
        n_threads *= FACTOR_GROUPS
    else:
        n_threads = _n_threads(2 * n_players + 2, 32)
        kernel = factor_kernels.scalar_kernel(loss.name, n_players, n_threads)
    table = _upload_table(rounds.table)
    constants = _constants(loss, n_players, n_samples, n_classes)
    edges, own_labels = upload(rounds.edges), upload(labels.reshape(-1))
    at_once = max(1, MOST_SUMS // (FACTOR_BLOCKS * (2 * n_players + 1)))
    found = []
    for part in split(len(rounds.weights), at_once):
        weights, moves = upload(rounds.weights[part]), upload(rounds.moves[part])
        shape = FACTOR_BLOCKS, len(weights), 2 * n_players + 1
        sums, lost = zeros(*shape), zeros(*shape)
        kernel[FACTOR_BLOCKS, n_threads](
            rounds.samples, edges, weights, moves, table, own_labels, constants, sums, lost
        )
        found.append(_added(sums.reshape(FACTOR_BLOCKS, sums.size // FACTOR_BLOCKS)).reshape(len(weights), -1))
    return _by_kind(np.concatenate(found))


def _upload_table(table: Floats) -> Any:
    """Return a table, (players, samples, classes), as the kernels take it; zeros are not sent."""
    n_players, n_samples, n_classes = table.shape
    result = zeros(n_players * n_classes, n_samples)
    for k in range(n_players):
        if table[k].any():
            result[k * n_classes : (k + 1) * n_classes].copy_to_device(np.ascontiguousarray(table[k].T))
    return result


def stack(factors: Any) -> Any:
    """Return the factors of all players, (samples, rank) of each, as rows on the GPU."""
    own = [factors[player] for player in sorted(factors)]
    n_samples, n_rows = len(own[0]), 0
    rows = cuda.device_array((sum(each.shape[1] for each in own), n_samples), np.float64)
    for each in own:
        factor_kernels.write_columns[one_each(each.size)](upload(each), rows, n_rows)
        n_rows += each.shape[1]
    return rows


def most_samples(n_ranks: int, n_players: int, n_classes: int) -> int:
    """Return how many samples of completed embeddings fit the GPU's memory."""
    return max(1, free_bytes() // (8 * (2 * n_ranks + n_players * n_classes + 4)))


def _added(sums: Any) -> Floats:
    """Return sums over blocks, (rows,)."""
    result = cuda.device_array(sums.shape[1], np.float64)
    add_blocks[one_each(sums.shape[1])](sums, result)
    return np.asarray(result.copy_to_host())
