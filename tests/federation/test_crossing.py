"""What crosses between clients and the server, looked at beside a training in plain NumPy."""

import copy

import numpy as np
import pytest

from tests.federation.textbook import make_data, slope, weights_of
from verfedsv.federation import (
    AsynchronousPlan,
    Client,
    Federation,
    Rate,
    SynchronousPlan,
    VirtualClock,
    asynchronous_rounds,
    federate,
    synchronous_rounds,
)
from verfedsv.federation.schedules import batch_of_client, batch_of_round

RATE, BATCH = 0.5, 30


class Spy:
    """A transport that keeps copies of everything it is called with and of what comes back, whatever it is."""

    def __init__(self, server):
        self.server, self.crossed = server, []

    def __getattr__(self, name):
        def call(*arguments, **options):
            sent = copy.deepcopy((arguments, options))
            answer = getattr(self.server, name)(*arguments[:3])
            self.crossed.append((name, *sent, copy.deepcopy(answer)))
            return answer

        return call


class Beside:
    """The same training in plain NumPy, from the same data; checks each thing that crosses against its own.

    `batches(m, step)` are the samples of a client's upload and those of its query, a function of nothing but the plan.
    """

    def __init__(self, data, batches, intercept):
        self.names, self.batches, self.has_intercept = data.names, batches, intercept
        self.features = [client.numeric[~data.is_test] for client in data.clients]
        self.labels = data.labels[~data.is_test]
        n_classes = 1 if data.n_classes == 2 else data.n_classes
        self.weights = [np.zeros((x.shape[1], n_classes)) for x in self.features]
        self.table = np.zeros((len(self.names), len(self.labels), n_classes))
        self.intercept, self.gradient = np.zeros(n_classes), None
        self.n_uploads, self.n_queries = [0] * len(self.names), [0] * len(self.names)

    def check(self, name, arguments, options, answer):
        """Raise AssertionError unless this is what would have crossed now, and nothing else."""
        assert (name, len(arguments)) in (("upload", 3), ("query", 2))
        assert options == {}
        client, samples = arguments[:2]
        assert type(client) is str
        m = self.names.index(client)
        assert_plain(samples, np.int64)
        if name == "upload":
            assert answer is None
            self.check_upload(m, samples, arguments[2])
        else:
            self.check_query(m, samples, answer)

    def check_upload(self, m, samples, embeddings):
        """Uploads are of the samples of the plan, features times weights."""
        np.testing.assert_array_equal(samples, self.batches(m, self.n_uploads[m])[0])
        expected = self.features[m][samples] @ self.weights[m]
        assert_plain(embeddings, np.float64)
        np.testing.assert_allclose(embeddings, expected, rtol=1e-10, atol=1e-12, strict=True)
        self.table[m, samples] = expected
        self.n_uploads[m] += 1
        self.gradient = None

    def check_query(self, m, samples, answer):
        """Answers are gradients of the loss, and the client takes its step."""
        np.testing.assert_array_equal(samples, self.batches(m, self.n_queries[m])[1])
        if self.gradient is None:
            total = self.table.sum(axis=0)[samples] + self.intercept
            self.gradient = slope(total, self.labels[samples])
            self.intercept = self.intercept - self.has_intercept * RATE * self.gradient.mean(axis=0)
        assert_plain(answer, np.float64)
        np.testing.assert_allclose(answer, self.gradient, rtol=1e-10, atol=1e-12, strict=True)
        self.weights[m] -= RATE * self.features[m][samples].T @ self.gradient / len(samples)
        self.n_queries[m] += 1


def assert_plain(array, number):
    """Raise AssertionError unless this is an array of numbers and not something that holds more than them."""
    assert type(array) is np.ndarray
    assert array.dtype == number


