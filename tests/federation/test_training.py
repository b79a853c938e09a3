import threading

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.special import expit, softmax
from sklearn.metrics import r2_score, root_mean_squared_error

from tests.federation.textbook import hand_over, joined, make_data, plain_sgd, records_of, weights_of
from verfedsv import InputError, Recorder, value
from verfedsv.errors import ClientWarning, DivergedError
from verfedsv.federation import (
    AsynchronousSchedule,
    Client,
    InProcess,
    Linear,
    Rate,
    RealClock,
    Server,
    SynchronousSchedule,
    Training,
    VirtualClock,
    asynchronous_rounds,
    clients,
    server,
    synchronous_rounds,
)
from verfedsv.federation.messages import Done, Embed, Gradients, Refusal
from verfedsv.federation.schedules import batch_of_client, batch_of_round
from verfedsv.transcript import Stamp


@pytest.mark.parametrize("n_classes", [1, 2, 4])
@pytest.mark.parametrize("n_clients", [1, 2, 5])
@pytest.mark.parametrize("options", [{}, {"intercept": True}, {"inverse": True}])
def test_synchronous_training_is_sgd_on_the_joined_data(n_classes, n_clients, options):
    """However the features are split, the model is that of plain SGD, to 1e-10."""
    data = make_data(n_clients, n_classes=n_classes)
    rate = Rate(0.5, "inverse" if options.get("inverse") else "constant")
    training = Training.in_process(data, rate=rate, intercept=options.get("intercept", False))
    schedule = SynchronousSchedule(batch_size=30, n_rounds=25)
    for _ in synchronous_rounds(training, schedule):
        pass
    weights, own = plain_sgd(data, schedule, 0.5, **options)
    np.testing.assert_allclose(weights_of(training), weights, atol=1e-10)
    if options.get("intercept"):
        np.testing.assert_allclose(training.server.state()["intercept"], own, atol=1e-10)


def test_sparse_and_dense_features_give_the_same_model():
    """A client may hold its features either way."""
    models = []
    for dense in (True, False):
        features = np.random.default_rng(0).normal(size=(50, 300)) * (np.random.default_rng(1).random((50, 300)) < 0.05)
        client = Client("a", features if dense else csr_array(features), Linear(300, 1), Rate(0.5))
        for n, start in enumerate(range(0, 50, 10)):
            samples = np.arange(start, start + 10)
            upload = client.answer(Embed("a", n, 2 * n, samples))
            client.answer(Gradients("a", n, 2 * n + 1, samples, expit(upload.embeddings) - 1))
        models.append(client.state()["weights"])
    np.testing.assert_allclose(*models, atol=1e-14)


def test_the_value_of_a_single_client_is_the_drop_in_loss():
    """With one client there is nothing to share."""
    data = make_data(1, n_test=0)
    recorder = Recorder(None, data.labels, data.names)
    training = Training.in_process(data, rate=Rate(0.5), recorder=recorder)
    for _ in synchronous_rounds(training, SynchronousSchedule(120, 20)):
        pass
    result = value(recorder)
    # The last upload is of the model before the last step.
    weights, _ = plain_sgd(data, SynchronousSchedule(120, 19), 0.5)
    margins = (2 * data.labels - 1) * (joined(data) @ weights)[:, 0]
    decrease = np.log(2) - np.logaddexp(0, -margins).mean()
    assert result.values[0] * 20 == pytest.approx(decrease, rel=1e-9)


def train(training, mode, n_rounds=4):
    """Train a few rounds."""
    if mode == "synchronous":
        rounds = synchronous_rounds(training, SynchronousSchedule(30, n_rounds))
    else:
        n_clients = len(training.server.clients)
        schedule = AsynchronousSchedule([0.01] * n_clients, [30] * n_clients, 0.02, n_rounds)
        rounds = asynchronous_rounds(training, schedule, VirtualClock())
    for _ in rounds:
        pass


def test_with_one_client_and_full_batches_both_ways_are_the_same_training():
    """Uploads and weights are the same to the last bit."""
    data = make_data(1)
    recorders = [Recorder(None, data.labels[~data.is_test], data.names) for _ in range(2)]
    trainings = [Training.in_process(data, rate=Rate(0.5), intercept=True, recorder=recorder) for recorder in recorders]
    for _ in synchronous_rounds(trainings[0], SynchronousSchedule(100, 8)):
        pass
    for _ in asynchronous_rounds(trainings[1], AsynchronousSchedule([1.0], [100], 1.0, 8), VirtualClock()):
        pass
    np.testing.assert_array_equal(*map(weights_of, trainings))
    pairs = list(zip(*(recorder.transcript for recorder in recorders), strict=True))
    assert len(pairs) == 16
    for a, b in pairs:
        assert (type(a), a.time) == (type(b), b.time)
        if not isinstance(a, Stamp):
            np.testing.assert_array_equal(a.embeddings, b.embeddings)


