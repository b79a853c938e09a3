"""Alignment of ids: parties as processes, beside the operations on the group alone, and the memory of each party."""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.managers import BaseManager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import seconds, table
from benchmarks.memory import peak, reset_peak
from verfedsv.alignment import Party, align
from verfedsv.alignment.points import hash_ids, multiply, random_scalar
from verfedsv.data.ids import Ids

SIZES = ((3, 100_000), (2, 1_000_000))
"""Parties, and ids of each; half of them are common."""

_N_BARE = 50_000
_FIRST = 10**9


class Served:
    """A party in a process of its own."""

    def __init__(self, name: str, number: int, n_ids: int, folder: Path) -> None:
        hash_ids(pa.array(["1"]), b"")
        self.before = reset_peak()
        # Half of the ids are those of all parties, the others of this one; made in parts, which leave no memory behind.
        starts = _FIRST, _FIRST + (number + 1) * n_ids
        ids = pa.concat_arrays(
            [
                pa.array(np.arange(first, min(first + _N_BARE, start + n_ids // 2))).cast(pa.large_string())
                for start in starts
                for first in range(start, start + n_ids // 2, _N_BARE)
            ]
        )
        self.party = Party(name, Ids(Path(name), ids, are_stored_as_numbers=False), folder)
        pa.default_memory_pool().release_unused()
        reset_peak()
        self.begin = time.process_time()

    def call(self, method: str, *arguments: Any) -> Any:
        return getattr(self.party, method)(*arguments)

    def grown(self) -> int:
        """Return by how many bytes the process has grown at most, by its ids and the alignment."""
        self.party.close()
        return peak() - self.before

    def cpu_seconds(self) -> float:
        return time.process_time() - self.begin


class Remote:
    """Passes the calls of a coordinator on to a served party."""

    def __init__(self, name: str, served: Any) -> None:
        self.name, self.served = name, served

    def __getattr__(self, method: str) -> Any:
        return lambda *arguments: self.served.call(method, *arguments)


class Process(BaseManager):
    """Starts a process in which a party is served; each thread that calls it has its own connection."""


Process.register("Served", Served)


@contextmanager
def parties_of(n_parties: int, n_ids: int, folder: Path) -> Iterator[list[Remote]]:
    """Yield parties, each in a process of its own."""
    with ExitStack() as stack:
        remotes = []
        for number in range(n_parties):
            process = stack.enter_context(Process(ctx=multiprocessing.get_context("spawn")))
            remotes.append(Remote(f"party {number}", process.Served(f"party {number}", number, n_ids, folder)))  # type: ignore[attr-defined]
        yield remotes


def bare(n_parties: int, n_ids: int) -> float:
    """Return the seconds of a core that the operations on the group take in an alignment, extrapolated from some."""
    ids, key = pa.array([str(_FIRST + number) for number in range(_N_BARE)], pa.large_string()), random_scalar()
    begin = time.process_time()
    points = hash_ids(ids, b"")
    between = time.process_time()
    multiply(points, key)
    end = time.process_time()
    return n_parties * n_ids / _N_BARE * (between - begin + n_parties * (end - between))


def measure(n_parties: int, n_ids: int) -> dict[str, Any]:
    """Align once; return seconds, those of a core, also for the bare operations, and bytes by which processes grew."""
    with tempfile.TemporaryDirectory() as name, parties_of(n_parties, n_ids, Path(name)) as parties:
        alone = bare(n_parties, n_ids)
        before, begin, begin_cpu = reset_peak(), time.perf_counter(), time.process_time()
        n_common = align(parties, folder=Path(name)).n_common
        took, cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        if n_common != n_ids // 2:
            raise ArithmeticError(f"{n_common:,} of {n_ids // 2:,} common ids were found")
        return {
            "took": took,
            "cpu": cpu + sum(party.served.cpu_seconds() for party in parties),
            "bare": (alone + bare(n_parties, n_ids)) / 2,
            "coordinator": peak() - before,
            "party": max(party.served.grown() for party in parties),
        }


def run() -> str:
    """Return the table in Markdown."""
    rows = []
    for n_parties, n_ids in SIZES:
        found = measure(n_parties, n_ids)
        print(f"  {n_parties} parties, {n_ids:,} ids: {found}")
        rows.append(
            [
                f"{n_parties} parties, {n_ids:,} ids each",
                seconds(found["took"]),
                seconds(found["cpu"]),
                seconds(found["bare"]),
                f"{found['party'] / 1e6:.0f} MB",
                f"{found['coordinator'] / 1e6:.0f} MB",
            ]
        )
    header = ["", "time", "of all cores", "operations on the group", "memory of a party", "of the coordinator"]
    return table(header, rows)


if __name__ == "__main__":
    print(run())
