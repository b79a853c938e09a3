"""Runs larger than memory: on one machine under a limit, by a cluster, and what they cost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.measure import table
from verfedsv import Recorder

LIMIT = 500_000_000
"""Bytes that the process of the run out of core is limited to; its uploads have four times as many."""

N_CLASSES, RANK, SWEEPS = 7, 3, 10
"""Sweeps are at most so many, so that runs of all sizes take as many."""

PAGE = Path(__file__).parents[1] / "docs" / "scale.md"
MARKS = "<!-- measured -->\n", "<!-- end of measured -->\n"


class Size(NamedTuple):
    """The size of a run; a tenth of the rows are uploaded in each round."""

    rows: int
    clients: int
    rounds: int

    @property
    def uploads(self) -> int:
        """The number of uploaded embeddings of all classes: rows times clients times rounds they were uploaded in."""
        return self.rows // 10 * self.clients * self.rounds

    def __str__(self) -> str:
        return f"{self.rows:,} rows x {self.clients} clients x {self.rounds} rounds"


BASE = Size(40_000, 4, 50)
LARGE = Size(LIMIT * 4 // (4 * 100 * (8 * N_CLASSES + 4)) * 10 + 10, 4, 100)
OF_WORKERS = Size(20 * BASE.rows, BASE.clients, 2 * BASE.rounds)
WORKER = 10**9
"""Bytes that a worker may take, in all runs by workers."""

VALUE = """
import json, sys, time
import verfedsv
from benchmarks.memory import peak
from verfedsv.valuation import partitioned

partitioned.MAX_SWEEPS = int(sys.argv[4])
options = {"rank": int(sys.argv[3]), "regularization": 0.1, "method": "closed-form", "memory": sys.argv[5]}

def cpu(client):
    return time.process_time() + (sum(client.run(time.process_time).values()) if client else 0.0)

def measure(client=None):
    executor = client.get_executor() if client else None
    verfedsv.value(sys.argv[1], executor=executor, **options)  # compiles
    begin, before = time.perf_counter(), cpu(client)
    result = verfedsv.value(sys.argv[2], executor=executor, **options)
    found = {"seconds": time.perf_counter() - begin, "cpu": cpu(client) - before, "steps": dict(result.seconds)}
    found["sweeps"] = sum(report.n_sweeps for report in result.completion)
    found["peak"] = peak() if client is None else max(client.run(peak).values())
    found["values"] = result.values.tolist()
    return found

if __name__ == "__main__":
    n_workers = int(sys.argv[6])
    if n_workers == 0:
        print(json.dumps(measure()))
    else:
        from distributed import Client, LocalCluster
        each = {"threads_per_worker": 1, "memory_limit": sys.argv[5], "dashboard_address": ":0"}
        with LocalCluster(n_workers=n_workers, **each) as cluster, Client(cluster) as client:
            print(json.dumps(measure(client)))
