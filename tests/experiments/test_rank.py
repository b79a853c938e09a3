import numpy as np

from experiments.lab import build, run_rounds, split
from experiments.rank import RankSettings, _linear, _sampled

SETTINGS = RankSettings(clients=3, batch_size=200, rate=0.5, rounds=12, train=200)


def embeddings_of_rounds(data, settings):
    """Return the embeddings after each round, (clients, rounds, samples, classes)."""
    return np.stack(
        [training.evaluate().embeddings for training in run_rounds(build(data, settings), settings)], axis=1
    )


def test_small_matrices_have_the_singular_values_of_the_embeddings():
    """Those of linear models, from weights and features alone."""
    data = split("adult", SETTINGS)
    small = _linear(data, SETTINGS)["all classes"]
    for matrix, of_client in zip(small, embeddings_of_rounds(data, SETTINGS)[:, :, :, 0], strict=True):
        expected = np.linalg.svd(of_client, compute_uv=False)
        found = np.linalg.svd(matrix, compute_uv=False)[: len(expected)]
        np.testing.assert_allclose(found, expected, atol=1e-12 * expected[0])


def test_some_rounds_and_samples_of_perceptrons():
    """Every third round and fifth sample, rounds in the order of training."""
    settings = SETTINGS.but(model="perceptron", round_stride=3, sample_stride=5)
    data = split("adult", settings)
    every = embeddings_of_rounds(data, settings)[:, 2::3, ::5, 0]
    np.testing.assert_allclose(_sampled(data, settings)["one class"], every, rtol=1e-6)
