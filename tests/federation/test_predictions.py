import os

import numpy as np
import pytest
from scipy.special import expit, softmax

from tests.federation.test_crossing import FIELDS, Spy, assert_plain
from tests.federation.textbook import make_data, weights_of
from verfedsv import InputError
from verfedsv.data import ClientData, Preparation
from verfedsv.errors import AnswerError, DivergedError
from verfedsv.federation import Client, InProcess, Linear, Rate, Server, SynchronousSchedule, Training, checkpoints
from verfedsv.federation import synchronous_rounds as rounds_of
from verfedsv.federation.checkpoints import as_bytes
from verfedsv.federation.client_models import ClientModel
from verfedsv.federation.messages import Embed, Embeddings, Gradients, Predict, Prediction, Refusal
from verfedsv.federation.predictions import Predictor, predict_rows

N_ROUNDS = 6


def train(folder, *, evaluate=True, **options):
    """Train on random data and save; return the training and its data."""
    data = make_data(**options)
    training = Training.in_process(data, rate=Rate(0.5), intercept=True, checkpoints=folder)
    for _ in rounds_of(training, SynchronousSchedule(30, N_ROUNDS)):
        pass
    if evaluate:
        training.evaluate()
    training.save({})
    return training, data


def new_rows(data, n_rows=7, seed=5):
    """Return new rows of all clients, by name."""
    rng = np.random.default_rng(seed)
    return {client.name: ClientData(client.name, rng.normal(size=(n_rows, 4))) for client in data.clients}


def clients_with(folder, rows):
    """Return the client sides that have new rows, from their checkpoints."""
    models = [ClientModel.read(folder / f"client-{int(name[-1]) - 1}-{N_ROUNDS}.npz", name) for name in rows]
    return [Client.of_new_rows(model, rows[model.name]) for model in models]


@pytest.mark.parametrize(("n_classes", "sparse"), [(2, False), (4, True)])
def test_predictions_are_those_of_plain_numpy(tmp_path, n_classes, sparse):
    """Features times weights, summed with the intercept, and their probabilities; absent rows count with means."""
    training, data = train(tmp_path, n_classes=n_classes, sparse=sparse)
    rows = new_rows(data)
    del rows["client 2"]
    rows["client 3"] = rows["client 3"].take(np.array([4, 0]))
    which = {"client 1": np.arange(7), "client 3": np.array([2, 5])}
    predictor = Predictor.read(tmp_path / "server.npz")
    found = predict_rows(predictor, InProcess(clients_with(tmp_path, rows)), which, 7)
    weights = np.split(weights_of(training), 3)
    known = [
        client.numeric.toarray()[~data.is_test] if sparse else client.numeric[~data.is_test] for client in data.clients
    ]
    means = [x.mean(axis=0) @ w for x, w in zip(known, weights, strict=True)]
    third = np.tile(means[2], (7, 1))
    third[[2, 5]] = rows["client 3"].numeric @ weights[2]
    total = rows["client 1"].numeric @ weights[0] + means[1] + third + training.server.state()["intercept"]
    np.testing.assert_allclose(found.scores, total, atol=1e-12)
    expected = softmax(total, axis=1) if n_classes > 2 else np.hstack([expit(-total), expit(total)])
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-14)
    assert found.classes == tuple(map(str, range(n_classes)))
    assert found.values == [str(number) for number in expected.argmax(axis=1)]


def test_only_embeddings_cross(tmp_path):
    """A request without content for each client that has rows, and embeddings of these rows."""
    training, data = train(tmp_path)
    rows = new_rows(data)
    transport = Spy(clients_with(tmp_path, rows))
    which = dict.fromkeys(rows, np.arange(7))
    predict_rows(Predictor.read(tmp_path / "server.npz"), transport, which, 7)
    assert [type(message) for message in transport.crossed] == [Predict, Prediction] * 3
    weights = np.split(weights_of(training), 3)
    for request, answer in zip(transport.crossed[::2], transport.crossed[1::2], strict=True):
        assert request.samples is None
        for message in (request, answer):
            assert not hasattr(message, "__dict__")
            assert {*message.__dataclass_fields__} == {"client", "round", "sequence", *FIELDS[type(message)]}
        assert_plain(answer.embeddings, np.float64)
        expected = rows[answer.client].numeric @ weights[int(answer.client[-1]) - 1]
        np.testing.assert_allclose(answer.embeddings, expected, atol=1e-12)


