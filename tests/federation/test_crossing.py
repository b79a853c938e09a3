"""What crosses between clients and the server, looked at beside a training in plain NumPy."""

import copy
import dataclasses

import numpy as np
import pytest

from tests.federation.textbook import clients_of, make_data, slope, weights_of
from verfedsv.federation import (
    AsynchronousSchedule,
    Client,
    InProcess,
    Rate,
    SynchronousSchedule,
    Training,
    VirtualClock,
    asynchronous_rounds,
    synchronous_rounds,
)
from verfedsv.federation.messages import Done, Embed, Embeddings, Gradients, Predict, Prediction
from verfedsv.federation.schedules import batch_of_client, batch_of_round

RATE, BATCH = 0.5, 30
FIELDS = {
    Embed: {"samples", "gradients"},
    Embeddings: {"embeddings"},
    Gradients: {"samples", "values"},
    Predict: {"samples"},
    Prediction: {"embeddings"},
    Done: set(),
}


class Spy(InProcess):
    """A transport that copies all messages with everything in them."""

    def __init__(self, clients):
        super().__init__(clients)
        self.crossed = []

    def exchange(self, requests, timeout=None):
        answers = []
        for request in requests:
            self.crossed.append(copy.deepcopy(request))
            answers += super().exchange([request], timeout)
            self.crossed.append(copy.deepcopy(answers[-1]))
        return answers


class Beside:
    """The same training in plain NumPy, from the same data; compares each message with its own.

    `batches(m, step)` are the samples of a client's upload and those of its step, a function of nothing but the
    schedule.
    """

    def __init__(self, data, batches, intercept, *, is_synchronous):
        self.is_synchronous = is_synchronous
        self.names, self.batches, self.has_intercept = data.names, batches, intercept
        order = np.argsort(data.is_test, kind="stable")
        self.features = [client.numeric[order] for client in data.clients]
        self.labels = data.labels[~data.is_test]
        n_classes = 1 if data.n_classes == 2 else data.n_classes
        self.weights = [np.zeros((x.shape[1], n_classes)) for x in self.features]
        self.table = np.zeros((len(self.names), len(self.labels), n_classes))
        self.intercept, self.gradients = np.zeros(n_classes), {}  # by client, until they arrive
        self.n_uploads, self.n_steps = [0] * len(self.names), [0] * len(self.names)
        self.sequences, self.asked = [0] * len(self.names), [None] * len(self.names)

    def check(self, message):
        """Raise AssertionError unless this is exactly the expected message."""
        assert not hasattr(message, "__dict__")  # there is no room for more than its fields
        names = {field.name for field in dataclasses.fields(message)}
        assert names == {"client", "round", "sequence", *FIELDS[type(message)]}
        assert type(message.client) is str
        assert type(message.round) is type(message.sequence) is int
        m = self.names.index(message.client)
        is_answer = isinstance(message, Embeddings | Prediction | Done)
        assert (message.sequence == self.sequences[m]) == is_answer
        assert message.sequence >= self.sequences[m]
        self.sequences[m] = message.sequence
        match message:
            case Embed():
                if message.gradients is not None:
                    assert message.gradients.client == message.client
                    self.check_gradients(m, message.gradients)
                assert_plain(message.samples, np.int64)
                np.testing.assert_array_equal(message.samples, self.batches(m, self.n_uploads[m])[0])
                self.asked[m] = message.samples
            case Embeddings():
                self.check_upload(m, message.embeddings)
            case Gradients():
                self.check_gradients(m, message)
            case Predict():
                assert message.samples is None
            case Prediction():
                assert_plain(message.embeddings, np.float64)
                expected = self.features[m] @ self.weights[m]
                np.testing.assert_allclose(message.embeddings, expected, rtol=1e-10, atol=1e-12, strict=True)

    def check_upload(self, m, embeddings):
        """Uploads are features times weights, of the samples that were asked for."""
        samples = self.asked[m]
        expected = self.features[m][samples] @ self.weights[m]
        assert_plain(embeddings, np.float64)
        np.testing.assert_allclose(embeddings, expected, rtol=1e-10, atol=1e-12, strict=True)
        self.table[m, samples] = expected
        self.n_uploads[m] += 1
        if self.is_synchronous and len({*self.n_uploads}) > 1:
            return  # the round is not over
        samples = self.batches(m, self.n_uploads[m] - 1)[1]
        gradients = slope(self.table.sum(axis=0)[samples] + self.intercept, self.labels[samples])
        self.intercept = self.intercept - self.has_intercept * RATE * gradients.mean(axis=0)
        for of_client in range(len(self.names)) if self.is_synchronous else [m]:
            self.gradients[of_client] = gradients

    def check_gradients(self, m, message):
        """Gradients are those of the loss, and the client takes its step."""
        samples = self.batches(m, self.n_steps[m])[1]
        if message.samples is None:  # those that were just uploaded
            np.testing.assert_array_equal(samples, self.asked[m])
        else:
            assert_plain(message.samples, np.int64)
            np.testing.assert_array_equal(message.samples, samples)
        gradients = self.gradients.pop(m)
        assert_plain(message.values, np.float64)
        np.testing.assert_allclose(message.values, gradients, rtol=1e-10, atol=1e-12, strict=True)
        self.weights[m] -= RATE * self.features[m][samples].T @ gradients / len(samples)
        self.n_steps[m] += 1


