"""What bounds each step: its time beside that of the arithmetic alone, and a first call in a fresh process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measure import in_turn, seconds, table
from benchmarks.valuing import N_CLIENTS, N_ROUNDS, N_SAMPLES, RANK, random_factors, value_factors
from verfedsv import shapley_values
from verfedsv.arrays import Floats
from verfedsv.compiled import compiled
from verfedsv.completion.factors import CompiledSolver
from verfedsv.completion.observations import Pattern
from verfedsv.completion.parts import Equations, Observations
from verfedsv.data import load_adult_round
from verfedsv.losses import get_loss
from verfedsv.threads import available_threads
from verfedsv.vectors import LANES, exp_lanes, load, store

LENGTH, TIMES = 1024, 20_000
"""Arrays that stay in the first-level cache, and how often loops over them are repeated."""


@compiled
def _multiply(left: Floats, right: Floats, result: Floats, n_times: int) -> None:
    for _ in range(n_times):
        for i in range(len(left)):
            result[i] = left[i] * right[i]


@compiled
def _multiply_add(left: Floats, right: Floats, result: Floats, n_times: int) -> None:
    for _ in range(n_times):
        for i in range(len(left)):
            result[i] += left[i] * right[i]


@compiled
def _exponentiate(left: Floats, right: Floats, result: Floats, n_times: int) -> None:  # noqa: ARG001
    for _ in range(n_times):
        for i in range(0, len(left), LANES):
            store(result, i, exp_lanes(load(left, i)))


class Step(NamedTuple):
    """A step of the library: what it does, for how many numbers, and the arithmetic that each of them needs."""

    name: str
    run: Callable[[], object]
    n_numbers: int
    loop: Callable[[Floats, Floats, Floats, int], None]
    n_operations: float
    operations: str


def _steps() -> list[Step]:
    rng = np.random.default_rng(0)
    adult, n_permutations = load_adult_round(), 300
    n_clients, n_samples = adult.previous.shape
    factors, labels = random_factors()
    softmax, scores = get_loss("softmax"), rng.normal(size=(LENGTH, 7))
    classes = softmax.encode(rng.integers(0, 7, LENGTH), 7)
    solver, rounds, n_observations = _solver(n_classes=7, rank=4)
    return [
        Step(
            "values of completed rounds, rank 5",
            lambda: value_factors(factors, labels, "logistic"),
            N_ROUNDS * N_CLIENTS * N_SAMPLES,
            _multiply_add,
            RANK,
            "round, client and sample: 5 multiplications and additions complete an embedding",
        ),
        Step(
            "`exact`, 14 clients",
            lambda: shapley_values(adult.previous, adult.current, adult.labels, method="exact"),
            2**n_clients * n_samples,
            _multiply,
            1,
            "coalition and sample: a multiplication",
        ),
        Step(
            "`permutation`, 14 clients",
            lambda: shapley_values(
                adult.previous, adult.current, adult.labels, method="permutation", n_permutations=n_permutations
            ),
            n_permutations * (n_clients + 1) * n_samples,
            _multiply,
            2,
            "coalition and sample: two multiplications, by a client's step and to a product of samples",
        ),
        Step(
            "softmax loss, as in sampling, 7 classes",
            lambda: [softmax.value(scores, classes) for _ in range(1000)],
            1000 * scores.size,
            _exponentiate,
            1,
            "sample and class: an exponential",
        ),
        Step(
            "a sweep of completion, rank 4, 7 classes",
            lambda: solver._sum_equations(Equations.of(rounds, 0.1, uses_all=True), 7),
            n_observations,
            _multiply_add,
            2 * (4 * 5 / 2 + 4 * 7),
            "observation: 76 multiplications and additions to the normal equations of its sample and round",
        ),
    ]


def _solver(n_classes: int, rank: int) -> tuple[CompiledSolver, Floats, int]:
    """Return a solver of a training in which each sample is uploaded in 40 of 500 rounds, and factors of the rounds."""
    rng = np.random.default_rng(0)
    n_samples, n_rounds, n_each = 100_000, 500, 8_000
    batches = [rng.permutation(n_samples)[:n_each] for _ in range(n_rounds)]
    uploads = [rng.standard_normal((n_each, n_classes), dtype=np.float32) for _ in batches]
    pattern = Pattern.from_batches(batches, n_samples)
    values = pattern.sort(uploads, n_classes, available_threads())
    observations = Observations.in_memory(pattern, values, 0.0, 0)
    solver = CompiledSolver(observations, 0.1, 1e-3, 1, available_threads())
    return solver, rng.normal(size=(n_rounds, n_classes, rank)), n_each * n_rounds


def run() -> str:
    """Return the table of steps beside their limits."""
    rows = []
    arrays = np.random.default_rng(0).random((3, LENGTH))
    with one_core():
        for step in _steps():
            took, alone = in_turn(step.run, lambda step=step: step.loop(*arrays, TIMES), repeat=5)
            ours = took / step.n_numbers * 1e9
            limit = alone / (LENGTH * TIMES) * step.n_operations * 1e9
            row = [step.name, step.operations, f"{limit:.2f}", f"{ours:.2f}", f"{ours / limit:.1f}"]
            print(f"  {', '.join(row)}")
            rows.append(row)
    return table(["step", "for each", "arithmetic alone, ns", "the step, ns", "times as long"], rows)


@contextmanager
def one_core() -> Iterator[None]:
    """Let this process run on one core within."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        yield
    finally:
        os.sched_setaffinity(0, cores)


def first_call(readme: Path) -> str:
    """Return a sentence on the README's example in fresh processes: on a new machine, and when loops are compiled."""
    blocks = re.findall(r"```python\n(.*?)```", readme.read_text(encoding="utf-8"), re.DOTALL)
    example = next(block for block in blocks if "load_adult_round" in block)
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "NUMBA_CACHE_DIR": folder}
        first, *later = [_seconds_of([sys.executable, "-c", example], environment) for _ in range(4)]
    bare, nothing = (
        float(np.median([_seconds_of([sys.executable, "-c", code], dict(os.environ)) for _ in range(5)]))
        for code in ("import verfedsv", "")
    )
    importing = "less than 10 ms" if bare - nothing < 0.01 else seconds(bare - nothing)
    print(f"  first call {first:.2f} s, later {np.median(later):.2f} s")
    return (
        f"The README's example of a single round, from the start of Python to its end: {seconds(first)} on a new "
        f"machine, where loops are compiled, and {seconds(float(np.median(later)))} later. `import verfedsv` takes "
        f"{importing} of it."
    )


def _seconds_of(command: Sequence[str], environment: dict[str, str]) -> float:
    begin = time.perf_counter()
    subprocess.run(command, env=environment, capture_output=True, check=True)  # noqa: S603
    return time.perf_counter() - begin