def test_without_an_evaluation_means_are_those_of_the_uploads(tmp_path):
    """Of what the server received last for each training sample, without those that were never uploaded."""
    training, _ = train(tmp_path, evaluate=False)
    predictor = Predictor.read(tmp_path / "server.npz")
    for mean, own in zip(predictor.means.values(), training.server.state()["table"], strict=True):
        is_uploaded = (own != 0).all(axis=1)
        assert 0 < is_uploaded.sum() < len(own)
        np.testing.assert_allclose(mean, own[is_uploaded].mean(axis=0), atol=1e-15)


def test_means_are_restored(tmp_path):
    """A continued training has them before its first evaluation."""
    training, data = train(tmp_path)
    again = Training.in_process(data, rate=Rate(0.5), intercept=True, checkpoints=tmp_path)
    again.restore({})
    np.testing.assert_array_equal(again.server.state()["means"], training.server.state()["means"])
    assert training.server.state()["means"].any()


def test_squared_loss_predicts_numbers(tmp_path):
    """The score itself; there are no classes and no probabilities."""
    server = Server([1.5, -2.0, 4.0], ["a", "b"], 1, "squared", checkpoint=tmp_path / "server.npz")
    server.begin_round(np.arange(3))
    for name, size in (("a", 1.0), ("b", 2.0)):
        request = server._asked[name]
        server.receive(Embeddings(name, 1, request.sequence, np.full((3, 1), size)))
    server.end_round()
    server.save({})
    predictor = Predictor.read(tmp_path / "server.npz")
    found = predictor.predict({"a": np.array([[5.0], [-7.0]])}, {"a": np.array([0, 2])}, 3)
    assert found.values == [7.0, 3.0, -5.0]
    assert found.classes is found.probabilities is None
    forge(tmp_path / "server.npz", label_scale=np.array([10.0, 2.0]))
    found = Predictor.read(tmp_path / "server.npz").predict({}, {}, 1)
    assert found.values == [16.0]


def test_checkpoints_of_clients_that_left(tmp_path):
    """They are of the round in which each of them was last saved."""
    train(tmp_path)
    assert {*Predictor.read(tmp_path / "server.npz").rounds.values()} == {N_ROUNDS}
    forge(tmp_path / "server.npz", saved=np.array([7, 4, 0]))
    assert [*Predictor.read(tmp_path / "server.npz").rounds.values()] == [6, 3, -1]


class Answering(InProcess):
    """A transport to clients that answer what a test wants."""

    def __init__(self, answer):
        self.answer, self.n_asked = answer, 0

    def exchange(self, requests, timeout=None):  # noqa: ARG002
        self.n_asked += 1
        return [self.answer(request) for request in requests if self.answer(request) is not None]


@pytest.mark.parametrize(
    ("answer", "error", "says"),
    [
        (lambda r: Prediction(r.client, r.round, r.sequence, np.zeros((6, 1))), AnswerError, r"shape \(7, 1\)"),
        (
            lambda r: Prediction(r.client, r.round, r.sequence, np.full((7, 1), np.nan)),
            DivergedError,
            "client 1: embed",
        ),
        (lambda r: Refusal(r.client, r.round, r.sequence, "not today"), AnswerError, "not today"),
        (lambda r: None, InputError, "no prediction: no valid answer from client 1"),  # noqa: ARG005
    ],
)
def test_answers_that_cannot_be_used(tmp_path, answer, error, says):
    """They end in an error; what is not answered is asked three times."""
    train(tmp_path)
    transport = Answering(answer)
    with pytest.raises(error, match=says):
        predict_rows(Predictor.read(tmp_path / "server.npz"), transport, {"client 1": np.arange(7)}, 7)
    assert transport.n_asked == (3 if error is InputError else 1)


def test_a_client_with_new_rows_does_not_learn(tmp_path):
    """Its model is finished."""
    _, data = train(tmp_path)
    client = clients_with(tmp_path, {"client 1": new_rows(data)["client 1"]})[0]
    client.answer(Embed("client 1", 1, 1, np.arange(3)))
    refusal = client.answer(Gradients("client 1", 1, 2, np.arange(3), np.ones((3, 1))))
    assert "which does not learn any more" in refusal.reason


