"""Sums of the loss over the samples of a block, for many coalitions at once.

`LogPartitionSums` computes log(sum_c exp(x_c)) - x_y with two multiplications and an addition per class: adding a
client multiplies exp(x) by exp(d), and one logarithm is taken of the product of many samples. `DirectSums` calls the
loss, for other losses and for embeddings whose exponentials would overflow.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.compiled import add, compiled, inlined
from verfedsv.losses import LogPartitionLoss, Loss
from verfedsv.shapley.blocks import Block

BLOCK_SAMPLES = 1024
"""Samples of a block, on which the rounding bound in docs/closed-form.md depends."""

RANGE = 80.0
"""The largest summed change of an embedding for which products of eight partition sums stay within float64."""


class CoalitionSums(ABC):
    """Sums over the samples of a block of the loss (not the utility) of many coalitions.

    They omit a part that is linear in the coalition: `linear`, (clients,), is what each client adds to it.
    """

    linear: Floats

    @abstractmethod
    def subsets(self, n_free: int, fixed: NDArray[np.bool_]) -> Floats:
        """Return the sums for all subsets of the first `n_free` clients, (2 ** n_free,), for exact enumeration.

        Client k is in subset s if bit k of s is set. The other clients are in all of them or in none, as `fixed`,
        (clients - n_free,), says.
        """

    @abstractmethod
    def chains(self, orders: NDArray[np.intp]) -> Floats:
        """Return the sums along permutations, (permutations, clients + 1), from the empty coalition to all clients."""

    @abstractmethod
    def toggles(self, members: NDArray[np.bool_]) -> Floats:
        """Return the sum of each coalition with client m minus that without, (coalitions, clients)."""


def coalition_sums(block: Block, loss: Loss) -> CoalitionSums:
    """Return the fastest sums that do not overflow for this block."""
    base, change = block.base(), block.change()
    if isinstance(loss, LogPartitionLoss):
        largest = np.abs(change).max(axis=-1).sum(axis=0)
        if loss.has_zero_class:
            largest += np.abs(base).max(axis=-1)
        if largest.max() <= RANGE:
            return LogPartitionSums(loss, base, change, block.labels, float(largest.max()))
    return DirectSums(loss, base, change, block.labels)


class DirectSums(CoalitionSums):
    """Sums of losses, evaluated one coalition at a time."""

    def __init__(self, loss: Loss, base: Floats, change: Floats, labels: Array) -> None:
        self._loss, self._base, self._change, self._labels = loss, base, change, labels
        self.linear = np.zeros(len(change))

    def subsets(self, n_free: int, fixed: NDArray[np.bool_]) -> Floats:
        start = self._base + self._change[n_free:][fixed].sum(axis=0)
        n_low = min(n_free, 6)
        low = np.zeros((1, *start.shape))
        for k in range(n_low):
            low = np.concatenate([low, low + self._change[k]])
        rows = np.empty((2 ** (n_free - n_low), len(low)))
        # Counting upwards, only the bits up to the lowest one set change: two additions per row on average.
        states = [start] * (n_free - n_low + 1)
        for row in range(len(rows)):
            lowest = (row & -row).bit_length() - 1 if row else n_free - n_low
            for bit in range(min(lowest, n_free - n_low - 1), -1, -1):
                states[bit] = states[bit + 1] + self._change[n_low + bit] if row >> bit & 1 else states[bit + 1]
            rows[row] = self._sum(low + states[0])
        return rows.ravel()

    def chains(self, orders: NDArray[np.intp]) -> Floats:
        result = np.empty((len(orders), orders.shape[1] + 1))
        for row, order in enumerate(orders):
            x = self._base.copy()
            result[row, 0] = self._sum(x)
            for step, client in enumerate(order):
                x += self._change[client]
                result[row, step + 1] = self._sum(x)
        return result

    def toggles(self, members: NDArray[np.bool_]) -> Floats:
        result = np.empty(members.shape)
        for row, inside in enumerate(members):
            x = self._base + self._change[inside].sum(axis=0)
            here = self._sum(x)
            for m, change in enumerate(self._change):
                result[row, m] = here - self._sum(x - change) if inside[m] else self._sum(x + change) - here
        return result

    def _sum(self, x: Floats) -> Floats:
        return np.asarray(self._loss.value(x, self._labels).sum(axis=-1))


class LogPartitionSums(CoalitionSums):
    """Sums of log(sum_c exp(x_c)), from arrays of exp(x) and exp(d), (classes, samples)."""

    def __init__(self, loss: LogPartitionLoss, base: Floats, change: Floats, labels: Array, largest: float) -> None:
        self.linear = -loss.label_part(change, labels).sum(axis=-1)
        shift = 0.0 if loss.has_zero_class else base.max(axis=-1, keepdims=True)
        self._start = np.exp(np.ascontiguousarray((base - shift).T))
        self._steps = np.exp(np.ascontiguousarray(change.transpose(0, 2, 1)))
        self._zero_class = 1.0 if loss.has_zero_class else 0.0
        # The product of this many partition sums is below exp(640) for every coalition.
        headroom = largest + np.log(change.shape[-1] + 1)
        self._group = int(min(64, 640 / max(headroom, 1e-300)))

    def subsets(self, n_free: int, fixed: NDArray[np.bool_]) -> Floats:
        start = self._start.copy()
        for step in self._steps[n_free:][fixed]:
            start *= step
        return _subset_sums(start, self._steps, n_free, self._zero_class, self._group)

    def chains(self, orders: NDArray[np.intp]) -> Floats:
        return _chain_sums(self._start, self._steps, orders, self._zero_class, self._group)

    def toggles(self, members: NDArray[np.bool_]) -> Floats:
        return _toggle_sums(self._start, self._steps, 1 / self._steps, members, self._zero_class, self._group)


@inlined
def _sum_of_logs(left: Floats, right: Floats, zero_class: float, group: int) -> float:
    """Return the sum over samples of log(zero_class + sum_c left_c right_c), both (classes, samples)."""
    n_classes, n_samples = left.shape
    total, lost = 0.0, 0.0
    partition = np.empty(group)
    for first in range(0, n_samples, group):
        last = min(first + group, n_samples)
        if n_classes == 1:
            a, b = left[0, first:last], right[0, first:last]
            product = 1.0
            for i in range(len(a)):
                product *= zero_class + a[i] * b[i]
        else:
            partition[:] = zero_class
            for c in range(n_classes):
                a, b = left[c, first:last], right[c, first:last]
                for i in range(len(a)):
                    partition[i] += a[i] * b[i]
            product = 1.0
            for i in range(last - first):
                product *= partition[i]
        total, lost = add(total, lost, np.log(product))
    return total


@inlined
def _multiply(left: Floats, right: Floats, result: Floats) -> None:
    """Write products; an expression of arrays would take as long to compile as the loop around it."""
    for c in range(len(left)):
        for i in range(left.shape[1]):
            result[c, i] = left[c, i] * right[c, i]


@compiled
def _subset_sums(start: Floats, steps: Floats, n_free: int, zero_class: float, group: int) -> Floats:
    n_classes, n_samples = start.shape
    # The subsets of the first few clients are in a table and those of the others are counted through, so that the inner
    # loop reads two arrays and writes none.
    n_low = min(n_free, 5)
    n_high = n_free - n_low
    low = np.ones((2**n_low, n_classes, n_samples))
    for k in range(n_low):
        for s in range(2**k):
            _multiply(low[s], steps[k], low[2**k + s])
    states, ones = np.empty((n_high + 1, n_classes, n_samples)), np.ones(start.shape)
    states[n_high] = start
    result = np.empty(2**n_free)
    for row in range(2**n_high):
        bit = 0
        while row > 0 and bit < n_high - 1 and not (row >> bit) & 1:
            bit += 1
        if row == 0:
            bit = n_high - 1
        while bit >= 0:
            _multiply(states[bit + 1], steps[n_low + bit] if (row >> bit) & 1 else ones, states[bit])
            bit -= 1
        for s in range(2**n_low):
            result[row * 2**n_low + s] = _sum_of_logs(low[s], states[0], zero_class, group)
    return result


@compiled
def _chain_sums(start: Floats, steps: Floats, orders: Array, zero_class: float, group: int) -> Floats:
    n_rows, n_clients = orders.shape
    result = np.empty((n_rows, n_clients + 1))
    ones = np.ones(start.shape)
    for row in range(n_rows):
        state = start.copy()
        for step in range(n_clients + 1):
            # Multiplied first, then summed by the same loop: a client that did not move changes no bit of the sum.
            if step > 0:
                _multiply(state, steps[orders[row, step - 1]], state)
            result[row, step] = _sum_of_logs(state, ones, zero_class, group)
    return result


@compiled
def _toggle_sums(
    start: Floats, steps: Floats, inverses: Floats, members: Array, zero_class: float, group: int
) -> Floats:
    n_rows, n_clients = members.shape
    result = np.empty((n_rows, n_clients))
    ones = np.ones(start.shape)
    for row in range(n_rows):
        state = start.copy()
        for m in range(n_clients):
            if members[row, m]:
                _multiply(state, steps[m], state)
        here, factor = 0.0, ones
        for m in range(-1, n_clients):
            if m >= 0:
                factor = inverses[m] if members[row, m] else steps[m]
            there = _sum_of_logs(state, factor, zero_class, group)
            if m < 0:
                here = there
            else:
                result[row, m] = here - there if members[row, m] else there - here
    return result
