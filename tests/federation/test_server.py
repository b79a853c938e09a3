import gc
from types import FunctionType, ModuleType
from unittest.mock import Mock

import numpy as np
import pytest

from tests.federation.textbook import clients_of, make_data, records_of, slope
from verfedsv import InputError, Recorder, TranscriptError
from verfedsv.errors import AnswerError, DivergedError
from verfedsv.federation import (
    Client,
    InProcess,
    Linear,
    Rate,
    Server,
    SynchronousSchedule,
    Training,
    synchronous_rounds,
)
from verfedsv.federation.messages import Embeddings, Gradients, Prediction

LABELS = np.array([0, 1, 1, 0, 1, 0])
FIRST, SECOND = np.array([0, 1, 2]), np.array([3, 4, 5])
EMBEDDINGS = np.random.default_rng(0).normal(size=(4, 3, 1))


def make_server(**options):
    """Return a server of two clients and six samples, and its recorder."""
    server, recorder = Server(LABELS, ["a", "b"], 1, **options), Recorder(None, LABELS, ["a", "b"])
    server.record(recorder)
    return server, recorder


def answer(request, uploaded, **changes):
    """Return the upload that answers a request, with some fields changed."""
    about = {"client": request.client, "round": request.round, "sequence": request.sequence}
    return Embeddings(**{**about, "embeddings": uploaded, **changes})


def play_round(server, batch, uploads):
    """Play a synchronous round with the uploads of some clients, by their names."""
    requests = {request.client: request for request in server.begin_round(batch)}
    for name, embeddings in uploads.items():
        server.receive(answer(requests[name], embeddings))
    return {gradients.client: gradients for gradients in server.end_round()}


def test_no_side_can_reach_the_other():
    """Nothing that a server holds leads to a client, and nothing that a client holds to another party."""
    training = Training.in_process(make_data(), rate=Rate(0.5), intercept=True)
    for _ in synchronous_rounds(training, SynchronousSchedule(30, 3)):
        training.evaluate()
    sides = [training.server, *clients_of(training)]
    for side in sides:
        others = {id(other) for other in sides if other is not side}
        assert not others & reachable(side)
    assert {id(side) for side in sides} <= reachable(training)


def reachable(start):
    """Return the ids of all objects reachable from one, except code: modules, classes, functions."""
    seen, left = set(), [start]
    while left:
        item = left.pop()
        if id(item) in seen or isinstance(item, type | ModuleType | FunctionType):
            continue
        seen.add(id(item))
        left += gc.get_referents(item)
    return seen


def test_a_round_is_recorded_and_answered_with_gradients():
    """Gradients of the loss by the sum of the embeddings, the same read-only array for all clients."""
    server, recorder = make_server()
    gradients = play_round(server, FIRST, {"a": EMBEDDINGS[0], "b": EMBEDDINGS[1]})
    for found in gradients.values():
        assert found.samples is None  # those of the upload
        np.testing.assert_allclose(found.values, slope(EMBEDDINGS[:2].sum(axis=0), LABELS[FIRST]), atol=1e-12)
        with pytest.raises(ValueError, match="read-only"):
            found.values[:] *= 2
    assert [record[0] for record in records_of(recorder)] == ["Upload", "Upload", "Stamp"]
    assert (server.n_rounds, server.tape.n_records, server.n_uploads) == (1, 1, {"a": 1, "b": 1})


def test_a_repeated_upload_is_neither_applied_nor_recorded_twice():
    """In both modes; it gets the same answer, even with other numbers."""
    server, recorder = make_server(intercept=Rate(0.5))
    request = server.request("a", FIRST)
    first = server.receive(answer(request, EMBEDDINGS[0]), now=lambda: 1.0)
    before = server.state()
    for again in (EMBEDDINGS[0], EMBEDDINGS[1]):
        assert server.receive(answer(request, again), now=lambda: 2.0) is first
    assert_same(server.state(), before)
    assert recorder.transcript.n_records == 1
    server, recorder = make_server(intercept=Rate(0.5))
    requests = server.begin_round(FIRST)
    for request, embeddings in zip(requests, EMBEDDINGS, strict=False):
        assert server.receive(answer(request, embeddings)) is None
        assert server.receive(answer(request, embeddings + 1)) is None
    gradients = server.end_round()
    before = server.state()
    assert server.receive(answer(requests[1], EMBEDDINGS[1])) is gradients[1]
    assert_same(server.state(), before)
    np.testing.assert_array_equal(server.state()["table"][:, FIRST], EMBEDDINGS[:2])