def test_asynchronous_clients_keep_their_periods():
    """Each uploads in its own period, first all samples, then batches of its own size; stamps come on time."""
    data = make_data()
    recorder = Recorder(None, data.labels[~data.is_test], data.names)
    schedule = AsynchronousSchedule([0.01, 0.02, 0.05], [10, 20, 30], 0.1, 3)
    training = Training.in_process(data, rate=Rate(0.1), recorder=recorder)
    for _ in asynchronous_rounds(training, schedule, VirtualClock()):
        pass
    records = list(recorder.transcript)
    assert [r.time for r in records if isinstance(r, Stamp)] == pytest.approx([0.1, 0.2, 0.3])
    for name, period, size in zip(data.names, schedule.periods, schedule.batch_sizes, strict=True):
        own = [r for r in records if not isinstance(r, Stamp) and r.client == name]
        assert [r.time for r in own] == pytest.approx([period * (k + 1) for k in range(round(0.3 / period))])
        assert [len(r.samples) for r in own] == [100] + [size] * (len(own) - 1)
    times = [r.time for r in records]
    assert times == sorted(times)
    # What happens at the time of a stamp is before it.
    assert isinstance(records[-1], Stamp)


def test_the_virtual_clock_gives_the_same_training_each_time():
    """To the last bit."""
    data = make_data()
    weights = []
    for _ in range(2):
        training = Training.in_process(data, rate=Rate(0.5))
        train(training, "asynchronous", 10)
        weights.append(weights_of(training))
    np.testing.assert_array_equal(*weights)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("intercept", [False, True])
def test_a_training_continues_from_its_state(mode, intercept):
    """Stopped after any round and continued by other objects, it reaches the same weights and uploads."""
    data = make_data()
    labels = data.labels[~data.is_test]

    def rounds(training):
        if mode == "synchronous":
            return synchronous_rounds(training, SynchronousSchedule(30, 9))
        schedule = AsynchronousSchedule([0.01, 0.015, 0.02], [30, 20, 10], 0.05, 9)
        return asynchronous_rounds(training, schedule, VirtualClock())

    whole, parts = (Recorder(None, labels, data.names) for _ in range(2))
    uninterrupted, first, second = (
        Training.in_process(data, rate=Rate(0.5, "inverse"), intercept=intercept) for _ in range(3)
    )
    uninterrupted.server.record(whole)
    for _ in rounds(uninterrupted):
        pass
    first.server.record(parts)
    for n_rounds in rounds(first):
        if n_rounds == 4:
            break
    hand_over(first, second)
    second.server.record(parts)
    for _ in rounds(second):
        pass
    np.testing.assert_array_equal(weights_of(second), weights_of(uninterrupted))
    for a, b in zip(whole.transcript, parts.transcript, strict=True):
        assert a.time == b.time
        if not isinstance(a, Stamp):
            np.testing.assert_array_equal(a.embeddings, b.embeddings)


def test_the_real_clock_trains_in_threads():
    """In wall time: uploads of all clients, monotone times, no stamp before its time, no thread left over."""
    data = make_data()
    recorder = Recorder(None, data.labels[~data.is_test], data.names)
    training = Training.in_process(data, rate=Rate(0.1), recorder=recorder)
    schedule = AsynchronousSchedule([0.01, 0.02, 0.03], [30] * 3, 0.1, 1000)
    n_threads, server, ended = threading.active_count(), training.server, []
    rounds = asynchronous_rounds(training, schedule, RealClock())
    while len(ended) < 5 or not server.n_uploads["client 1"] > server.n_uploads["client 3"] >= 3:
        ended.append(next(rounds))
    rounds.close()
    assert threading.active_count() == n_threads
    records = list(recorder.transcript)
    times = [r.time for r in records]
    assert times == sorted(times)
    stamps = [r.time for r in records if isinstance(r, Stamp)]
    assert len(stamps) == len(ended)
    assert all(time >= 0.1 * n_rounds for time, n_rounds in zip(stamps, ended, strict=True))
    counts = {name: sum(not isinstance(r, Stamp) and r.client == name for r in records) for name in data.names}
    assert counts == server.n_uploads
    assert value(recorder).values.sum() > 0


