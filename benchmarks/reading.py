"""The closed form beside reading its input: the same arrays summed by as many threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import in_turn, table
from benchmarks.scaling import random_round
from verfedsv import shapley_values
from verfedsv.compiled import compiled
from verfedsv.threads import available_threads, ordered_map

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


def _both(loss: str, previous: NDArray[Any], current: NDArray[Any], labels: NDArray[Any]) -> list[Callable[[], object]]:
    """Return functions that read a round, and that value it."""
    return [
        lambda: _read(previous, current),
        lambda: shapley_values(previous, current, labels, loss, method="closed-form"),
    ]


def run() -> tuple[str, dict[str, float]]:
    """Measure, and return the text in Markdown and the ratios for the top of the page."""
    rows, ratios = [], {}
    for n_clients, n_samples in SCALAR:
        rounds = [random_round(n_clients, n_samples, dtype) for dtype in (np.float64, np.float32)]
        took = in_turn(*_both("logistic", *rounds[0]), *_both("logistic", *rounds[1]), repeat=REPEAT)
        for (previous, *_), read, ours in zip(rounds, took[::2], took[1::2], strict=True):
            rows.append(_row(f"{n_clients} x {n_samples:,}, {previous.dtype}", previous, read, ours))
        name = f"closed form, {n_clients} clients, samples a second in float32 against float64"
        ratios[name] = took[1] / took[3]
    scalar = random_round(CLIENTS, NUMBERS // CLIENTS)
    for n_classes in CLASSES:
        rng = np.random.default_rng(0)
        previous = rng.standard_normal((CLIENTS, NUMBERS // CLIENTS // n_classes, n_classes))
        current = previous + 0.02 * rng.standard_normal(previous.shape)
        labels = rng.integers(0, n_classes, previous.shape[1])
        read, ours, beside = in_turn(
            *_both("softmax", previous, current, labels), _both("logistic", *scalar)[1], repeat=REPEAT
        )
        rows.append(_row(f"{CLIENTS} x {previous.shape[1]:,}, {n_classes} classes", previous, read, ours))
        name = f"closed form, softmax of {n_classes} classes against scalar embeddings, per number"
        ratios[name] = ours / previous.size / (beside / scalar[0].size)
    header = ["clients x samples", "reading", "closed form", "part of reading", "ns a number"]
    return table(header, rows), ratios


def _row(name: str, previous: NDArray[Any], read: float, ours: float) -> list[str]:
    size = 2 * previous.nbytes / 1e9
    row = [
        name,
        f"{size / read:.1f} GB/s",
        f"{size / ours:.1f} GB/s",
        f"{read / ours:.2f}",
        f"{ours / previous.size * 5e8:.2f}",
    ]
    print(f"  {', '.join(row)}")
    return row