def assert_same(state, other):
    for name, value in other.items():
        np.testing.assert_array_equal(state[name], value)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"client": "c"}, "unknown client 'c'; those that take part are a, b"),
        ({"client": "b"}, "b answered message 1 of round 1, but was not asked for anything"),
        ({"round": 2}, "answered message 1 of round 2, but the open request is message 1 of round 1"),
        ({"sequence": 7}, "answered message 7 of round 1, but the open request is message 1 of round 1"),
        ({"embeddings": np.zeros((2, 1))}, r"embeddings must be numbers of shape \(3, 1\); received float64 \(2, 1\)"),
        ({"embeddings": np.zeros((3, 2))}, r"of shape \(3, 1\); received float64 \(3, 2\)"),
        ({"embeddings": np.zeros(3)}, r"of shape \(3, 1\); received float64 \(3,\)"),
        ({"embeddings": np.zeros((3, 1), complex)}, r"received complex128"),
        ({"embeddings": np.array([[0.0], [np.nan], [0.0]])}, "a: embeddings must be finite"),
        ({"embeddings": np.array([[0.0], [np.inf], [0.0]])}, "a: embeddings must be finite"),
        ({"embeddings": [[0.0]] * 3}, "received <class 'list'>"),
    ],
)
@pytest.mark.parametrize("now", [None, lambda: 1.0])
def test_an_upload_that_was_not_asked_for_is_refused(changes, says, now):
    """An unknown client, another round, shape or message, or no numbers; the right upload is still accepted."""
    server, recorder = make_server(intercept=Rate(0.5))
    request, before = server.request("a", FIRST), server.state()
    with pytest.raises(InputError, match=says):
        server.receive(answer(request, EMBEDDINGS[0], **changes), now=now)
    assert_same(server.state(), before)
    assert recorder.transcript.n_records == 0
    server.receive(answer(request, EMBEDDINGS[0]), now=now)
    if now is None:
        server.end_round()
    np.testing.assert_array_equal(server.state()["table"][0, FIRST], EMBEDDINGS[0])


def test_an_upload_of_the_last_round_is_refused():
    """It is late: the round ended without it, the table is unchanged, and clients may join."""
    server, recorder = make_server()
    late = {request.client: request for request in server.begin_round(FIRST)}["b"]
    server.receive(answer(next(iter(server._asked.values())), EMBEDDINGS[0]))
    server.end_round()
    with pytest.raises(AnswerError, match="b answered message 2 of round 1, but was not asked for anything"):
        server.receive(answer(late, EMBEDDINGS[1]))
    server.join("c")
    server.begin_round(SECOND)
    with pytest.raises(AnswerError, match=r"b answered message 2 of .*, but the open request is message 5 of round 2"):
        server.receive(answer(late, EMBEDDINGS[1]))
    assert not server.state()["table"][1].any()
    assert recorder.n_rounds == 1


def test_a_round_that_is_not_recorded_does_not_count(monkeypatch):
    """If the disk is full, the table is unchanged, and the round can be ended again."""
    server, recorder = make_server()
    play_round(server, FIRST, {"a": EMBEDDINGS[0], "b": EMBEDDINGS[1]})
    before = server.state()
    for request, embeddings in zip(server.begin_round(FIRST), EMBEDDINGS[2:], strict=True):
        server.receive(answer(request, embeddings))
    with monkeypatch.context() as patch:
        patch.setattr(recorder, "log", Mock(side_effect=OSError("disk full")))
        with pytest.raises(OSError, match="disk full"):
            server.end_round()
    assert_same(server.state(), before)
    server.end_round()
    assert (recorder.n_rounds, server.tape.n_records) == (2, 2)
    np.testing.assert_array_equal(server.state()["table"][:, FIRST], EMBEDDINGS[2:])


