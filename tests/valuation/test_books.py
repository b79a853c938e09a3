"""The books balance: the loss falls by what clients and server are credited with, round by round and in all."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.games import LOSSES, mean_loss
from tests.report.valuations import make_valuation
from tests.trainings import train
from tests.valuation.test_values import Asynchronous
from verfedsv import Recorder, Valuation, value
from verfedsv.valuation.verdict import judge


def losses_of(tables, offsets, labels, loss):
    """Return the losses from zero on, by the textbook; tables are (rounds, clients, samples, classes)."""
    sums = tables.sum(axis=1) + (0 if offsets is None else offsets)
    sums = np.concatenate([np.zeros_like(sums[:1]), sums])
    return np.array([mean_loss(loss, x if loss == "softmax" else x[:, 0], labels) for x in sums])


def check_books(result, losses):
    """Hold a valuation to losses computed apart: in each round, and over the training."""
    n_rounds = result.n_rounds
    np.testing.assert_allclose(result.losses, losses, rtol=1e-9, atol=1e-12)
    credited = result.per_round.sum(axis=1) + result.per_round_server
    errors = result.per_round_errors.sum(axis=1) + result.per_round_server_errors
    assert (np.abs(credited + np.diff(losses)) <= errors + 1e-12).all()
    books = result.books
    allowed = n_rounds * (result.errors.sum() + result.server_error) + 1e-11
    assert abs(books.start - books.end - books.clients - books.server) <= allowed
    assert books.clients == pytest.approx(result.values.sum() * n_rounds)
    assert books.server == pytest.approx(result.server_value * n_rounds)


@pytest.mark.filterwarnings("ignore::verfedsv.ToleranceWarning")
@given(
    loss=st.sampled_from(LOSSES),
    method=st.sampled_from(["auto", "closed-form", "exact"]),
    offset=st.booleans(),
    step=st.sampled_from([0.05, 0.5, 3.0]),
    seed=st.integers(0, 1000),
)
def test_asynchronous_books_balance(loss, method, offset, step, seed):
    """Whatever the loss, the method and the size of the steps, also where the server moves and nobody uploads."""
    training = Asynchronous(loss, offset=offset, step=step, seed=seed, n_rounds=4, n_samples=12)
    assume(offset or training.events[0][0] is not None)  # a transcript does not begin with a bare time stamp
    result = value(training.record(), method)
    check_books(result, losses_of(training.tables, training.offsets, training.labels, loss))


@pytest.mark.parametrize("loss", LOSSES)
def test_books_of_full_batches_balance(loss):
    """Synchronous training on all samples, with an intercept."""
    training = train(loss, n_samples=30, batch=30, n_epochs=5, intercept=True)
    offsets = np.repeat(training.intercepts[:, None], 30, axis=1)
    check_books(value(training.record()), losses_of(training.embeddings, offsets, training.labels, loss))


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("intercept", [False, True])
def test_books_of_completed_embeddings_balance(loss, intercept):
    """Losses are those of the embeddings that were valued: the completed ones."""
    training = train(loss, n_samples=100, batch=25, n_epochs=4, intercept=intercept)
    result = value(training.record(), rank=2)
    known = result.factorisation
    players = [c.samples @ c.rounds.transpose(0, 2, 1) for c in known.completions.values()]
    check_books(result, losses_of(np.stack(players, axis=1), None, training.labels, loss))


@pytest.mark.filterwarnings("ignore:overflow encountered in exp")
def test_a_diverged_training_shows_in_the_books():
    """A server that does more harm than the clients are credited with: the loss rose, and the books say by whom."""
    training = train(
        "logistic", n_clients=2, n_samples=300, n_features=2, batch=300, n_epochs=7, rate=1000, intercept=True
    )
    books = value(training.record()).books
    assert books.loss_rose
    assert books.has_shares
    assert books.clients > 0 > books.server
    assert books.start == pytest.approx(np.log(2))
    assert books.start == pytest.approx(books.end + books.clients + books.server)


def test_a_constant_offset_moves_once():
    """From zero to what it is, in the first round; a server that says nothing more stays there."""
    recorder = Recorder(None, labels=[0, 1, 1], clients=["bank"])
    recorder.update("bank", [0, 1, 2], [-1.0, 1.0, 1.0], time=1)
    recorder.stamp([0.5, 0.5, 0.5], time=2)
    recorder.update("bank", [0], [-2.0], time=3)
    recorder.stamp(time=4)
    recorder.update("bank", [1], [2.0], time=5)
    recorder.stamp([0.5, 0.5, 0.5], time=6)
    result = value(recorder, "exact")
    assert result.per_round_server[0] != 0
    assert (result.per_round_server[1:] == 0).all()
    x = np.array([[0.0, 0.0, 0.0], [-0.5, 1.5, 1.5], [-1.5, 1.5, 1.5], [-1.5, 2.5, 1.5]])
    expected = [mean_loss("logistic", row, np.array([0, 1, 1])) for row in x]
    np.testing.assert_allclose(result.losses, expected, rtol=1e-12)


def test_a_round_in_which_only_the_server_moved():
    """It is valued on all samples, and the clients have exactly nothing of it."""
    recorder = Recorder(None, labels=[0, 1, 1], clients=["bank", "telco"])
    recorder.update("bank", [0, 1], [-1.0, 1.0], time=1)
    recorder.stamp([0.0, 0.0, 0.0], time=2)
    recorder.stamp([0.7, 0.7, 0.7], time=3)
    result = value(recorder)
    assert (result.per_round[1] == 0).all()
    assert result.per_round_server[1] == pytest.approx(result.losses[1] - result.losses[2], rel=1e-12)
    x = np.array([-0.3, 1.7, 0.7])
    assert result.losses[2] == pytest.approx(mean_loss("logistic", x, np.array([0, 1, 1])))


def test_books_go_to_json_and_back_and_are_continued():
    """Read from JSON, a valuation has the same books, and a later one that continues it has those of the whole."""
    training = Asynchronous("softmax", offset=True, n_rounds=6)
    recorder = training.record(last=3)
    early = value(recorder)
    again = Valuation.from_json(early.to_json())
    assert again.books == early.books
    assert again.server_value == early.server_value
    training.record(recorder=recorder, first=3)
    for since in (early, again):
        whole = value(recorder, since=since)
        check_books(whole, losses_of(training.tables, training.offsets, training.labels, "softmax"))


@pytest.mark.parametrize(
    ("values", "server", "payable", "mostly_server"),
    [
        ([0.1, 0.05], 0.0, True, False),
        ([0.1, 0.05], 0.2, True, True),
        ([0.1, 0.05], -0.2, False, True),
        ([-0.1, 0.05], 0.2, False, True),
    ],
)
def test_what_the_books_allow(values, server, payable, mostly_server):
    """Clients are to be paid if they lowered the loss and it fell; a server that did more is named."""
    books = make_valuation(values, server=server).books
    assert (books.has_shares and not books.loss_rose, books.is_mostly_server) == (payable, mostly_server)
    assert books.loss_rose == (sum(values) + server < 0)


def test_a_server_that_goes_to_and_fro_is_named():
    """It changes little in the end; the sizes of its rounds show that it decided what the clients' were worth."""
    labels = np.array([0, 1, 1, 0])
    recorder = Recorder(None, labels, ["bank", "telco"])
    push = 20.0 * np.where(labels > 0, 1, -1)
    time = 0.0
    for t in range(4):
        for name, offset in (("bank", push), ("telco", -push / 20)):
            recorder.stamp(offset, time=time)
            recorder.update(name, [0, 1, 2, 3], 0.2 * (t + 1) * np.where(labels > 0, 1.0, -1.0), time=time)
            recorder.stamp(offset, time=time)
            time += 1
    recorder.stamp(np.zeros(4), time=time)
    books = value(recorder).books
    assert abs(books.server) < abs(books.clients)
    assert books.server_moved > books.clients_moved
    assert books.is_mostly_server
    doubts = judge(value(recorder)).texts("doubt")
    assert any(d.startswith("The server's own part moved the loss up and down more than all clients") for d in doubts)


def test_nothing_but_rounding_is_not_payable():
    """Clients whose values cancel lowered the loss by nothing."""
    assert not make_valuation([0.1, -0.1 + 1e-16]).books.has_shares


def test_the_error_covers_the_rounding_of_the_mean_over_rounds():
    """Exact means of what the rounds state: the value is no further from theirs than the error is above theirs."""
    rng = np.random.default_rng(0)
    n_rounds = 3000
    recorder = Recorder(None, [1], ["a", "b"], "squared")
    for size in rng.normal(size=(n_rounds, 2)) * 10.0 ** rng.integers(-3, 3, (n_rounds, 1)):
        recorder.log([0], dict(zip("ab", size[:, None], strict=True)))
    result = value(recorder, "closed-form")
    for m in range(2):
        mean, error = (sum(map(Fraction, a[:, m])) / n_rounds for a in (result.per_round, result.per_round_errors))
        off = abs(Fraction(result.values[m]) - mean)
        assert 0 < off <= Fraction(result.estimator_errors[m]) - error
