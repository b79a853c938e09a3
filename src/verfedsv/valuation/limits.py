"""`Partitioning`: how much memory the processes of a valuation may take, and how a training is cut to fit."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from verfedsv.completion.parts import N_PARTS, parts_of
from verfedsv.errors import InputError
from verfedsv.threads import available_threads, split
from verfedsv.transcript import Transcript
from verfedsv.valuation.scratch import FOLDER, Scratch
from verfedsv.valuation.trainings import RecordedTraining

BASE = 300_000_000
"""Bytes that a process needs for itself: the interpreter, the libraries and compiled loops."""

DEFAULT_MEMORY = 1_000_000_000

_LEAST_OF_TASK = 50_000_000
"""Bytes that a task has at least."""

_OF_PIECE = 8
"""How many times the size of a piece a task has room for: merging takes up to seven."""

CUTS = "cuts"
"""The file that says how a training was cut."""


@dataclass(frozen=True)
class Partitioning:
    """How much memory a process of a valuation may take, where it may keep its work, and whether it continues some.

    `at_once` is the number of tasks that a process runs at the same time.
    """

    memory: int
    scratch: Path
    resume: bool
    at_once: int

    @property
    def of_task(self) -> int:
        """How many bytes a task may take."""
        return (self.memory - BASE) // self.at_once

    def n_pieces(self, n_bytes: int) -> int:
        """Return the number of pieces of a part of a transcript of that many bytes."""
        return max(1, -(-_OF_PIECE * n_bytes // (self.of_task * N_PARTS)))

    def least_of(self, n_bytes: int, n_pieces: int) -> int:
        """Return the memory with which a transcript of that many bytes is cut into at most so many pieces."""
        return BASE + self.at_once * -(-_OF_PIECE * n_bytes // n_pieces)

    def check(self, largest_round: int) -> None:
        """Raise InputError if there is too little memory for the tasks."""
        of_round = 3 * largest_round
        least = BASE + self.at_once * max(of_round, _LEAST_OF_TASK)
        if self.memory < least:
            why = f", as the largest round has {largest_round / 1e6:,.1f} MB" if of_round > _LEAST_OF_TASK else ""
            raise InputError(
                f"too little memory: {self.memory / 1e6:,.0f} MB, where {self.at_once} tasks at once in a process need "
                f"{least / 1e6:,.0f} MB or more{why}"
            )


def cut_rounds(n_bytes: NDArray[np.int64], most: int) -> list[slice]:
    """Return successive rounds that together have at most so many bytes, or one round that has more.

    >>> cut_rounds(np.array([3, 3, 3, 9, 1]), most=6)
    [slice(0, 2, None), slice(2, 3, None), slice(3, 4, None), slice(4, 5, None)]
    """
    edges, total = [0], 0
    for t, size in enumerate(n_bytes.tolist()):
        if t > edges[-1] and total + size > most:
            edges.append(t)
            total = 0
        total += size
    edges.append(len(n_bytes))
    return [slice(a, b) for a, b in pairwise(edges)]


@dataclass(frozen=True, eq=False)
class Cuts:
    """How a training is cut: its parts as ranges of pieces, the edges of the pieces, and the rounds of each task."""

    parts: list[range]
    edges: NDArray[np.int64]
    rounds: list[slice]

    @classmethod
    def of(cls, training: RecordedTraining, limits: Partitioning) -> Cuts:
        """Return cuts so that no task takes more memory than it may; raise InputError if there are none."""
        n_bytes = training.transcript.n_bytes_of_rounds
        limits.check(int(n_bytes.max()))
        n_pieces, parts, edges = limits.n_pieces(int(n_bytes.sum())), list[range](), [0]
        for part in parts_of(training.n_samples):
            pieces = split(part.stop - part.start, -(-(part.stop - part.start) // n_pieces))
            parts.append(range(len(edges) - 1, len(edges) - 1 + len(pieces)))
            edges += [part.start + piece.stop for piece in pieces]
        # At least as many tasks as parts, if that is not less than a megabyte.
        most = min(limits.of_task // 3, max(int(n_bytes.sum()) // len(parts), 2**20))
        return cls(parts, np.array(edges), cut_rounds(n_bytes, most))

    def kept(self, scratch: Scratch, training: RecordedTraining, limits: Partitioning) -> Cuts:
        """Return the cuts of the interrupted valuation that is continued, if there is one, else these.

        What was done was cut like that, for another memory or number of tasks at once. Raises InputError if there is
        now too little memory for it.
        """
        if not scratch.has(f"{CUTS}.npz"):
            parts = [[pieces.start, pieces.stop] for pieces in self.parts]
            rounds = [[own.start, own.stop] for own in self.rounds]
            scratch.save(CUTS, {"parts": parts, "edges": self.edges, "rounds": rounds})
            return self
        found = scratch.load(CUTS)
        earlier = Cuts(
            [range(*pieces) for pieces in found["parts"].tolist()],
            found["edges"],
            [slice(*own) for own in found["rounds"].tolist()],
        )
        n_bytes = training.transcript.n_bytes_of_rounds
        largest = max(int(n_bytes[own].sum()) for own in earlier.rounds)
        fits = largest <= max(limits.of_task // 3, int(n_bytes.max()))
        if len(earlier.edges) < len(self.edges) or not fits:
            least = max(
                limits.least_of(int(n_bytes.sum()), len(earlier.edges) - 1), BASE + limits.at_once * 3 * largest
            )
            raise InputError(
                f"too little memory to go on with what is in {limits.scratch}, which was cut for more: "
                f"{limits.memory / 1e6:,.0f} MB, where {limits.at_once} tasks at once in a process need "
                f"{math.ceil(least / 1e6):,} MB; give as much, or begin anew without resume"
            )
        return earlier


def as_partitioning(
    transcript: Transcript,
    memory: int | str | None,
    scratch: str | os.PathLike[str] | None,
    executor: Executor | None,
    *,
    resume: bool,
    continues: bool,
) -> Partitioning | None:
    """Return how to cut a training into pieces, None if it is held in memory; raise InputError if it cannot be cut.

    With an executor, those in memory, and those that continue an earlier valuation, which is in memory, are not cut.
    """
    asked = memory is not None or scratch is not None or resume
    location = transcript.location
    if continues or location is None or transcript.is_merged:
        if asked:
            what = "a valuation that continues an earlier one" if continues else "a transcript in memory"
            raise InputError(f"{what} is valued in memory; leave out memory, scratch and resume")
        return None
    if not asked and executor is None:
        return None
    if scratch is None and "://" in location:
        raise InputError(
            f"{location} is no folder to work in; choose a scratch folder that the driver and all workers can write to"
        )
    of_workers, at_once = limits_of(executor)
    n_bytes = as_bytes(memory) if memory is not None else of_workers or DEFAULT_MEMORY
    return Partitioning(n_bytes, Path(location, FOLDER) if scratch is None else Path(scratch), resume, at_once)


def limits_of(executor: Executor | None) -> tuple[int | None, int]:
    """Return the memory of a worker if it is known, and the number of tasks that one process runs at once."""
    if executor is None:
        return None, available_threads()
    client = getattr(executor, "_client", None)
    if client is not None:  # of Dask
        workers = client.scheduler_info(n_workers=-1)["workers"].values()
        limits = [worker["memory_limit"] for worker in workers if worker["memory_limit"]]
        return min(limits, default=None), max((worker["nthreads"] for worker in workers), default=1)
    return None, executor._max_workers if isinstance(executor, ThreadPoolExecutor) else 1


def as_bytes(memory: int | str) -> int:
    """Return a number of bytes, given as such or as text.

    >>> as_bytes("1.5 GB"), as_bytes(1000), as_bytes("512MiB")
    (1500000000, 1000, 536870912)
    """
    units = {"": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12, "kib": 2**10, "mib": 2**20, "gib": 2**30}
    is_huge = isinstance(memory, int) and memory.bit_length() > 1000  # Python would not write that out
    text = "inf" if is_huge else str(memory)
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([a-z]*)\s*", text.lower())
    size = 0.0 if match is None or isinstance(memory, bool) else float(match[1]) * units.get(match[2], 0)
    if not 0 < size < math.inf:
        raise InputError(f"memory must be a number of bytes, or such as '4GB'; received {text[:40]!r}")
    return int(size)


@contextmanager
def explaining_workers(scratch: Path) -> Iterator[None]:
    """Turn the end of a worker into an InputError that says what to do."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise InputError(f"a worker lacks {error.name}; install verfedsv with the same extras on all workers") from None
    except Exception as error:
        if type(error).__name__ not in ("KilledWorker", "BrokenProcessPool"):
            raise
        raise InputError(
            f"workers ended in the middle of a task, as they do if they take too much memory ({error}). What was done "
            f"is in {scratch}: repeat with resume, or with memory set to less than a worker has"
        ) from None