@pytest.mark.parametrize("now", [None, lambda: 1.0])
def test_no_client_decides_the_precision_of_the_others(now):
    """Uploads in single precision are recorded in double, and others can still upload."""
    server, recorder = make_server()
    for name, number in (("a", np.float32), ("b", np.float64)):
        server.receive(answer(server.request(name, FIRST), EMBEDDINGS[0].astype(number)), now=now)
        if now is None:
            server.end_round()
    assert recorder.transcript.description.precision == "float64"


def test_a_round_continues_without_an_absent_client():
    """It keeps its embeddings, is recorded as absent, and gets no gradients."""
    server, recorder = make_server()
    play_round(server, np.arange(6), {"a": np.ones((6, 1)), "b": np.full((6, 1), 2.0)})
    gradients = play_round(server, FIRST, {"b": EMBEDDINGS[0]})
    assert set(gradients) == {"b"}
    np.testing.assert_allclose(gradients["b"].values, slope(1 + EMBEDDINGS[0], LABELS[FIRST]), atol=1e-12)
    uploads = [dict(record[1:])["client"] for record in records_of(recorder) if record[0] == "Upload"]
    assert uploads == ["a", "b", "b"]
    assert [dict(record[1:])["absent"] for record in records_of(recorder) if record[0] == "Stamp"] == [(), ("a",)]
    assert server.n_uploads == {"a": 1, "b": 2}
    with pytest.raises(InputError, match="no client uploaded anything in round 3"):
        play_round(server, FIRST, {})


class Deaf(InProcess):
    """A transport that cannot reach some of its clients at times."""

    def __init__(self, clients):
        super().__init__(clients)
        self.unreachable = set()

    def exchange(self, requests, timeout=None):
        return super().exchange([request for request in requests if request.client not in self.unreachable], timeout)


def make_deaf(**options):
    """Return a training with clients a and b, over a transport that may not reach them."""
    x = np.random.default_rng(1).normal(size=(6, 2))
    clients = [Client(name, x, Linear(2, 1), Rate(0.5)) for name in "ab"]
    server, recorder = make_server(**options)
    return Training(server, Deaf(clients), timeout=0.1), recorder


def test_a_training_continues_without_a_client_that_does_not_answer():
    """It continues with the client once that is back; evaluation uses the embeddings that the server has."""
    training, recorder = make_deaf()
    training.train_round(np.arange(6))
    training.transport.unreachable = {"a"}
    for _ in range(2):
        training.train_round(FIRST)
    np.testing.assert_array_equal(training.evaluate().embeddings[0], np.zeros((6, 1)))
    with pytest.raises(InputError, match="no prediction: no valid answer from a"):
        training.predict(FIRST)
    training.transport.unreachable = set()
    training.train_round(FIRST)
    assert [int(client.state()["n_steps"]) for client in clients_of(training)] == [2, 4]
    assert recorder.n_rounds == 4
    assert training.server.n_uploads == {"a": 2, "b": 4}


def test_a_step_that_nobody_confirmed_does_not_stop_a_training():
    """The next round shows what the client has learned."""
    training, _ = make_deaf()
    receive = training.server.end_round

    def lose(*arguments):
        answers = receive(*arguments)
        training.transport.unreachable = {"a", "b"}
        return answers

    training.server.end_round = lose
    training.train_round(FIRST)
    training.transport.unreachable = set()
    training.train_round(FIRST)
    assert training.server.n_rounds == 2


def test_a_checkpoint_that_a_client_did_not_write_does_not_count(tmp_path):
    """The server keeps the previous one."""
    training, _ = make_deaf(checkpoint=tmp_path / "server.npz")
    training.transport.unreachable = {"a", "b"}
    training.save({})
    assert training.server.saved_round == -1
    assert not (tmp_path / "server.npz").exists()


