import numpy as np
import pytest

from tests.federation.textbook import make_data, plain_sgd, slope, weights_of
from verfedsv.federation import (
    AsynchronousPlan,
    Client,
    Linear,
    Rate,
    Server,
    SynchronousPlan,
    VirtualClock,
    asynchronous_rounds,
    federate,
    synchronous_rounds,
)


class Copying:
    """A transport that hands on copies, as a network does."""

    def __init__(self, server):
        self.server = server

    def upload(self, client, samples, embeddings):
        self.server.upload(client, samples.copy(), embeddings.copy())

    def query(self, client, samples):
        return self.server.query(client, samples.copy()).copy()


def make_server(intercept=None):
    """Return a server of two clients and six samples, with two batches and embeddings for each of them."""
    rng = np.random.default_rng(0)
    server = Server([0, 1, 1, 0, 1, 0], ["a", "b"], 1, intercept=intercept)
    return server, np.array([0, 1, 2]), np.array([3, 4, 5]), rng.normal(size=(4, 3, 1))


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_transport_that_copies_changes_nothing(mode, intercept):
    """Weights and intercept are those of a server at hand, to the last bit: what counts is which samples are named."""
    data = make_data()
    plan = SynchronousPlan(30, 9)
    found = []
    for transport in (None, Copying):
        federation = federate(data, rate=Rate(0.5), intercept=intercept, transport=transport)
        if mode == "synchronous":
            rounds = synchronous_rounds(federation, plan)
        else:
            rounds = asynchronous_rounds(
                federation, AsynchronousPlan([0.01, 0.02, 0.03], [30] * 3, 0.06, 5), VirtualClock()
            )
        for _ in rounds:
            pass
        found.append((weights_of(federation), federation.server.intercept))
    np.testing.assert_array_equal(found[0][0], found[1][0])
    if intercept:
        np.testing.assert_array_equal(found[0][1], found[1][1])
    if intercept and mode == "synchronous":
        np.testing.assert_allclose(found[1][1], plain_sgd(data, plan, 0.5, intercept=True)[1], atol=1e-10)


def test_samples_in_a_buffer_that_is_used_again():
    """A caller may write the next batch into the same array: uploads, questions and steps are of what it holds then."""
    server, first, second, embeddings = make_server()
    labels, table = np.array([0, 1, 1, 0, 1, 0]), np.zeros((2, 6, 1))
    buffer = np.empty(3, dtype=int)
    for number, batch in ((0, first), (1, second), (0, second), (1, second)):
        buffer[:] = batch
        server.upload("ab"[number], buffer, embeddings[number])
        table[number, batch] = embeddings[number]
        for asked in (batch, first, second):
            buffer[:] = asked
            np.testing.assert_allclose(
                server.query("a", buffer), slope(table.sum(axis=0)[asked], labels[asked]), atol=1e-12
            )
    x = np.random.default_rng(1).normal(size=(6, 2))
    client = Client("a", x, Linear(2, 1), Rate(1.0))
    buffer[:] = first
    client.embed(buffer)
    buffer[:] = second
    client.learn(buffer, np.ones((3, 1)))
    np.testing.assert_allclose(client.state()["weights"], -x[second].mean(axis=0)[:, None])


def test_embeddings_in_a_buffer_that_is_used_again():
    """What was uploaded is what the array held then."""
    server, batch, _, embeddings = make_server()
    buffer = np.empty((3, 1))
    for name, values in zip("ab", embeddings, strict=False):
        buffer[:] = values
        server.upload(name, batch, buffer)
    np.testing.assert_allclose(
        server.query("a", batch), slope(embeddings[:2].sum(axis=0), np.array([0, 1, 1])), atol=1e-12
    )


def test_embeddings_of_less_precision_are_summed_in_double_precision():
    """The sum that is kept on the way is that of the table."""
    server, batch, _, embeddings = make_server()
    rough = embeddings.astype(np.float32)
    for name, values in zip("ab", rough, strict=False):
        server.upload(name, batch, values)
    total = rough[:2].astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(server.query("a", batch), slope(total, np.array([0, 1, 1])), rtol=1e-14)


def test_the_intercept_takes_one_step_for_each_batch_after_an_upload():
    """However many clients ask for it, and also when one asks again, all get the same gradients."""
    server, batch, _, embeddings = make_server(Rate(0.5))
    for _ in range(2):
        before = server.intercept
        for name, values in zip("ab", embeddings, strict=False):
            server.upload(name, batch.copy(), values)
        gradients = [server.query(name, batch.copy()) for name in "abab"]
        for gradient in gradients:
            np.testing.assert_array_equal(gradient, gradients[0])
        np.testing.assert_allclose(server.intercept, before - 0.5 * gradients[0].mean(axis=0))
        # What one of them did to its gradients would reach the others.
        with pytest.raises(ValueError, match="read-only"):
            gradients[0] *= 2


def test_a_restored_server_forgets_what_it_has_answered():
    """Gradients are those of the state that was taken up, also for samples that were just asked for."""
    server, batch, _, embeddings = make_server(Rate(0.5))
    empty = {name: np.array(value) for name, value in server.state().items()}
    for name, values in zip("ab", embeddings, strict=False):
        server.upload(name, batch, values)
    server.query("a", batch)
    server.restore(empty)
    np.testing.assert_allclose(server.query("a", batch), slope(np.zeros((3, 1)), np.array([0, 1, 1])))


def test_a_state_is_a_snapshot():
    """Training on does not change it, whatever a model returns as its own; and changing it does not change training."""

    class Live(Linear):
        def state(self):
            return {"weights": self.weights}

    federation = federate(make_data(), rate=Rate(0.5), model=Live, intercept=True)
    plan = SynchronousPlan(30, 6)
    for moment in synchronous_rounds(federation, plan):
        if moment.n_rounds == 3:
            break
    states = federation.state(), federation.server.state(), federation.clients[0].state()
    before = [{name: value.copy() for name, value in state.items()} for state in states]
    for _ in synchronous_rounds(federation, plan, 3):
        pass
    for state, expected in zip(states, before, strict=True):
        for name, value in expected.items():
            np.testing.assert_array_equal(state[name], value)
            state[name][...] = 7
    assert not any((value == 7).any() for value in federation.state().values())
