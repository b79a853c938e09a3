"""The memory of an evaluation, as docs/training.md states it."""

import tracemalloc

import numpy as np
import pytest

from verfedsv.arrays import PART_BYTES
from verfedsv.data.vertical import ClientData, VerticalData
from verfedsv.federation import Rate, Training

N_SAMPLES, N_FEATURES = 200_000, 100


@pytest.mark.parametrize("n_classes", [2, 26])
def test_evaluation_takes_the_embeddings_and_a_few_parts(n_classes):
    """Embeddings of training samples are held once more; of features and of other embeddings, only parts."""
    rng = np.random.default_rng(0)
    columns = [(rng.random((N_SAMPLES, N_FEATURES)) < 0.1).astype(float) for _ in range(2)]
    clients = tuple(ClientData(name, each) for name, each in zip("ab", columns, strict=True))
    labels = np.arange(N_SAMPLES) % n_classes
    training = Training.in_process(VerticalData(clients, labels, n_classes, labels == 0), rate=Rate(1.0))
    tracemalloc.start()
    try:
        found = training.evaluate()
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert columns[0].nbytes > 4 * PART_BYTES  # as they would be in float64
    assert peak < found.embeddings.nbytes + 4 * PART_BYTES