def test_clients_join_and_leave_between_rounds():
    """A new client has zeros before, one that left keeps its last embeddings; both are in the sum."""
    server, recorder = make_server()
    play_round(server, FIRST, {"a": EMBEDDINGS[0], "b": EMBEDDINGS[1]})
    server.join("c")
    server.leave("a")
    assert (server.clients, server.present) == (("a", "b", "c"), ("b", "c"))
    gradients = play_round(server, FIRST, {"b": EMBEDDINGS[2], "c": EMBEDDINGS[3]})
    total = EMBEDDINGS[0] + EMBEDDINGS[2] + EMBEDDINGS[3]
    np.testing.assert_allclose(gradients["c"].values, slope(total, LABELS[FIRST]), atol=1e-12)
    assert server.n_uploads == {"a": 1, "b": 2, "c": 1}
    server.join("a")
    kinds = [record[0] for record in records_of(recorder)]
    assert kinds == ["Upload", "Upload", "Stamp", "Join", "Leave", "Upload", "Upload", "Stamp", "Join"]
    assert (server.tape.n_records, recorder.transcript.n_records) == (5, 5)
    assert {request.client for request in server.begin_round(FIRST)} == {"a", "b", "c"}
    server.receive(answer(server._asked["a"], EMBEDDINGS[0]))
    for change in (lambda: server.leave("b"), lambda: server.join("d")):
        with pytest.raises(InputError, match="clients join and leave between rounds"):
            change()


def test_an_upload_of_a_client_that_left_is_no_answer():
    """It was requested before the client left: an invalid answer, not an error of the server."""
    server, _ = make_server()
    request = server.request("a", FIRST)
    server.leave("a")
    with pytest.raises(AnswerError, match=r"a answered .*, but was not asked for anything"):
        server.receive(answer(request, EMBEDDINGS[0]), now=lambda: 1.0)
    assert server.n_uploads["a"] == 0


def test_predictions_and_evaluation_count_who_left_alike():
    """With its last embeddings of training samples, and zero for test samples."""
    x = np.random.default_rng(1).normal(size=(6, 2))
    clients = [Client(name, x, Linear(2, 1), Rate(0.5)) for name in "ab"]
    training = Training(Server(LABELS, ["a", "b"], 1, n_train=4), InProcess(clients))
    own = np.zeros((6, 1))
    for batch in (np.arange(3), np.arange(3), np.arange(2)):
        own[batch] = x[batch] @ clients[0].state()["weights"]
        training.train_round(batch)
    training.server.leave("a")
    training.train_round(np.arange(3))
    scores = own + x @ clients[1].state()["weights"]
    some = np.array([5, 2, 0, 3])
    np.testing.assert_allclose(training.predict(some), scores[some], atol=1e-12)
    found = training.evaluate()
    signs = np.where(LABELS, 1, -1)
    losses = np.log1p(np.exp(-signs * scores[:, 0]))
    np.testing.assert_allclose([found.train_loss, found.test_loss], [losses[:4].mean(), losses[4:].mean()], rtol=1e-12)


def test_an_intercept_that_is_too_large_is_divergence():
    """Like embeddings, even if nothing is recorded; the round does not count."""
    server = Server(LABELS, ["a", "b"], 1, intercept=Rate(1e13))
    uploads = {"a": EMBEDDINGS[0], "b": EMBEDDINGS[1]}
    play_round(server, FIRST, uploads)
    with pytest.raises(DivergedError, match="the intercept must be finite and below 1e"):
        play_round(server, FIRST, uploads)
    assert server.n_rounds == 1
    with pytest.raises(DivergedError, match="a: embeddings must be finite and below 1e"):
        play_round(server, FIRST, {"a": np.full((3, 1), 1e12)})


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_divergence_of_the_intercept_names_whose_embeddings_are_largest(mode):
    """An upload just below the limit is valid but drives the intercept out of range; no more is recorded."""
    server = Server(np.zeros(6), ["a", "b"], 1, "squared", intercept=Rate(3.0))
    recorder = Recorder(None, np.zeros(6), ["a", "b"], "squared")
    server.record(recorder)
    uploads = {"a": EMBEDDINGS[0], "b": np.full((3, 1), 9.9e11)}
    says = r"the intercept must be finite and below 1e\+12 in size; the largest embeddings, 9\.9e\+11, are those of 'b'"
    if mode == "synchronous":
        play_round(server, FIRST, uploads)
        with pytest.raises(DivergedError, match=says):
            play_round(server, FIRST, uploads)
    else:
        for name, embeddings in uploads.items():
            server.receive(answer(server.request(name, FIRST), embeddings), now=lambda: 1.0)
        with pytest.raises(DivergedError, match=says):
            server.stamp(1, lambda: 2.0)
    assert recorder.n_rounds == (mode == "synchronous")