def assert_plain(array, number):
    """Raise AssertionError unless this is an array of numbers that holds nothing else."""
    assert type(array) is np.ndarray
    assert array.dtype == number


def train_and_check(data, mode, intercept, *, defers_steps=False):
    """Train with a spy between clients and server, and check all messages and that nothing else had an effect."""
    n_train = int((~data.is_test).sum())
    made = Training.in_process(data, rate=Rate(RATE), intercept=intercept)
    training = Training(made.server, Spy(clients_of(made)), defers_steps=defers_steps)
    if mode == "synchronous":
        rounds = synchronous_rounds(training, SynchronousSchedule(BATCH, 6))

        def batches(_, step):
            return (batch_of_round(step, n_train, BATCH, 0),) * 2
    else:
        schedule = AsynchronousSchedule([0.01, 0.02, 0.015], [BATCH] * 3, 0.03, 3)
        rounds = asynchronous_rounds(training, schedule, VirtualClock())

        def batches(m, step):
            batch = batch_of_client(m, step, n_train, BATCH, 0)
            return (np.arange(n_train) if step == 0 else batch), batch

    beside = Beside(data, batches, intercept, is_synchronous=mode == "synchronous")
    for number in rounds:
        if number % 2 == 0:
            training.evaluate()
    training.evaluate()
    for message in training.transport.crossed:
        beside.check(message)
    assert min(beside.n_uploads) >= 4
    assert beside.n_uploads == beside.n_steps
    np.testing.assert_allclose(training.server.state()["table"], beside.table, atol=1e-12)
    np.testing.assert_allclose(weights_of(training), np.vstack(beside.weights), atol=1e-12)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("intercept", [False, True])
@pytest.mark.parametrize("n_classes", [2, 4])
@pytest.mark.parametrize("defers_steps", [False, True])
def test_only_embeddings_and_gradients_cross(mode, intercept, n_classes, defers_steps):
    """Names, sample numbers from the schedule, features times weights, gradients of the loss, and nothing else."""
    train_and_check(make_data(n_classes=n_classes), mode, intercept, defers_steps=defers_steps)


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
    carry_out = Client._carry_out

    def leaking(self, message):
        answer = carry_out(self, message)
        if isinstance(message, Embed):
            return Embeddings(
                answer.client, answer.round, answer.sequence, leak(self, message.samples, answer.embeddings)
            )
        return answer

    monkeypatch.setattr(Client, "_carry_out", leaking)
    with pytest.raises(AssertionError):
        train_and_check(make_data(), mode, False)


def with_weights(client, message, answer):  # noqa: ARG001
    class Larger(Embeddings):
        pass

    larger = Larger(answer.client, answer.round, answer.sequence, answer.embeddings)
    larger.weights = client.state()["weights"]
    return larger


def past_the_transport(client, message, answer):
    others = np.setdiff1d(np.arange(100), message.samples)
    client.server._table[0, others] = client._features[others][:, :1]
    return answer


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("leak", [with_weights, past_the_transport])
def test_a_client_that_sends_more_than_embeddings_is_caught(monkeypatch, mode, leak):
    """The test also fails for weights beside the embeddings, and for a way past the transport."""
    carry_out, make = Client._carry_out, Training.in_process.__func__

    def leaking(self, message):
        answer = carry_out(self, message)
        return leak(self, message, answer) if isinstance(message, Embed) else answer

    def wired(cls, *arguments, **options):
        training = make(cls, *arguments, **options)
        for client in clients_of(training):
            client.server = training.server
        return training

    monkeypatch.setattr(Client, "_carry_out", leaking)
    monkeypatch.setattr(Training, "in_process", classmethod(wired))
    with pytest.raises(AssertionError):
        train_and_check(make_data(), mode, False)


def test_a_client_has_nothing_in_public_but_its_name():
    """Features and model are private."""
    training = Training.in_process(make_data(), rate=Rate(RATE))
    for client in clients_of(training):
        assert [name for name in vars(client) if not name.startswith("_")] == ["name"]
