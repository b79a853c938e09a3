"""The memory formulas of docs/benchmarks.md, by the peak of a process of its own."""

import subprocess
import sys

import pytest

resource = pytest.importorskip("resource", reason="peak memory is read through the resource module")

SCRIPT = """
import resource, sys
import numpy as np
from verfedsv import shapley_values

n_clients, n_samples, n_classes = map(int, sys.argv[1:4])
loss = "logistic" if n_classes == 1 else "softmax"

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

rng = np.random.default_rng(0)
shape = (n_clients, n_samples) if n_classes == 1 else (n_clients, n_samples, n_classes)
previous = rng.standard_normal(shape, dtype=np.float32)
current = rng.standard_normal(shape, dtype=np.float32)
current *= 0.01
current += previous
labels = rng.integers(0, 2, n_samples)
shapley_values(previous[:, :50], current[:, :50], labels[:50], loss, "closed-form")
shapley_values(previous[:, :50].copy(), current[:, :50].copy(), labels[:50], loss, "closed-form")
before = peak()
shapley_values(previous, current, labels, loss, "closed-form", n_threads=2)
print(previous.nbytes + current.nbytes, peak() - before)
"""


@pytest.mark.slow
@pytest.mark.parametrize("size", [(10, 1_000_000, 1), (300, 60_000, 1), (10, 200_000, 5)])
def test_the_closed_form_keeps_to_its_formula(size):
    """Beyond the input: 8 bytes a sample for the labels, and one block of at most 12,288 samples for each thread."""
    done = subprocess.run(  # noqa: S603  # our own script
        [sys.executable, "-c", SCRIPT, *map(str, size)], capture_output=True, text=True, check=True
    )
    n_input, grown = map(int, done.stdout.split())
    _, n_samples, n_classes = size
    formula = 8 * n_samples + 2 * 12_288 * 8 * (8 * n_classes + 5)
    # Checking the labels takes another 3 bytes a sample for a moment; the rest is what the interpreter needs.
    assert grown <= formula + 3 * n_samples + 4_000_000
    assert grown < n_input / 3
