"""The memory formulas of docs/benchmarks.md, by the peak of a process of its own."""

import subprocess
import sys

import pytest

from tests.memory import IS_KNOWN

pytestmark = pytest.mark.skipif(not IS_KNOWN, reason="needs /proc")

SCRIPT = """
import sys
import numpy as np
from tests.memory import resident
from verfedsv import shapley_values

n_clients, n_samples, n_classes = map(int, sys.argv[1:4])
method, step = sys.argv[4], float(sys.argv[5])
loss = "logistic" if n_classes == 1 else "softmax"

rng = np.random.default_rng(0)
shape = (n_clients, n_samples) if n_classes == 1 else (n_clients, n_samples, n_classes)
previous = rng.standard_normal(shape, dtype=np.float32)
current = rng.standard_normal(shape, dtype=np.float32)
current *= step
current += previous
labels = rng.integers(0, 2, n_samples)
few = slice(0, min(50, n_samples)), slice(0, 5)
small = previous[few[1], few[0]], current[few[1], few[0]], labels[few[0]]
for inputs in (small, [array.copy() for array in small]):
    for warm in ("exact", "closed-form", "auto"):
        shapley_values(*inputs, loss, warm, tolerance=0.1)
before = resident(what="VmHWM")
result = shapley_values(previous, current, labels, loss, method, tolerance=0.1, n_threads=2)
assert method != "auto" or result.method == "closed-form+exact"
print(previous.nbytes + current.nbytes, resident(what="VmHWM") - before)
"""


def growth(size, method="closed-form", step=0.01) -> tuple[int, int]:
    """Return the bytes of the input, and by how many the process grew beyond it."""
    command = [sys.executable, "-c", SCRIPT, *map(str, size), method, str(step)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # our own script
    n_input, grown = map(int, done.stdout.split())
    return n_input, grown


@pytest.mark.slow
@pytest.mark.parametrize("size", [(10, 1_000_000, 1), (300, 60_000, 1), (10, 200_000, 5)])
def test_the_closed_form_keeps_to_its_formula(size):
    """Beyond the input: 8 bytes a sample for the labels, and one block of at most 12,288 samples for each thread."""
    n_input, grown = growth(size)
    _, n_samples, n_classes = size
    formula = 8 * n_samples + 2 * 12_288 * 8 * (8 * n_classes + 5)
    # Checking the labels takes another 3 bytes a sample for a moment; the rest is what the interpreter needs.
    assert grown <= formula + 3 * n_samples + 4_000_000
    assert grown < n_input / 3


@pytest.mark.slow
@pytest.mark.parametrize("n_clients", [20, 22])
def test_enumeration_keeps_to_its_formula(n_clients):
    """17 bytes a coalition."""
    _, grown = growth((n_clients, 3, 1), "exact", 1.0)
    assert grown <= 17 * 2**n_clients + 6_000_000


@pytest.mark.slow
@pytest.mark.parametrize("n_samples", [500_000, 2_000_000])
def test_auto_keeps_to_its_formula(n_samples):
    """48 bytes a sample where the closed form does not suffice: 8 for the labels and 40 to choose the samples."""
    _, grown = growth((2, n_samples, 1), "auto", 2.0)
    assert grown <= 48 * n_samples + 8_000_000
