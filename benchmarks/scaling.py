"""Cost against clients and samples, and the memory of a large round."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import numpy as np

from benchmarks.measure import seconds, table, timed
from verfedsv import shapley_values

mpl.use("svg")
CLIENTS = (8, 20, 50, 125, 300, 800, 2000)
SAMPLES = (10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000)
FIXED_SAMPLES, FIXED_CLIENTS = 20_000, 8
LARGE = (2000, 100_000)


def random_round(n_clients: int, n_samples: int, dtype: type = np.float64) -> tuple[np.ndarray, ...]:
    """Return a round of random embeddings, made without temporary copies of their size."""
    rng = np.random.default_rng(0)
    previous = rng.standard_normal((n_clients, n_samples), dtype=dtype)
    current = rng.standard_normal((n_clients, n_samples), dtype=dtype)
    current *= 0.1 / np.sqrt(n_clients)
    current += previous
    return previous, current, rng.integers(0, 2, n_samples)


def measure(n_clients: int, n_samples: int, dtype: type = np.float64) -> float:
    """Return the seconds of the closed form on a random round of that size."""
    arguments = random_round(n_clients, n_samples, dtype)
    _, took = timed(lambda: shapley_values(*arguments, method="closed-form"), repeat=5)
    print(f"  {n_clients} clients x {n_samples:,} samples, {np.dtype(dtype)}: {took:.4g} s")
    return took


def slope(sizes: tuple[int, ...], times: list[float]) -> float:
    """Return the exponent of a power law, from the larger half of the sizes, where fixed costs no longer show."""
    half = len(sizes) // 2
    return float(np.polyfit(np.log(sizes[half:]), np.log(times[half:]), 1)[0])


def large_round() -> tuple[float, float, float]:
    """Return gigabytes of input, gigabytes used beyond it at the peak, and seconds, for the largest round.

    In a process of its own, so that its peak is not that of an earlier benchmark.
    """
    code = (
        "import time\n"
        "from benchmarks.memory import peak\n"
        "from benchmarks.scaling import LARGE, random_round\n"
        "from verfedsv import shapley_values\n"
        "shapley_values(*random_round(3, 10), method='closed-form')\n"
        "arguments = random_round(*LARGE)\n"
        "before = peak()\n"
        "begin = time.perf_counter()\n"
        "shapley_values(*arguments)\n"
        "took = time.perf_counter() - begin\n"
        "after = peak()\n"
        "print(sum(a.nbytes for a in arguments) / 1e9, (after - before) / 1e9, took)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)  # noqa: S603
    size, beyond, took = map(float, done.stdout.split())
    return size, beyond, took


def run(image: Path) -> tuple[str, str]:
    """Measure, draw the plot, and return a sentence on the exponents with a table, and one on memory."""
    import matplotlib.pyplot as plt

    by_clients = [measure(m, FIXED_SAMPLES) for m in CLIENTS]
    by_samples = [measure(FIXED_CLIENTS, n) for n in SAMPLES]
    exponents = slope(CLIENTS, by_clients), slope(SAMPLES, by_samples)
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    for ax, sizes, times, label, exponent in (
        (axes[0], CLIENTS, by_clients, f"clients ({FIXED_SAMPLES:,} samples)", exponents[0]),
        (axes[1], SAMPLES, by_samples, f"samples ({FIXED_CLIENTS} clients)", exponents[1]),
    ):
        ax.loglog(sizes, np.array(times) * 1e3, "o-", label=f"measured, exponent {exponent:.2f}")
        linear = times[-1] * np.array(sizes) / sizes[-1] * 1e3
        ax.loglog(sizes, linear, "--", color="gray", label="linear")
        ax.set_xlabel(label)
        ax.grid(visible=True, which="both", alpha=0.2)
        ax.legend(frameon=False)
    axes[0].set_ylabel("time of one round, ms")
    image.parent.mkdir(parents=True, exist_ok=True)
    mpl.rcParams["svg.hashsalt"] = "verfedsv"
    figure.savefig(image, metadata={"Date": None})
    rows = [[f"{m:,} x {FIXED_SAMPLES:,}", seconds(t)] for m, t in zip(CLIENTS, by_clients, strict=True)]
    rows += [[f"{FIXED_CLIENTS} x {n:,}", seconds(t)] for n, t in zip(SAMPLES, by_samples, strict=True)]
    narrow = measure(FIXED_CLIENTS, 3_000_000, np.float32)
    rows += [[f"{FIXED_CLIENTS} x 3,000,000, float32", seconds(narrow)]]
    cost = (
        f"Exponents, over the larger half of the sizes: {exponents[0]:.2f} in clients, {exponents[1]:.2f} in samples."
        "\n\n" + table(["clients x samples", "closed form"], rows)
    )
    size, beyond, took = large_round()
    print(f"  large round: {took:.4g} s, {beyond:.3g} GB beyond {size:.3g} GB of input")
    memory = (
        f"{LARGE[0]:,} clients x {LARGE[1]:,} samples in float64, {size:.1f} GB of input, were valued by `auto` in "
        f"{seconds(took)}; the process grew by {beyond * 1e3:.0f} MB beyond the input at its peak."
    )
    return cost, memory