"""


def record(path: Path, size: Size) -> int:
    """Record a run of random low-rank embeddings; return the bytes of its uploads."""
    rng = np.random.default_rng(0)
    names = [f"client {m + 1}" for m in range(size.clients)]
    of_rows = rng.normal(size=(size.clients, size.rows, RANK))
    labels = rng.integers(0, N_CLASSES, size.rows)
    with Recorder(path, labels, names, "softmax", n_classes=N_CLASSES) as recorder:
        for t in range(size.rounds):
            batch = rng.permutation(size.rows)[: size.rows // 10]
            weights = 0.1 * np.sin(0.1 * t + np.arange(size.clients * RANK * N_CLASSES))
            each = zip(of_rows, weights.reshape(size.clients, RANK, N_CLASSES), strict=True)
            recorder.log(batch, dict(zip(names, (own[batch] @ w for own, w in each), strict=True)))
    return sum(file.stat().st_size for file in path.glob("uploads-*"))


@contextmanager
def limited(n_bytes: int) -> Iterator[Path | None]:
    """Yield the file of a new control group whose processes may take so many bytes; None if none can be made."""
    for root, name in (("/sys/fs/cgroup/memory", "memory.limit_in_bytes"), ("/sys/fs/cgroup", "memory.max")):
        group = Path(root) / f"verfedsv-{os.getpid()}"
        with suppress(OSError):
            group.mkdir()
            (group / name).write_text(str(n_bytes))
            break
    else:
        yield None
        return
    try:
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


def value(small: Path, path: Path, memory: int, n_workers: int = 0, group: Path | None = None) -> dict[str, Any]:
    """Value a run in a process of its own, after a small one; return what it measured."""

    def join() -> None:
        if group is not None:
            group.write_text(str(os.getpid()))

    code = Path(small).parent / "value.py"
    code.write_text(VALUE)
    options = [str(each) for each in (small, path, RANK, SWEEPS, memory, n_workers)]
    command, root = [sys.executable, str(code), *options], Path(__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run(command, capture_output=True, text=True, preexec_fn=join, env=environment)  # noqa: S603
    if done.returncode:
        raise RuntimeError(f"the valuation ended with {done.returncode}: {done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def run(*, large: Size = LARGE, limit: int = LIMIT) -> str:
    """Measure all, write docs/scale.md, and return the tables."""
    with tempfile.TemporaryDirectory() as folder:
        small = Path(folder) / "small"
        record(small, Size(2_000, 4, 20))
        rows = [_out_of_core(Path(folder), small, large, limit), *_by_workers(Path(folder), small)]
        header = ["run", "uploads", "where", "seconds", "processor seconds", "peak memory of a process or worker"]
        exponents, constants = _exponents(Path(folder), small)
    text = f"{table(header, rows)}\n\n{exponents}\n"
    _write_page(text, constants)
    return text


def _row(size: Size, n_bytes: int, where: str, found: dict[str, Any]) -> list[str]:
    peak = f"{found['peak'] / 1e6:,.0f} MB"
    row = [str(size), f"{n_bytes / 1e6:,.0f} MB", where, f"{found['seconds']:.0f}", f"{found['cpu']:.0f}", peak]
    print(f"  {', '.join(row)}")
    return row


def _out_of_core(folder: Path, small: Path, size: Size, limit: int) -> list[str]:
    n_bytes = record(folder / "large", size)
    with limited(limit) as group:
        found = value(small, folder / "large", limit, group=group)
    where = "one process, limited to" if group is not None else "one process, no limit could be set, asked for"
    return _row(size, n_bytes, f"{where} {limit / 1e6:,.0f} MB", found)


def _by_workers(folder: Path, small: Path) -> list[list[str]]:
    """Return rows of a run by one and by two workers of 1 GB each, and of one with 4 GB of uploads."""
    rows, took = list[list[str]](), list[float]()
    n_bytes = record(folder / "workers", OF_WORKERS)
    for n_workers in (1, 2):
        found = value(small, folder / "workers", WORKER, n_workers)
        took.append(found["seconds"])
        efficiency = f", parallel efficiency {took[0] / took[-1] / n_workers:.0%}" if n_workers > 1 else ""
        where = f"{n_workers} worker{'s' * (n_workers > 1)} of 1 GB{efficiency}"
        rows.append(_row(OF_WORKERS, n_bytes, where, found))
    shutil.rmtree(folder / "workers")
    largest = LARGE._replace(rows=WORKER // LIMIT * LARGE.rows)
    n_bytes = record(folder / "workers", largest)
    rows.append(_row(largest, n_bytes, "2 workers of 1 GB", value(small, folder / "workers", WORKER, 2)))
    shutil.rmtree(folder / "workers")
    return rows


def _exponents(folder: Path, small: Path) -> tuple[str, dict[str, float]]:
    """Return exponents of processor seconds, and the constants of the largest run of all."""
    parts, constants = list[str](), dict[str, float]()
    for name in Size._fields:
        sizes = [BASE._replace(**{name: factor * getattr(BASE, name)}) for factor in (1, 2, 4)]
        costs = list[float]()
        for size in sizes:
            path = folder / f"{name}-{getattr(size, name)}"
            n_bytes = record(path, size)
            found = value(small, path, 10**9)
            costs.append(found["cpu"])
            constants = _constants(size, n_bytes, found)
            print(f"  {size}: {found['cpu']:.1f} s of processor")
        factors = [getattr(size, name) for size in sizes]
        parts.append(f"{np.polyfit(np.log(factors), np.log(costs), 1)[0]:.2f} in {name}")
    return f"Exponents of the processor time over sizes four times apart: {', '.join(parts)}.", constants


def _constants(size: Size, n_bytes: int, found: dict[str, Any]) -> dict[str, float]:
    """Return nanoseconds of processor for each upload of a client: moved, in a sweep, and for each value of a round."""
    steps = found["steps"]
    share = found["cpu"] / found["seconds"] * 1e9
    return {
        "move": steps["shuffle"] * share / size.uploads,
        "sweep": steps["completion"] * share / size.uploads / (found["sweeps"] / size.clients),
        "value": steps["valuation"] * share / (size.rows * size.clients * size.rounds),
        "bytes": n_bytes / size.uploads,
    }


def _costs(constants: dict[str, float], size: Size, sweeps: int) -> tuple[str, float]:
    """Return the table of core hours and gigabytes of a run with so many sweeps for each client, and all core hours."""
    uploads, n_bytes = size.uploads, size.uploads * constants["bytes"]
    equations = 8 * size.rounds * (RANK * (RANK + 1) / 2 + N_CLASSES * RANK) * 2 * 16 * size.clients * sweeps
    values, factors = size.rows * size.clients * size.rounds, 8.0 * size.rows * size.clients * RANK
    steps = [
        ("scatter and merge", uploads * constants["move"], 4 * n_bytes),
        (f"completion, {sweeps} sweeps", uploads * constants["sweep"] * sweeps, n_bytes * sweeps + equations),
        ("valuation", values * constants["value"], factors),
    ]
    rows = [[name, f"{ns / 3.6e12:,.0f}", f"{moved / 1e9:,.0f}"] for name, ns, moved in steps]
    hours = sum(ns for _, ns, _ in steps) / 3.6e12
    rows.append(["all", f"{hours:,.0f}", f"{sum(moved for *_, moved in steps) / 1e9:,.0f}"])
    return table(["step", "core hours", "GB moved"], rows), hours


MEASURED = """{text}

