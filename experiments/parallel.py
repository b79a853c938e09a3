"""Measures several result files, in turn or at once, each by a process with cores of its own."""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import NamedTuple

from experiments import EXPERIMENTS, ResultFile
from verfedsv.errors import InputError, VerfedsvError

_CONTEXT = get_context("spawn")
_THREADS = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS")


class Order(NamedTuple):
    """The arguments of a `ResultFile`; the experiment by its name, as functions cannot be sent to a process."""

    folder: Path
    experiment: str
    data: str
    quick: bool

    def open(self) -> ResultFile:
        """Return the file as it is now."""
        return ResultFile(self.folder, EXPERIMENTS[self.experiment], self.data, quick=self.quick)


class News(NamedTuple):
    """What the `measure` of a file yields; no part if the file is done."""

    order: Order
    part: str | None
    done: int
    total: int


def measure_in_turn(orders: Iterable[Order], seeds: int | None) -> Iterator[News]:
    """Measure the missing parts of some files, yielding before each part, and when a file is done."""
    for order in orders:
        for part, done, total in order.open().measure(seeds):
            yield News(order, part, done, total)
        yield News(order, None, 0, 0)


def measure_at_once(orders: Sequence[Order], seeds: int | None, n_processes: int) -> Iterator[News]:
    """Do what `measure_in_turn` does, several files at a time.

    If this is interrupted, parts that are being measured are lost, and nothing else: a part is written as a whole.
    """
    waiting = deque(orders)
    shares = _share_cores(min(n_processes, len(orders))) if orders else []
    pipes = [_CONTEXT.Pipe() for _ in shares]
    processes = [
        _CONTEXT.Process(target=_work, args=(theirs, seeds, cores), daemon=True)
        for (_, theirs), cores in zip(pipes, shares, strict=True)
    ]
    try:
        for process, (ours, theirs), cores in zip(processes, pipes, shares, strict=True):
            with _environment(dict.fromkeys(_THREADS, str(len(cores) or 1))):
                process.start()
            theirs.close()
            ours.send(waiting.popleft())
        busy = [ours for ours, _ in pipes]
        while busy:
            for connection in wait(busy):
                assert isinstance(connection, Connection)  # noqa: S101  # only those are waited for
                try:
                    latest: News | VerfedsvError = connection.recv()
                except (EOFError, OSError):
                    raise InputError("a process that measured results has died; see its message above") from None
                if isinstance(latest, VerfedsvError):
                    raise latest
                yield latest
                if latest.part is None and waiting:
                    connection.send(waiting.popleft())
                elif latest.part is None:
                    busy.remove(connection)
    finally:
        for process in processes:
            if process.pid is not None:
                process.terminate()
                process.join()


def _share_cores(n_processes: int) -> list[set[int]]:
    """Return the cores of each process; none where the system does not say which there are."""
    if not hasattr(os, "sched_getaffinity"):
        return [set()] * n_processes
    cores = sorted(os.sched_getaffinity(0))
    return [set(cores[k % len(cores) :: n_processes]) for k in range(n_processes)]


def _work(connection: Connection, seeds: int | None, cores: set[int]) -> None:
    """Measure the files that are sent, in a process of its own, until it is terminated."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if cores:
        os.sched_setaffinity(0, cores)
    try:
        for latest in measure_in_turn(iter(connection.recv, None), seeds):
            connection.send(latest)
    except VerfedsvError as error:
        connection.send(error)


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in changes}
    os.environ.update(changes)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