class Doubling(Linear):
    """A model that this package does not know."""


def test_a_model_of_ones_own_is_not_taken_out(tmp_path):
    """Only the program that built it can; the error says so."""
    data = make_data()
    training = Training.in_process(data, rate=Rate(0.5), model=Doubling, checkpoints=tmp_path)
    training.save({})
    with pytest.raises(
        InputError, match=r"the model of 'client 1' is a Doubling, which only the program that built it"
    ):
        ClientModel.read(tmp_path / "client-0-0.npz", "client 1")


def test_a_client_without_preparation_has_no_model_to_take_out(tmp_path):
    """One that was given its features, rather than columns."""
    client = Client("bank", np.eye(3), Linear(3, 1), Rate(0.5), checkpoint=tmp_path / "bank")
    client._save(0, -1)
    with pytest.raises(InputError, match="is not a checkpoint of 'bank' with a model and its columns"):
        ClientModel.read(tmp_path / "bank-0.npz", "bank")


def forge(path, **changes):
    """Change arrays of a checkpoint; None removes one."""
    with np.load(path) as arrays:
        content = {**arrays, **changes}
    np.savez(path, **{name: value for name, value in content.items() if value is not None})


SERVER = {
    "clients": ["client 1", "client 2", "client 3"],
    "widths": [1, 1, 1],
    "loss": "logistic",
    "classes": None,
    "head": None,
}


@pytest.mark.parametrize(
    "changes",
    [
        {"about": None},
        {"means": None},
        {"intercept": None},
        {"about": np.frombuffer(b"{", np.uint8)},
        {"about": as_bytes([])},
        {"about": as_bytes({**SERVER, "loss": "hinge"})},
        {"about": as_bytes({**SERVER, "classes": ["a"]})},
        {"about": as_bytes({**SERVER, "clients": ["a"]})},
        {"about": as_bytes({**SERVER, "widths": [1, 1, 2]})},
        {"about": as_bytes({**SERVER, "widths": None})},
        {"about": as_bytes({**SERVER, "head": {"layers": ["ReLU"], "widths": []}})},
        {"about": as_bytes({**SERVER, "head": {"layers": ["Linear", 3, 1, True], "widths": [["client 1", 3]]}})},
        {"means": np.zeros(2)},
        {"means": np.full(3, np.inf)},
        {"means": np.array(["a", "b", "c"])},
        {"n_records": np.zeros(2)},
    ],
)
def test_a_damaged_checkpoint_of_the_server(tmp_path, changes):
    """It is named, with what to do."""
    train(tmp_path)
    path = tmp_path / "server.npz"
    forge(path, about=as_bytes(SERVER))
    Predictor.read(path)
    forge(path, **changes)
    with pytest.raises(InputError, match=rf"{path}.* another version"):
        Predictor.read(path)


def test_a_checkpoint_that_is_a_pipe_is_not_waited_for(tmp_path):
    """Neither that of the server nor that of a client, whether it is for predictions or to continue a training."""
    training, _ = train(tmp_path)
    for name in ("server.npz", f"client-0-{N_ROUNDS}.npz"):
        (tmp_path / name).unlink()
        os.mkfifo(tmp_path / name)
    says = "it is not a regular file"
    with pytest.raises(InputError, match=says):
        Predictor.read(tmp_path / "server.npz")
    with pytest.raises(InputError, match=says):
        ClientModel.read(tmp_path / f"client-0-{N_ROUNDS}.npz", "client 1")
    with pytest.raises(InputError, match=says):
        training.restore({})


def test_a_checkpoint_of_any_size_is_not_read(tmp_path, monkeypatch):
    """Its arrays have a limit, as a file may be sparse; the server's table is not read, and may be large."""
    train(tmp_path)
    path = tmp_path / "server.npz"
    forge(path, about=as_bytes(SERVER), table=np.zeros(10**5), torch=np.zeros(10**5, np.uint8))
    monkeypatch.setattr(checkpoints, "_MOST_BYTES", 10**4)
    Predictor.read(path)
    forge(path, odd=np.zeros(10**5))
    with pytest.raises(InputError, match="bytes, and at most 10,000 are read"):
        Predictor.read(path)


HEAD = {"layers": ["Linear", 3, 1, True], "widths": [["client 1", 1], ["client 2", 1], ["client 3", 1]]}
PARAMETERS = {"head.weight": np.ones((1, 3)), "head.bias": np.zeros(1)}


