"""Blocks of samples, mapped over a thread pool with results in order, and sums that do not lose digits."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import TypeVar

import numpy as np

from verfedsv.arrays import Array, Floats

Item = TypeVar("Item")
Result = TypeVar("Result")

LARGEST_EMBEDDING = 1e60
"""Limit of the summed absolute embeddings and changes of a sample: their fourth powers must stay within float64."""

BLOCK_ELEMENTS = 2**18
"""Embeddings of all clients in one block, 2 MB of float64: smaller blocks lose time to the interpreter, larger ones
leave the cache."""

MOST_SAMPLES = 12_288
"""Samples of the largest block: larger ones were no faster and leave less to share among threads."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some samples of a round, in the form the compiled loops take.

    `previous` and `current` are (players, samples * classes), contiguous, float32 or float64; the block begins at
    their sample `start` and is as long as `labels`. `offset`, (samples, classes), is the server's part of the sum
    unless the server is a player. `index` is the number of the block in one pass: it seeds random draws.
    """

    index: int
    previous: Array
    current: Array
    start: int
    n_classes: int
    labels: Array
    offset: Floats | None

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    def change(self) -> Floats:
        """Return the changes of the players' embeddings, (players, samples, classes)."""
        change = np.subtract(self._part(self.current), self._part(self.previous), dtype=np.float64)
        return change.reshape(len(change), self.n_samples, self.n_classes)

    def base(self) -> Floats:
        """Return the summed embedding before the round, the server's own part included, (samples, classes)."""
        base: Floats = self._part(self.previous).sum(axis=0, dtype=np.float64).reshape(self.n_samples, self.n_classes)
        return base if self.offset is None else base + self.offset

    def _part(self, embeddings: Array) -> Array:
        return embeddings[:, self.start * self.n_classes : (self.start + self.n_samples) * self.n_classes]


def block_size(n_players: int, n_classes: int) -> int:
    """Return the number of samples in a block of about `BLOCK_ELEMENTS` embeddings."""
    return min(MOST_SAMPLES, max(16, BLOCK_ELEMENTS // (n_players * n_classes)))


def available_threads() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ordered_map(function: Callable[[Item], Result], items: Iterable[Item], workers: int | Executor) -> Iterator[Result]:
    """Yield `function(item)` in the order of the items, computed by a number of threads or an executor.

    At most two items per worker are in flight.
    """
    if isinstance(workers, int) and workers <= 1:
        yield from map(function, items)
        return
    pool = _pool(workers) if isinstance(workers, int) else workers
    # Not every executor says how many workers it has.
    most = 2 * int(getattr(pool, "_max_workers", 32))
    waiting: deque[Future[Result]] = deque()
    try:
        for item in items:
            waiting.append(pool.submit(function, item))
            if len(waiting) > most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        # Also on Ctrl-C and when a block raises: nothing continues in the background.
        wait([future for future in waiting if not future.cancel()])


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    # Kept until the process ends: starting threads takes 0.3 ms, a fifth of the time of a round of Adult.
    return ThreadPoolExecutor(n_threads, thread_name_prefix="verfedsv")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork; a forked process starts its own.
    os.register_at_fork(after_in_child=_pool.cache_clear)


def compensated_sum(terms: Iterable[Floats]) -> Floats:
    """Return the sum of at least one array, compensated (Kahan): its rounding error does not grow with their number.

    >>> (compensated_sum([np.array([1.0]), *[np.array([1e-16])] * 10_000]) - 1).round(14)
    array([1.e-12])
    """
    rest = iter(terms)
    total = next(rest)
    lost = np.zeros_like(total)
    for own in rest:
        term = own - lost
        longer = total + term
        lost = (longer - total) - term
        total = longer
    return total


def split(n_samples: int, size: int) -> list[slice]:
    """Return slices of at most `size` samples that cover `n_samples` in order, their lengths equal or one apart.

    >>> split(7, 3)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
    """
    n_blocks = -(-n_samples // size)
    edges = [n_samples * i // n_blocks for i in range(n_blocks + 1)] if n_blocks else []
    return [slice(a, b) for a, b in pairwise(edges)]
