"""Work in threads, in order, and matrix products in one thread."""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Executor, Future, ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

Item = TypeVar("Item")
Result = TypeVar("Result")


def available_threads() -> int:
    """Return the number of cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def ordered_map(
    function: Callable[[Item], Result], items: Iterable[Item], workers: int | Executor
) -> Generator[Result, None, None]:
    """Yield `function(item)` in the order of the items, computed by a number of threads or an executor.

    At most two items per worker are in flight.
    """
    if isinstance(workers, int) and workers <= 1:
        yield from map(function, items)
        return
    pool = _pool(workers) if isinstance(workers, int) else workers
    most = 2 * n_workers(pool)
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


def n_workers(executor: Executor) -> int:
    """Return how many tasks an executor runs at the same time; 32 if it does not say."""
    client = getattr(executor, "_client", None)
    if client is None:
        return int(getattr(executor, "_max_workers", 32))
    known = _OF_CLUSTERS.get(client)
    if known is None or time.monotonic() > known.until:
        known = _OF_CLUSTERS[client] = _Known(sum(client.nthreads().values()), time.monotonic() + _KNOWN_FOR)
    return max(1, known.n_workers)


class _Known(NamedTuple):
    n_workers: int
    until: float


_OF_CLUSTERS: WeakKeyDictionary[Any, _Known] = WeakKeyDictionary()
_KNOWN_FOR = 10.0
"""Seconds for which a cluster of Dask is not asked again, which takes a millisecond; workers come and go."""


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    # Kept until the process ends: starting threads takes 0.3 ms, a fifth of the time of a round of Adult.
    return ThreadPoolExecutor(n_threads, thread_name_prefix="verfedsv")


if hasattr(os, "register_at_fork"):
    # Threads do not survive a fork; a forked process starts its own.
    os.register_at_fork(after_in_child=_pool.cache_clear)


class _OneBlasThread:
    """The limit of a process while anybody needs it: the last to leave lifts it."""

    def __init__(self) -> None:
        self._lock, self._n_inside = threading.Lock(), 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if self._n_inside == 0:
                self._limit = _blas().limit(limits=1, user_api="blas")
            self._n_inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._n_inside -= 1
            if self._n_inside == 0:
                self._limit.restore_original_limits()


one_blas_thread = _OneBlasThread()
"""A context in which matrix products and decompositions use one thread, so that sums do not depend on the cores.

Workers of a cluster often have one BLAS thread each, and their driver all: values differed in the last bits.
"""


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController  # here, as most who import this module need none

    return ThreadpoolController()


def split(n_samples: int, size: int) -> list[slice]:
    """Return slices of at most `size` samples that cover `n_samples` in order, their lengths equal or one apart.

    >>> split(7, 3)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 7, None)]
    """
    n_blocks = -(-n_samples // size)
    edges = [n_samples * i // n_blocks for i in range(n_blocks + 1)] if n_blocks else []
    return [slice(a, b) for a, b in pairwise(edges)]