def test_who_joins_or_leaves_is_compared_when_a_training_is_repeated():
    """A difference to the record is an error; before the first record, a client that joins is a founder."""
    recorder = Recorder(None, LABELS, ["a", "b"])

    def repeat(leaving):
        server = Server(LABELS, ["a", "b"], 1)
        server.record(recorder)
        server.join("d")
        play_round(server, FIRST, dict(zip("abd", EMBEDDINGS, strict=False)))
        server.join("c")
        server.leave(leaving)
        assert not server.tape.is_repeating
        return records_of(recorder)

    first = repeat("a")
    assert repeat("a") == first
    assert [record[0] for record in first] == ["Upload"] * 3 + ["Stamp", "Join", "Leave"]
    with pytest.raises(TranscriptError, match="it is the leaving of 'a', not the leaving of 'b'"):
        repeat("b")


def test_who_cannot_join_or_leave():
    """A client that already takes part cannot join, and another cannot leave."""
    server = Server(LABELS, ["a", "b"], 1)
    with pytest.raises(InputError, match="client 'a' takes part already"):
        server.join("a")
    with pytest.raises(InputError, match="unknown client 'c'"):
        server.leave("c")


def test_a_server_continues_with_those_who_take_part():
    """A client that left before the checkpoint is not asked after it."""
    server, other = (Server(LABELS, ["a", "b"], 1) for _ in range(2))
    play_round(server, FIRST, {"a": EMBEDDINGS[0], "b": EMBEDDINGS[1]})
    server.leave("a")
    other.restore(server.state())
    assert other.present == ("b",)
    gradients = [play_round(s, FIRST, {"b": EMBEDDINGS[2]})["b"].values for s in (server, other)]
    np.testing.assert_array_equal(*gradients)


def test_a_server_catches_up_with_who_joined_and_left():
    """It continues like the server that recorded them."""
    server, recorder = make_server()
    play_round(server, FIRST, {"a": EMBEDDINGS[0], "b": EMBEDDINGS[1]})
    server.join("c")
    server.leave("a")
    play_round(server, FIRST, {"b": EMBEDDINGS[2], "c": EMBEDDINGS[3]})
    other = Server(LABELS, ["a", "b"], 1)
    other.record(recorder)
    other.catch_up()
    assert (other.clients, other.present, other.n_rounds) == (("a", "b", "c"), ("b", "c"), 2)
    assert_same(other.state(), server.state())


@pytest.mark.parametrize("is_caught_up", [False, True])
def test_clients_can_join_right_after_a_restore(is_caught_up):
    """At the time of the last record, not before it."""
    server, recorder = make_server()
    before = server.state()
    play_round(server, FIRST, {"a": EMBEDDINGS[0], "b": EMBEDDINGS[1]})
    other = Server(LABELS, ["a", "b"], 1)
    other.restore(before if is_caught_up else server.state())
    other.record(recorder)
    if is_caught_up:
        other.catch_up()
    other.join("c")
    assert [dict(record[1:])["time"] for record in records_of(recorder) if record[0] == "Join"] == [1.0]


