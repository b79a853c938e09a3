"""The closed form beside reading its input: the same arrays summed by as many threads."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import table
from benchmarks.scaling import random_round
from verfedsv import shapley_values
from verfedsv.compiled import compiled
from verfedsv.shapley.blocks import available_threads, ordered_map

SCALAR = ((14, 1_500_000), (200, 100_000))
CLIENTS, CLASSES, NUMBERS = 14, (2, 7, 26, 105), 12_000_000
REPEAT = 9


@compiled
def _sum(numbers: NDArray[Any]) -> float:
    total = 0.0
    for i in range(len(numbers)):
        total += numbers[i]
    return total


def _read(*arrays: NDArray[Any]) -> None:
    threads = available_threads()
    parts = [part for array in arrays for part in np.array_split(array.ravel(), threads)]
    list(ordered_map(_sum, parts, threads))


def _in_turn(*functions: Callable[[], object]) -> list[float]:
    """Return the median seconds of each function, all called in turn."""
    took = np.empty((REPEAT + 1, len(functions)))
    for repetition in took:
        for index, function in enumerate(functions):
            begin = time.perf_counter()
            function()
            repetition[index] = time.perf_counter() - begin
    return np.median(took[1:], axis=0).tolist()


def run() -> tuple[str, dict[str, float]]:
    """Measure, and return the text in Markdown and the ratios for the top of the page."""
    rows, ratios, scalar = [], {}, 0.0
    for n_clients, n_samples in SCALAR:
        per_second = {}
        for dtype in (np.float64, np.float32):
            previous, current, labels = random_round(n_clients, n_samples, dtype)
            read, ours = _in_turn(
                lambda: _read(previous, current),  # noqa: B023
                lambda: shapley_values(previous, current, labels, method="closed-form"),  # noqa: B023
            )
            size, name = 2 * previous.nbytes / 1e9, np.dtype(dtype).name
            per_second[name] = n_samples / ours
            rows.append(_row(f"{n_clients} x {n_samples:,}, {name}", size, read, ours, previous.size))
            if n_clients == CLIENTS and dtype is np.float64:
                scalar = ours / previous.size
        ratios[f"closed form, {n_clients} clients, samples a second in float32 against float64"] = (
            per_second["float32"] / per_second["float64"]
        )
    for n_classes in CLASSES:
        n_samples = NUMBERS // CLIENTS // n_classes
        rng = np.random.default_rng(0)
        previous = rng.standard_normal((CLIENTS, n_samples, n_classes))
        current = previous + 0.02 * rng.standard_normal(previous.shape)
        labels = rng.integers(0, n_classes, n_samples)
        read, ours = _in_turn(
            lambda: _read(previous, current),  # noqa: B023
            lambda: shapley_values(previous, current, labels, "softmax", method="closed-form"),  # noqa: B023
        )
        name = f"{CLIENTS} x {n_samples:,}, {n_classes} classes"
        rows.append(_row(name, 2 * previous.nbytes / 1e9, read, ours, previous.size))
        ratios[f"closed form, softmax of {n_classes} classes against scalar embeddings, per number"] = (
            ours / previous.size / scalar
        )
    header = ["clients x samples", "reading", "closed form", "part of reading", "ns a number"]
    return table(header, rows), ratios


def _row(name: str, size: float, read: float, ours: float, n_pairs: int) -> list[str]:
    row = [
        name,
        f"{size / read:.1f} GB/s",
        f"{size / ours:.1f} GB/s",
        f"{read / ours:.2f}",
        f"{ours / n_pairs * 5e8:.2f}",
    ]
    print(f"  {', '.join(row)}")
    return row