@pytest.mark.parametrize(
    ("about", "changes", "says"),
    [
        ({"widths": [1, 1, -1]}, {"means": np.zeros(1)}, "the width of 'client 3' must be at least 1; received -1"),
        ({"widths": [1, 1, 0]}, {"means": np.zeros(2)}, "the width of 'client 3' must be at least 1; received 0"),
        ({"widths": [1, 1, 1.0]}, {}, "the width of 'client 3' must be a whole number; received 1.0"),
        ({"widths": [1, 1]}, {}, "there must be a width for each of the 3 clients"),
        ({"widths": [1, 1, 2]}, {"means": np.zeros(4)}, "have different widths, and are to be summed"),
        ({"clients": ["a", "a", "b"]}, {}, "the names of the clients must be different texts"),
        ({"clients": [1, 2, 3]}, {}, "the names of the clients must be different texts"),
        ({"clients": [], "widths": []}, {"means": np.zeros(0)}, "the names of the clients .* at least one"),
        ({"classes": ["a", "a"]}, {}, "the names of the classes must be different texts"),
        ({"classes": "ab"}, {}, "the names of the classes must be different texts"),
        ({"classes": ["a", "b", "c"]}, {}, "3 classes have names, and the loss has 2"),
        ({"loss": "squared", "classes": ["a", "b"]}, {}, "loss 'squared' has no classes, and 2 have names"),
        ({}, {"means": np.zeros(3, complex)}, "means is complex128, and neither real numbers nor text"),
        ({}, {"means": np.full(3, 1e308)}, r"means must be finite and below 1e\+12 in size"),
        (
            {"head": HEAD},
            {
                **PARAMETERS,
                "head.bias": np.full(1, 1e308),
                "head.weight": np.full((1, 3), 1e308),
                "means": np.full(3, 1e9),
            },
            "the scores of the mean embeddings are not finite",
        ),
        ({}, {"means": np.zeros(3, np.int64)}, r"means must be real numbers of shape \(3,\), and is int64 of \(3,\)"),
        ({}, {"intercept": np.zeros((1, 1))}, r"intercept must be real numbers of shape \(1,\)"),
        ({}, {"label_scale": np.array([0.0, -1.0])}, "label_scale cannot be 0 and -1 under loss 'logistic'"),
        ({}, {"label_scale": np.array([5.0, 1.0])}, "label_scale cannot be 5 and 1 under loss 'logistic'"),
        ({"loss": "squared"}, {"label_scale": np.zeros(2)}, "label_scale cannot be 0 and 0 under loss 'squared'"),
        ({}, {"n_rounds": np.array(1.5)}, r"n_rounds must be whole numbers of shape \(\), and is float64"),
        ({}, {"saved": np.zeros(2, int)}, r"saved must be whole numbers of shape \(3,\)"),
        ({}, {"n_steps": None}, "it has no 'n_steps'"),
        ({"head": []}, {}, "the head has no 'widths'"),
        (
            {"head": {**HEAD, "widths": [*HEAD["widths"], ["client 4", 2**30]]}},
            PARAMETERS,
            "the head takes embeddings of other clients or widths than there are",
        ),
        ({"head": {**HEAD, "widths": [["client 1", 3]] * 3}}, PARAMETERS, "of other clients or widths than there are"),
        (
            {"head": {**HEAD, "layers": ["Linear", 4, 1, True]}},
            {**PARAMETERS, "head.weight": np.ones((1, 4))},
            "the layers of the head do not take 3 numbers per sample",
        ),
        ({"head": HEAD}, {**PARAMETERS, "head.bias": np.zeros(1, complex)}, "head.bias is complex128"),
    ],
)
def test_nonsense_in_a_checkpoint_of_the_server(tmp_path, about, changes, says):
    """It is refused before anything is built, with what is wrong."""
    if about.get("head"):
        pytest.importorskip("torch")
    train(tmp_path)
    path = tmp_path / "server.npz"
    forge(path, about=as_bytes({**SERVER, **about}), **changes)
    with pytest.raises(InputError, match=says) as caught:
        Predictor.read(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("missing", ["clients", "widths", "loss", "classes", "head"])
def test_a_description_without_a_part(tmp_path, missing):
    """The error says which part the description lacks."""
    train(tmp_path)
    forge(tmp_path / "server.npz", about=as_bytes({name: part for name, part in SERVER.items() if name != missing}))
    with pytest.raises(InputError, match=rf"\(its description has no '{missing}'\)"):
        Predictor.read(tmp_path / "server.npz")


def test_a_head_of_large_parameters(tmp_path):
    """Scores that overflow are an error, not predictions."""
    pytest.importorskip("torch")
    train(tmp_path)
    parameters = {**PARAMETERS, "head.weight": np.full((1, 3), 1e300)}
    forge(tmp_path / "server.npz", about=as_bytes({**SERVER, "head": HEAD}), means=np.zeros(3), **parameters)
    predictor = Predictor.read(tmp_path / "server.npz")
    with pytest.raises(DivergedError, match="the scores of some rows are not finite"):
        predictor.predict({"client 1": np.full((1, 1), 1e11)}, {"client 1": np.arange(1)}, 1)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"weights": np.zeros((4, 0))}, r"weights is empty, of shape \(4, 0\)"),
        ({"weights": np.full((4, 1), 1e308)}, r"weights must be finite and below 1e\+12 in size: training diverged"),
        ({"weights": np.zeros((4, 1), complex)}, "weights is complex128"),
        ({"weights": np.zeros(4)}, "the weights do not fit the columns"),
        ({"divisor": np.zeros(4)}, "the preparation of columns is damaged"),
        ({"divisor": np.full(4, np.nan)}, "divisor has numbers that are not finite"),
        ({"about": as_bytes({"client": "client 1"})}, "its description has no 'model'"),
        ({"about": as_bytes([])}, "its description has no 'client'"),
        ({"round": None}, "it has no 'round'"),
        ({"round": np.zeros(2)}, r"round must be whole numbers of shape \(\)"),
        ({"is_sparse": None}, "it has no 'is_sparse'"),
    ],
)
def test_nonsense_in_a_checkpoint_of_a_client(tmp_path, changes, says):
    """It is refused, with what is wrong."""
    train(tmp_path)
    path = tmp_path / f"client-0-{N_ROUNDS}.npz"
    forge(path, **changes)
    with pytest.raises(InputError, match=says):
        ClientModel.read(path, "client 1")