def test_a_failure_in_a_thread_is_raised():
    """A client whose model fails ends the training with its error, and its threads."""

    class Broken(Linear):
        def learn(self, features, gradient, rate):  # noqa: ARG002
            raise RuntimeError("broken model")

    training = Training.in_process(make_data(), rate=Rate(0.1), model=Broken)
    schedule = AsynchronousSchedule([0.01] * 3, [30] * 3, 0.1, 50)
    n_threads = threading.active_count()
    with pytest.raises(RuntimeError, match="broken model"):
        for _ in asynchronous_rounds(training, schedule, RealClock()):
            pass
    assert threading.active_count() == n_threads


def test_batches_go_once_through_all_samples_in_an_epoch():
    """Shuffled anew in each epoch, the last one short."""
    epochs = [[batch_of_round(t, 100, 30, 7) for t in range(4 * e, 4 * e + 4)] for e in range(2)]
    for batches in epochs:
        assert [len(batch) for batch in batches] == [30, 30, 30, 10]
        np.testing.assert_array_equal(np.sort(np.concatenate(batches)), np.arange(100))
    assert not np.array_equal(epochs[0][0], epochs[1][0])


def test_batches_of_asynchronous_clients():
    """No sample twice; all samples if the batch is that large; another batch in each step and for each client."""
    batch = batch_of_client(1, 5, 100, 30, 0)
    assert len(np.unique(batch)) == 30
    np.testing.assert_array_equal(batch_of_client(0, 0, 20, 30, 0), np.arange(20))
    assert not np.array_equal(batch, batch_of_client(1, 6, 100, 30, 0))
    assert not np.array_equal(batch, batch_of_client(2, 5, 100, 30, 0))


def test_evaluation_is_that_of_the_joined_model():
    """Loss and accuracy on training and test samples, by the textbook."""
    data = make_data(n_classes=3)
    training = Training.in_process(data, rate=Rate(0.5))
    train(training, "synchronous", 20)
    result = training.evaluate()
    assert (result.n_rounds, result.time) == (20, 20.0)
    scores = joined(data) @ weights_of(training)
    p = softmax(scores, axis=1)[np.arange(120), data.labels]
    assert result.train_loss == pytest.approx(-np.log(p[~data.is_test]).mean())
    assert result.test_loss == pytest.approx(-np.log(p[data.is_test]).mean())
    right = scores.argmax(axis=1) == data.labels
    assert result.train["accuracy"] == pytest.approx(right[~data.is_test].mean())
    assert result.test["accuracy"] == pytest.approx(right[data.is_test].mean())
    assert result.embeddings.shape == (3, 100, 3)
    some = np.array([110, 3, 3])
    order = np.argsort(data.is_test, kind="stable")
    np.testing.assert_allclose(training.predict(some), scores[order][some], atol=1e-12)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_amounts_are_measured_and_predicted_in_their_own_units(mode):
    """R² and RMSE are scikit-learn's of the predictions, whose units are those of the labels."""
    data = make_data(n_classes=1)
    training = Training.in_process(data, rate=Rate(0.1), intercept=True)
    train(training, mode, 30)
    order = np.argsort(data.is_test, kind="stable")
    predicted, labels = training.predict(np.arange(120))[:, 0], data.labels[order]
    own = training.server.state()["intercept"]
    score = (joined(data) @ weights_of(training) + own)[order, 0]
    fitted = data.labels[~data.is_test]
    np.testing.assert_allclose(predicted, score * fitted.std() + fitted.mean(), rtol=1e-12)
    found = training.evaluate()
    for part, rows in ((found.train, slice(100)), (found.test, slice(100, None))):
        assert part["r2"] == pytest.approx(r2_score(labels[rows], predicted[rows]), rel=1e-9)
        assert part["rmse"] == pytest.approx(root_mean_squared_error(labels[rows], predicted[rows]), rel=1e-9)
        assert part["loss"] == pytest.approx((part["rmse"] / fitted.std()) ** 2 / 2, rel=1e-9)
    assert found.train["r2"] > 0.3