def train_and_check(data, mode, intercept):
    """Train with a spy between clients and server, check all that crossed, and that nothing else changed anything."""
    n_train = int((~data.is_test).sum())
    federation = federate(data, rate=Rate(RATE), intercept=intercept, transport=Spy)
    if mode == "synchronous":
        rounds = synchronous_rounds(federation, SynchronousPlan(BATCH, 6))

        def batches(_, step):
            return (batch_of_round(step, n_train, BATCH, 0),) * 2
    else:
        plan = AsynchronousPlan([0.01, 0.02, 0.015], [BATCH] * 3, 0.03, 3)
        rounds = asynchronous_rounds(federation, plan, VirtualClock())

        def batches(m, step):
            batch = batch_of_client(m, step, n_train, BATCH, 0)
            return (np.arange(n_train) if step == 0 else batch), batch

    beside = Beside(data, batches, intercept)
    for moment in rounds:
        federation.evaluate(*moment)
    for crossing in federation.transport.crossed:
        beside.check(*crossing)
    assert min(beside.n_uploads) >= 4
    assert beside.n_uploads == beside.n_queries
    np.testing.assert_allclose(federation.server.state()["table"], beside.table, atol=1e-12)
    np.testing.assert_allclose(weights_of(federation), np.vstack(beside.weights), atol=1e-12)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("n_classes", [2, 4])
def test_only_embeddings_and_gradients_cross(mode, intercept, n_classes):
    """Names, numbers of samples that the plan fixes, features times weights, gradients of the loss: nothing else."""
    train_and_check(make_data(n_classes=n_classes), mode, intercept)


def raw_features(client, samples, embeddings):
    return client._features[samples][:, : embeddings.shape[1]]


def hidden_features(client, samples, embeddings):
    return embeddings + 1e-7 * client._features[samples][:, :1]


def single_precision(client, samples, embeddings):  # noqa: ARG001
    return embeddings.astype(np.float32)


def with_more_to_it(client, samples, embeddings):  # noqa: ARG001
    class Bag(np.ndarray):
        pass

    return embeddings.view(Bag)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("leak", [raw_features, hidden_features, single_precision, with_more_to_it])
def test_a_client_that_uploads_something_else_is_caught(monkeypatch, mode, leak):
    """The test above fails for clients that upload features, or embeddings with features in their last digits."""
    embed = Client.embed

    def leaking(self, samples):
        embeddings = embed(self, samples)
        return embeddings if isinstance(samples, slice) else leak(self, samples, embeddings)

    monkeypatch.setattr(Client, "embed", leaking)
    with pytest.raises(AssertionError):
        train_and_check(make_data(), mode, False)


def send_weights_too(self, client, samples, embeddings):
    self.transport.upload(client.name, samples, embeddings, client.state()["weights"])


def send_weights_by_name(self, client, samples, embeddings):
    self.transport.upload(client.name, samples, embeddings, weights=client.state()["weights"])


def send_other_samples(self, client, samples, embeddings):
    order = np.argsort(client._features[samples][:, 0])
    self.transport.upload(client.name, samples[order], embeddings[order])


def send_twice(self, client, samples, embeddings):
    self.transport.upload(client.name, samples, embeddings)
    self.transport.upload(client.name, samples, embeddings)


def send_past_the_transport(self, client, samples, embeddings):
    self.transport.upload(client.name, samples, embeddings)
    self.server.upload(client.name, samples, client._features[samples][:, :1])


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize(
    "send", [send_weights_too, send_weights_by_name, send_other_samples, send_twice, send_past_the_transport]
)
def test_sending_more_than_embeddings_is_caught(monkeypatch, mode, send):
    """So it does for weights in another argument, an order that tells of features, and ways past the transport."""
    monkeypatch.setattr(Federation, "receive", send)
    with pytest.raises(AssertionError):
        train_and_check(make_data(), mode, False)


def test_a_client_has_nothing_in_public_but_its_name():
    """Features and model are its own."""
    federation = federate(make_data(), rate=Rate(RATE))
    for client in federation.clients:
        assert [name for name in vars(client) if not name.startswith("_")] == ["name"]