@pytest.mark.parametrize(
    "changes",
    [
        {"about": None},
        {"columns": None},
        {"weights": None},
        {"round": None},
        {"about": as_bytes({"client": "client 2", "model": "linear"})},
        {"about": as_bytes({"client": "client 1", "model": "perceptron"})},
        {"about": as_bytes(["client 1"])},
        {"weights": np.zeros((5, 1))},
        {"weights": np.zeros(4)},
        {"weights": np.zeros((4, 1), np.float32)},
        {"weights": np.full((4, 1), np.nan)},
        {"weights": np.zeros((4, 1), object)},
        {"centre": np.zeros(3)},
        {"centre": np.full(4, np.inf)},
    ],
)
def test_a_damaged_checkpoint_of_a_client(tmp_path, changes):
    """It is named, with what to do."""
    train(tmp_path)
    path = tmp_path / f"client-0-{N_ROUNDS}.npz"
    ClientModel.read(path, "client 1")
    forge(path, **changes)
    with pytest.raises(InputError, match=rf"{path}.* another version"):
        ClientModel.read(path, "client 1")


def test_columns_that_became_constant(tmp_path):
    """Their divisor is infinite, and a checkpoint keeps it; no other array may have such numbers."""
    numeric = np.column_stack([np.full(20, 3.0), np.arange(20.0)])
    data = make_data(n_clients=1, n_samples=20, n_test=4)
    data = type(data)((ClientData("a", numeric, None, ("x", "y")),), data.labels, 2, data.is_test)
    for _ in range(2):
        training = Training.in_process(data, rate=Rate(0.5), scale="standardise", checkpoints=tmp_path)
        kept = training.restore({})
        training.save({})
    assert kept is not None
    model = ClientModel.read(tmp_path / "client-0-0.npz", "a")
    assert model.preparation.divisor[0] == np.inf
    assert isinstance(model.preparation, Preparation)
    assert model.embed(ClientData("a", np.array([[9.0, 1.0]]), None, ("x", "y"))).shape == (1, 1)