@pytest.mark.parametrize("n_classes", [1, 2, 4])
@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("n_bytes", [8, 8 * 3 * 7 * 4, 8 * 64 * 50])
def test_evaluation_in_parts(monkeypatch, n_classes, sparse, n_bytes):
    """However small the parts of samples are, measures, embeddings and mean embeddings are the same to rounding."""
    data = make_data(n_classes=n_classes, sparse=sparse)
    training = Training.in_process(data, rate=Rate(0.1), intercept=True)
    train(training, "synchronous", 10)
    whole = training.evaluate()
    means = training.server.state()["means"]
    for module in (clients, server):
        monkeypatch.setattr(module, "PART_BYTES", n_bytes)
    sizes = [len(part) for part in training.server.parts()]
    assert sum(sizes) == 120
    assert max(sizes) == min(120, max(1, n_bytes // (8 * 3 * data.width)))
    found = training.evaluate()
    assert found.metrics() == pytest.approx(whole.metrics(), rel=1e-12)
    np.testing.assert_allclose(found.embeddings, whole.embeddings, atol=1e-13)
    np.testing.assert_allclose(training.server.state()["means"], means, atol=1e-13)


def test_no_client_steps_between_two_parts_of_an_evaluation(monkeypatch):
    """On the real clock, all parts are of the same models."""
    monkeypatch.setattr(server, "PART_BYTES", 8 * 3 * 2)
    training = Training.in_process(make_data(), rate=Rate(0.1))
    asked = training.server.request_all
    begun = threading.Event()

    def request_all(*arguments):
        if not begun.is_set():
            begun.set()
            stepping.start()
            stepping.join(0.05)
        return asked(*arguments)

    batch = np.arange(100)
    stepping = threading.Thread(target=training.train_client, args=("client 1", batch, batch, lambda: 1.0))
    monkeypatch.setattr(training.server, "request_all", request_all)
    found = training.evaluate()
    stepping.join()
    assert found.train_loss == pytest.approx(np.log(2), rel=1e-12)
    assert not found.embeddings.any()
    assert training.server.n_uploads["client 1"] == 1


def test_a_single_test_sample_has_no_r2():
    """There is no variance to explain; the others are there."""
    data = make_data(n_classes=1, n_test=1)
    found = Training.in_process(data, rate=Rate(0.1)).evaluate()
    assert np.isnan(found.test["r2"])
    assert found.test["rmse"] > 0
    assert found.metrics()["test_r2"] is None
    empty = Training.in_process(make_data(n_classes=1, n_test=0), rate=Rate(0.1)).evaluate()
    assert all(np.isnan(value) for value in empty.test.values())


class Sometimes(InProcess):
    """A transport that loses requests to the client `seldom` in random rounds."""

    def __init__(self, clients, is_there):
        super().__init__(clients)
        self.is_there = is_there

    def exchange(self, requests, timeout=None):
        if any(isinstance(request, Embed) for request in requests) and not self.is_there():
            requests = [request for request in requests if request.client != "seldom"]
        return super().exchange(requests, timeout)


@pytest.mark.parametrize("rho", [0.2, 0.6])
def test_of_two_equal_clients_the_one_that_uploads_less_often_is_worth_less(rho):
    """Proposition 3: with probability rho of uploading, mean parameters are 1 : rho, and values differ by the bound.

    The bound is half of the paper's: its proof takes twice the difference of utilities, where the Shapley values of two
    players differ by that difference once; at rho = 0.2 the paper's is not kept.
    """
    n_samples, rng = 40, np.random.default_rng(0)
    # Half the square, on columns that are orthonormal in the mean: strongly convex with mu = 1.
    x = np.linalg.qr(rng.normal(size=(n_samples, 2)))[0] * np.sqrt(n_samples)
    optimum = np.array([1.0, -0.5])
    y = x @ optimum
    parameters, differences = [], []
    for run in range(40):
        draws = np.random.default_rng([1, run])
        server = Server(y, ["often", "seldom"], 1, "squared")
        clients = [Client(name, x, Linear(2, 1), Rate(0.05)) for name in server.clients]
        training = Training(server, Sometimes(clients, lambda draws=draws: draws.random() < rho), n_tries=1)
        everything = np.arange(n_samples)
        recorder = Recorder(None, y, server.clients, "squared")
        for _ in range(200):
            training.train_round(everything)
        for client, embeddings in zip(clients, training.evaluate().embeddings, strict=True):
            recorder.update(client.name, everything, embeddings, time=0.0)
        recorder.stamp(time=1.0)
        parameters.append([client.state()["weights"][:, 0] for client in clients])
        values = value(recorder).values
        differences.append(values[0] - values[1])
    first, second = np.mean(parameters, axis=0)
    np.testing.assert_allclose(first, optimum / (1 + rho), atol=0.02)
    np.testing.assert_allclose(second, optimum * rho / (1 + rho), atol=0.02)
    bound = 0.5 * ((1 - rho) / (1 + rho)) ** 2 * optimum @ optimum
    assert np.mean(differences) >= bound
    assert (np.mean(differences) < 2 * bound) == (rho == 0.2)


class Hostile(InProcess):
    """A transport that replaces some answers of the first client by `spoil(answer)`; None is no answer."""

    def __init__(self, clients, spoil, is_spoilt):
        super().__init__(clients)
        self.spoil, self.is_spoilt = spoil, is_spoilt

    def exchange(self, requests, timeout=None):
        kept = []
        for request in requests:
            (answer,) = super().exchange([request], timeout)
            if request.client == "client 1" and self.is_spoilt(request):
                answer = self.spoil(answer)
            kept += [] if answer is None else [answer]
        return kept


def about(answer):
    return answer.client, answer.round, answer.sequence


def filled(number):
    return lambda answer: type(answer)(*about(answer), np.full_like(answer.embeddings, number))


SPOILT = {
    "NaN": (filled(np.nan), "client 1: embeddings must be finite and below 1e[+]12 in size"),
    "too large": (filled(1e13), "client 1: embeddings must be finite and below 1e[+]12 in size"),
    "of another shape": (lambda a: type(a)(*about(a), a.embeddings[1:]), "client 1: embeddings must be numbers of"),
    "of another kind": (lambda a: Done(*about(a)), "(Embed|Predict) was answered with Done"),
    "a refusal": (lambda a: Refusal(*about(a), "\x1b[2Jno"), "cannot be used: \N{REPLACEMENT CHARACTER}.2Jno$"),
}


def train_hostile(mode, spoil, is_spoilt, **options):
    """Return a training with a hostile client after four rounds, and its records."""
    data = make_data()
    recorder = Recorder(None, data.labels[~data.is_test], data.names)
    made = Training.in_process(data, rate=Rate(0.5), intercept=True, recorder=recorder)
    transport = Hostile(made.transport.clients.values(), spoil, is_spoilt)
    training = Training(made.server, transport, n_tries=1, **options)
    train(training, mode)
    return training, records_of(recorder)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("kind", SPOILT)
def test_an_answer_that_cannot_be_used_is_as_none(mode, kind):
    """The training warns and continues; transcript, model and scores are as if the answer had been lost."""
    spoil, says = SPOILT[kind]

    def is_spoilt(request):
        return request.round == 2 and not isinstance(request, Gradients)

    lost, expected = train_hostile(mode, lambda _: None, is_spoilt)
    with pytest.warns(ClientWarning, match=f"round 2: the answer of client 1 cannot be used: .*{says.split(': ')[-1]}"):
        training, records = train_hostile(mode, spoil, is_spoilt)
    assert records == expected
    np.testing.assert_array_equal(training.server.state()["table"], lost.server.state()["table"])
    for one in (training, lost):
        one.transport.is_spoilt = lambda _: True
    with pytest.warns(ClientWarning, match=says):
        found = training.evaluate()
    assert found.metrics() == lost.evaluate().metrics()
    with pytest.warns(ClientWarning, match=says), pytest.raises(InputError, match="no valid answer from client 1"):
        training.predict(np.arange(3))


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_whoever_trains_decides_what_an_answer_that_cannot_be_used_means(mode):
    """In one process it ends the training, as a divergence or a mistake in the program."""
    seen = []
    is_spoilt = lambda request: isinstance(request, Embed)  # noqa: E731
    train_hostile(mode, filled(np.nan), is_spoilt, on_invalid=lambda request, error: seen.append((request, error)))
    assert {(type(request), request.client, type(error)) for request, error in seen} == {
        (Embed, "client 1", DivergedError)
    }
    data = make_data()
    with pytest.raises(DivergedError, match="embeddings must be finite"), np.errstate(over="ignore"):
        train(Training.in_process(data, rate=Rate(1e14)), mode)
    with pytest.raises(InputError, match="samples must be from 0 to 119; received 120 to 120"):
        Training.in_process(data, rate=Rate(0.5)).train_round(np.array([120]))


def test_what_the_recorder_refuses_is_no_clients_fault():
    """It ends the training, as with a closed recorder."""
    data = make_data()
    for mode in ("synchronous", "asynchronous"):
        recorder = Recorder(None, data.labels[~data.is_test], data.names)
        made = Training.in_process(data, rate=Rate(0.5), recorder=recorder)
        recorder.close()
        with pytest.raises(InputError, match="the recorder is closed"):
            train(Training(made.server, made.transport), mode)


def test_nothing_to_train_on():
    """Holding out all samples is refused."""
    data = make_data(n_test=120)
    with pytest.raises(InputError, match="no samples to train on"):
        Training.in_process(data, rate=Rate(0.1))