def test_a_checkpoint_after_a_join_needs_all_clients(tmp_path):
    """A server of the founders alone says so; one of all clients restores who takes part."""
    server, founders, everybody = (
        Server(LABELS, names, 1, checkpoint=tmp_path / "server.npz") for names in ("ab", "ab", "abc")
    )
    play_round(server, FIRST, {"a": EMBEDDINGS[0], "b": EMBEDDINGS[1]})
    server.join("c")
    server.leave("a")
    server.save({})
    with pytest.raises(InputError, match="or not of these 2 clients: pass all that ever joined to the server"):
        founders.load({})
    assert everybody.load({}) == {}
    assert everybody.present == ("b", "c")


def test_embeddings_of_less_precision_are_summed_in_double_precision():
    """The table is in double precision for any upload."""
    server, _ = make_server()
    rough = EMBEDDINGS.astype(np.float32)
    gradients = play_round(server, FIRST, {"a": rough[0], "b": rough[1]})
    total = rough[:2].astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(gradients["a"].values, slope(total, LABELS[FIRST]), rtol=1e-14)


def test_the_intercept_takes_one_step_in_each_round():
    """For any number of clients."""
    server, _ = make_server(intercept=Rate(0.5))
    for _ in range(2):
        before = server.state()["intercept"]
        gradients = play_round(server, FIRST, {"a": EMBEDDINGS[0], "b": EMBEDDINGS[1]})
        np.testing.assert_allclose(server.state()["intercept"], before - 0.5 * gradients["a"].values.mean(axis=0))


def test_a_restored_server_forgets_what_it_asked():
    """Answers to earlier requests are refused, and the table is that of the state."""
    server = Server(LABELS, ["a", "b"], 1)
    empty = server.state()
    play_round(server, FIRST, {"a": EMBEDDINGS[0], "b": EMBEDDINGS[1]})
    request = server.request("a", FIRST)
    server.restore(empty)
    with pytest.raises(InputError, match=r"a answered .*, but was not asked for anything"):
        server.receive(answer(request, EMBEDDINGS[0]))
    gradients = play_round(server, FIRST, {"a": EMBEDDINGS[2], "b": EMBEDDINGS[3]})
    np.testing.assert_allclose(gradients["a"].values, slope(EMBEDDINGS[2:].sum(axis=0), LABELS[FIRST]), atol=1e-12)


def test_a_state_is_a_snapshot():
    """Further training does not change it, and changing it does not change the training."""

    class Live(Linear):
        def state(self):
            return {"weights": self.weights}

    training = Training.in_process(make_data(), rate=Rate(0.5), model=Live, intercept=True)
    sides = training.server, clients_of(training)[0]
    for n_rounds in synchronous_rounds(training, SynchronousSchedule(30, 6)):
        if n_rounds == 3:
            break
    states = [side.state() for side in sides]
    before = [{name: value.copy() for name, value in state.items()} for state in states]
    for _ in synchronous_rounds(training, SynchronousSchedule(30, 6)):
        pass
    for side, state, expected in zip(sides, states, before, strict=True):
        for name, value in expected.items():
            np.testing.assert_array_equal(state[name], value)
            state[name][...] = 1
        assert not all((value == 1).all() for value in side.state().values())


def test_predictions_of_another_shape_are_refused():
    """So are those that are not finite."""
    server = Server(LABELS, ["a"], 1)
    for samples, n_samples in ((None, 6), (FIRST, 3)):
        with pytest.raises(AnswerError, match=rf"a: embeddings must be numbers of shape \({n_samples}, 1\)"):
            server.embeddings_of(Prediction("a", 0, 1, np.zeros((5, 1))), samples)
    with pytest.raises(DivergedError, match="a: embeddings must be finite"):
        server.embeddings_of(Prediction("a", 0, 1, np.full((6, 1), np.nan)), None)


def test_gradients_may_be_of_a_part_of_what_was_uploaded():
    """As in the first step of an asynchronous client, which uploads all samples and learns from a batch."""
    server, _ = make_server()
    request = server.request("a", np.arange(6))
    found = server.receive(answer(request, np.zeros((6, 1))), SECOND, lambda: 1.0)
    assert isinstance(found, Gradients)
    np.testing.assert_array_equal(found.samples, SECOND)