Constants, in nanoseconds of one core: {move:.0f} to move an upload of {classes} classes into its piece,
{sweep:.0f} for an upload in a sweep of rank {rank}, {value:.1f} for the value of a client in a row and
round. An upload has {bytes:.0f} bytes.

From these, {size}, a tenth of the rows in each round, {sweeps} sweeps for each client:

{costs}

On 1,000 cores that is {hours:,.1f} hours if shared storage delivers {rate:,.0f} GB a second. The transcript
has {stored:,.0f} TB, and the scratch folder up to twice as much. A round has {largest:,.0f} GB, three times
of which a task of the shuffle would have to hold, and the driver holds {driver:,.0f} GB for labels and
rows.

So it stops making sense before: where a round no longer fits into a worker, where storage cannot deliver
the terabytes of a sweep, or where nobody wants to keep the embeddings of everyone. There values from sums
begin: with the sum over clients of each row known, the first-order value of a client is one inner product,
which the client computes itself. This package does not do that yet.
"""


def _write_page(text: str, constants: dict[str, float]) -> None:
    """Write the measured part of docs/scale.md."""
    size, sweeps = Size(10**9, 100, 500), 100
    n_bytes = size.uploads * constants["bytes"]
    rows, hours = _costs(constants, size, sweeps)
    measured = MEASURED.format(
        text=text,
        classes=N_CLASSES,
        rank=RANK,
        size=size,
        sweeps=sweeps,
        costs=rows,
        hours=hours / 1000,
        rate=n_bytes * (sweeps + 4) / 1e9 / (hours / 1000 * 3600),
        stored=n_bytes / 1e12,
        largest=n_bytes / 1e9 / size.rounds,
        driver=30 * size.rows / 1e9,
        **constants,
    )
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(MARKS[0])
    PAGE.write_text(f"{before}{MARKS[0]}{measured}{MARKS[1]}{rest.partition(MARKS[1])[2]}", encoding="utf-8")
