import numpy as np
import pytest

from tests.federation.conformance import make_clients
from verfedsv.federation import Client, Linear, Rate
from verfedsv.federation.messages import Done, Embed, Embeddings, Gradients, Predict, Restore, Save


def test_another_request_with_a_number_that_was_used_is_refused():
    """It is not a repetition; only Restore may have any number."""
    (client,), _ = make_clients(1)
    client.answer(Predict("client 1", 1, 3, None))
    for request in (Embed("client 1", 1, 3, np.arange(4)), Predict("client 1", 2, 3, None)):
        assert "comes after message 3" in client.answer(request).reason
    assert "was given no file for checkpoints" in client.answer(Restore("client 1", 1, 3)).reason


def test_a_message_to_another_client_is_refused():
    """It was delivered to the wrong client."""
    (client,), _ = make_clients(1)
    assert "a message to 'client 2' came to 'client 1'" in client.answer(Predict("client 2", 1, 1, None)).reason


def test_a_client_restores_the_round_that_it_is_told(tmp_path):
    """The checkpoint `keep` stays until another counts; sequence numbers continue from that of Restore."""
    (client,), _ = make_clients(1, checkpoint=tmp_path / "client-0")
    samples, weights = np.arange(4), {}
    for number in range(3):
        client.answer(Embed("client 1", number, 10 * number, samples))
        client.answer(Gradients("client 1", number, 10 * number + 1, samples, np.ones((4, 1))))
        client.answer(Save("client 1", number, 10 * number + 2, keep=max(0, number - 1)))
        weights[number] = client.state()["weights"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["client-0-1.npz", "client-0-2.npz"]
    assert isinstance(client.answer(Restore("client 1", 1, 1)), Done)
    np.testing.assert_array_equal(client.state()["weights"], weights[1])
    assert isinstance(client.answer(Embed("client 1", 2, 2, samples)), Embeddings)
    assert "cannot be read (No such file" in client.answer(Restore("client 1", 0, 3)).reason


@pytest.mark.parametrize(
    ("largest", "n_bytes"), [(1.0, 1), (-128.0, 1), (127.0, 1), (128.0, 8), (0.5, 8), (300.0, 8), (1e30, 8)]
)
def test_features_that_fit_into_bytes_are_held_in_bytes(largest, n_bytes):
    """Only if they are exact: embeddings, steps and predictions are the same."""
    features = np.random.default_rng(0).integers(0, 2, (50, 7)).astype(float)
    features[3, 2] = largest
    client = Client("bank", features, Linear(7, 2), Rate(0.1))
    assert client._features.itemsize == n_bytes
    batch, gradients = np.array([3, 1, 49, 7]), np.random.default_rng(1).normal(size=(4, 2))
    client.answer(Embed("bank", 1, 1, batch))
    client.answer(Gradients("bank", 1, 2, batch, gradients))
    weights = client.state()["weights"]
    np.testing.assert_allclose(weights, -0.1 * features[batch].T @ gradients / 4, rtol=1e-13)
    every = client.answer(Predict("bank", 1, 3, None)).embeddings
    np.testing.assert_allclose(every, features @ weights, rtol=1e-13)
    np.testing.assert_allclose(client.answer(Predict("bank", 1, 4, batch)).embeddings, every[batch], rtol=1e-13)
