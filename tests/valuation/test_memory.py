"""The memory formulas of docs/valuation.md, by the peak of a process of its own."""

import subprocess
import sys

import pytest

from tests.memory import IS_KNOWN

pytestmark = pytest.mark.skipif(not IS_KNOWN, reason="needs /proc")

RECORD = """
import sys
import numpy as np
from verfedsv import Recorder

path, mode = sys.argv[1:3]
n_clients, n_samples, n_classes, n_rounds, batch = map(int, sys.argv[3:8])
rng = np.random.default_rng(0)
labels = rng.integers(0, 2, n_samples)
clients = [str(m) for m in range(n_clients)]
factors = rng.normal(size=(n_clients, n_samples, 3))
options = {} if n_classes == 1 else {"loss": "softmax", "n_classes": n_classes}
with Recorder(path, labels, clients, **options) as recorder:
    for t in range(n_rounds):
        weights = 0.1 * np.sin(0.1 * t + np.arange(n_clients * 3 * n_classes)).reshape(n_clients, 3, n_classes)
        chosen = rng.permutation(n_samples)[:batch]
        uploads = {name: factors[m, chosen] @ weights[m] for m, name in enumerate(clients)}
        if mode == "mixed":
            batches = dict.fromkeys(clients, chosen) | {"0": range(n_samples)}
            recorder.log(batches, uploads | {"0": factors[0] @ weights[0]})
        elif mode == "synchronous":
            recorder.log(chosen, uploads)
        else:
            for name in clients:
                recorder.update(name, chosen, uploads[name], time=float(t))
            recorder.stamp(time=float(t))
"""

VALUE = """
import sys
import numpy as np
import verfedsv
from tests.memory import resident
from verfedsv.valuation import completed

completed.MAX_SWEEPS = 3  # each takes the same memory

for loss, n_classes in (("logistic", 1), ("softmax", 3)):
    for mode in ("synchronous", "asynchronous"):
        recorder = verfedsv.Recorder(None, np.arange(20) % max(2, n_classes), ["a", "b"], loss)
        for t in range(4):
            for batch in (range(10), range(5, 15)):
                uploads = np.full((10, n_classes), 0.1 * t)
                if mode == "synchronous":
                    recorder.log(batch, {"a": uploads, "b": uploads})
                else:
                    recorder.update("a", batch, uploads, time=0.0)
                    recorder.stamp(time=0.0)
        verfedsv.value(recorder, rank=2)
before = resident(what="VmHWM")
verfedsv.value(sys.argv[1], "closed-form", rank=3)
print(resident(what="VmHWM") - before)
"""


def growth(path, mode, size) -> int:
    """Return by how many bytes the process that values a recorded training grows."""
    for script in (RECORD, VALUE):
        command = [sys.executable, "-c", script, str(path), mode, *map(str, size)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603  # our own scripts
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [(4, 200_000, 1, 100, 10_000), (16, 50_000, 1, 100, 2_500), (4, 50_000, 3, 100, 2_500)]
)
def test_synchronous_valuation_keeps_to_its_formula(tmp_path, size):
    """One client's uploads, the factors of all, the start of completion; and the file, which is read."""
    n_clients, n_samples, n_classes, n_rounds, batch = size
    grown = growth(tmp_path / "run", "synchronous", size)
    n_observations, rank = n_rounds * batch, 3
    start = 8 * n_rounds * n_classes * min(4096, 2**24 // (n_rounds * n_classes))
    formula = (18 + 8 * n_classes) * n_observations + (8 * n_clients * rank + 48) * n_samples + 2 * start
    file = 8 * n_clients * n_observations * (n_classes + 0.5)
    assert grown <= formula + file + 60_000_000
    assert grown < 8 * n_rounds * n_samples * n_clients * n_classes / 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "size", [(4, 1_000_000, 1, 40, 50_000), (30, 100_000, 1, 40, 5_000), (5, 100_000, 7, 40, 5_000)]
)
def test_asynchronous_valuation_keeps_to_its_formula(tmp_path, size):
    """The server's table, and the uploads of some rounds; and the file, which is read."""
    n_clients, n_samples, n_classes, n_rounds, batch = size
    grown = growth(tmp_path / "run", "asynchronous", size)
    held = max(2**22 // n_classes, n_clients * batch)
    formula = 8 * n_clients * n_samples * n_classes + (8 + 8 * n_classes) * held + 40 * n_samples
    file = n_clients * n_rounds * batch * (8 * n_classes + 4)
    assert grown <= formula + file + 60_000_000
    assert grown < 8 * n_rounds * n_samples * n_clients * n_classes / 3


@pytest.mark.slow
@pytest.mark.parametrize("size", [(4, 200_000, 1, 60, 10_000), (4, 50_000, 3, 60, 2_500)])
def test_valuation_of_clients_with_and_without_gaps_keeps_to_its_formula(tmp_path, size):
    """Client 0 uploads every sample in every round: the factors of the others, the table, and two segments."""
    n_clients, n_samples, n_classes, n_rounds, batch = size
    grown = growth(tmp_path / "run", "mixed", size)
    n_observations, rank = n_rounds * batch, 3
    start = 8 * n_rounds * n_classes * min(4096, 2**24 // (n_rounds * n_classes))
    completed = (18 + 8 * n_classes) * n_observations + (16 * n_clients * rank + 48) * n_samples + 2 * start
    replayed = 8 * (n_clients + 1) * n_samples * n_classes + 2 * (8 + 8 * n_classes) * 2**22 // n_classes
    file = 8 * (n_samples * n_rounds + n_clients * n_observations) * (n_classes + 0.5)
    assert grown <= completed + replayed + file + 60_000_000


IN_PIECES = """
import sys
from concurrent.futures import ThreadPoolExecutor
import verfedsv
from tests.memory import resident
from verfedsv.valuation import partitioned

partitioned.MAX_SWEEPS = 3
executor = ThreadPoolExecutor(1) if len(sys.argv) > 3 else None
verfedsv.value(sys.argv[1], "closed-form", rank=3, memory=int(sys.argv[2]), executor=executor)
print(resident(what="VmHWM"))
"""


@pytest.mark.slow
def test_a_training_in_pieces_keeps_to_its_memory(tmp_path):
    """Uploads of 448 MB are valued by a process of 420 MB, most of which are the interpreter and the libraries."""
    memory, size = 420_000_000, (4, 400_000, 3, 100, 40_000)
    command = [sys.executable, "-c", RECORD, str(tmp_path), "synchronous", *map(str, size)]
    subprocess.run(command, check=True)  # noqa: S603  # our own script
    command = [sys.executable, "-c", IN_PIECES, str(tmp_path), str(memory)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert int(done.stdout) <= memory
    assert sum(file.stat().st_size for file in tmp_path.glob("uploads-*")) > memory


@pytest.mark.slow
def test_long_asynchronous_trainings_in_pieces_keep_to_their_memory(tmp_path):
    """A chunk of samples has 110 MB of uploads in 200 rounds: they are held for some rounds at a time."""
    memory, size = 400_000_000, (4, 12_000, 1, 200, 12_000)
    command = [sys.executable, "-c", RECORD, str(tmp_path), "asynchronous", *map(str, size)]
    subprocess.run(command, check=True)  # noqa: S603
    command = [sys.executable, "-c", IN_PIECES, str(tmp_path), str(memory), "one at a time"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    assert int(done.stdout) <= memory
