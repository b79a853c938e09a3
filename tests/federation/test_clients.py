import numpy as np
import pytest

from tests.federation.conformance import make_clients
from verfedsv.federation import Client, Linear, Rate
from verfedsv.federation.messages import Done, Embed, Gradients, Predict, Restore, Save, Upload


def test_another_request_with_a_number_that_was_used_is_refused():
    """It is not the last one again; only what restores a client may begin with any number."""
    (client,), _ = make_clients(1)
    client.answer(Predict("client 1", 1, 3, None))
    for request in (Embed("client 1", 1, 3, np.arange(4)), Predict("client 1", 2, 3, None)):
        assert "comes after message 3" in client.answer(request).reason
    assert "nowhere to keep checkpoints" in client.answer(Restore("client 1", 1, 3)).reason


def test_a_message_to_another_client_is_refused():
    """Somebody connected the wrong one."""
    (client,), _ = make_clients(1)
    assert "a message to 'client 2' came to 'client 1'" in client.answer(Predict("client 2", 1, 1, None)).reason


def test_a_client_restores_the_round_that_it_is_told(tmp_path):
    """That of `keep` is there until another one counts; numbers of messages go on from the one that restores."""
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
    assert isinstance(client.answer(Embed("client 1", 2, 2, samples)), Upload)
    assert "cannot be read (FileNotFoundError)" in client.answer(Restore("client 1", 0, 3)).reason


@pytest.mark.parametrize("n_features", [1, 3, 8, 15, 16, 31, 100])
def test_rows_are_gathered_whatever_their_width(n_features):
    """How rows lie in memory changes nothing: a batch has the embeddings that all samples have."""
    features = np.random.default_rng(n_features).normal(size=(50, n_features))
    client = Client("bank", features, Linear(n_features, 2), Rate(0.1))
    batch = np.array([3, 1, 49, 7])
    client.answer(Embed("bank", 1, 1, batch))
    client.answer(Gradients("bank", 1, 2, batch, np.ones((4, 2))))
    every = client.answer(Predict("bank", 1, 3, None)).embeddings
    np.testing.assert_allclose(every, features @ client.state()["weights"], rtol=1e-13)
    np.testing.assert_allclose(client.answer(Predict("bank", 1, 4, batch)).embeddings, every[batch], rtol=1e-13)
