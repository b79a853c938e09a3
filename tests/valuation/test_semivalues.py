"""Other semivalues than Shapley's over a whole training: means over rounds of what the definition gives for each."""

import numpy as np
import pytest

from tests.games import LOSSES
from tests.shapley.test_semivalues import definition
from tests.trainings import train, values_of_rounds
from tests.valuation.test_values import Asynchronous, split_server
from verfedsv import Beta, InputError, Semivalue, Valuation, value
from verfedsv.report.wording import balance
from verfedsv.settings import ValuationSettings
from verfedsv.settlement.books import describe_books
from verfedsv.shapley.semivalues import get_semivalue

OTHERS = ["banzhaf", "leave-one-out", "beta(4, 1)", "beta(0.5, 2)"]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("name", ["shapley", *OTHERS])
@pytest.mark.parametrize("method", ["auto", "exact", "permutation"])
def test_values_are_means_over_rounds_of_the_definition(loss, name, method):
    """With a server that moves too: every method is within its errors, in each round and of the mean."""
    training = Asynchronous(loss, offset=True, n_rounds=4, n_samples=12)
    semivalue, weight = definition(name)
    result = value(training.record(), method, semivalue=semivalue)
    assert result.settings.semivalue == name
    expected = values_of_rounds(training.tables, training.labels, loss, training.offsets, weight)
    clients, server = split_server(expected, result)
    assert (np.abs(result.per_round - clients) <= result.per_round_errors + 1e-10).all()
    assert (np.abs(result.values - clients.mean(axis=0)) <= result.errors + 1e-10).all()
    assert abs(result.server_value - server.mean()) <= result.server_error + 1e-10


@pytest.mark.parametrize("name", OTHERS)
def test_full_batches_have_them_too(name):
    """A synchronous training, whose chunks come from the replayed table."""
    training = train(n_samples=20, batch=20, n_epochs=4)
    semivalue, weight = definition(name)
    result = value(training.record(), semivalue=semivalue)
    expected = values_of_rounds(training.embeddings, training.labels, "logistic", weight=weight)
    np.testing.assert_allclose(result.per_round, expected, rtol=0, atol=1e-10)


def test_completed_embeddings_have_them_too():
    """Leave-one-out of completed embeddings is what one client's change does to the loss of these embeddings."""
    training = train(n_samples=60, batch=20, n_epochs=4)
    result = value(training.record(), rank=2, semivalue="leave-one-out")
    completions = result.factorisation.completions.values()
    embeddings = np.stack([c.samples @ c.rounds.transpose(0, 2, 1) for c in completions], axis=1)
    _, weight = definition("leave-one-out")
    expected = values_of_rounds(embeddings, training.labels, "logistic", weight=weight)
    np.testing.assert_allclose(result.per_round, expected, rtol=0, atol=1e-10)


def test_many_clients_are_sampled(monkeypatch):
    """Where enumeration is too much, coalitions are drawn, and the errors are confidence bounds that hold."""
    training = Asynchronous(n_clients=5, n_rounds=3)
    recorder = training.record()
    exact = value(recorder, semivalue="banzhaf")
    monkeypatch.setattr("verfedsv.shapley.auto.ENUMERATION_LIMIT", 0)
    sampled = value(recorder, semivalue="banzhaf", tolerance=10)
    assert (exact.method, exact.error_kind) == ("exact", "certified")
    assert (sampled.method, sampled.error_kind) == ("permutation", "confidence")
    assert (np.abs(sampled.values - exact.values) <= sampled.errors).all()


@pytest.mark.parametrize("name", OTHERS)
def test_books_say_what_values_leave_of_the_loss(name):
    """Values of other semivalues do not add up to the decrease of the loss; the books say by how much, in words too."""
    recorder = Asynchronous(n_rounds=3, step=2.0, offset=True).record()
    result = value(recorder, semivalue=name)
    books = result.books
    assert abs(books.unaccounted) > 1e-6
    assert abs(books.remainder) < 1e-12
    assert "unaccounted for" in describe_books(books)
    assert "unaccounted for" in balance(books)
    assert "the clients' values add up to" in repr(result)
    assert "lowered" not in repr(result)
    shapley = value(recorder)
    assert shapley.books.unaccounted == 0
    assert "unaccounted" not in describe_books(shapley.books) + balance(shapley.books)


def test_a_semivalue_is_a_setting():
    """It is written to JSON by its name, read back, and a valuation goes on with the same only."""
    training = Asynchronous(n_rounds=4)
    recorder = training.record(last=2)
    early = value(recorder, semivalue=Beta(1 / 3, 2))
    again = Valuation.from_json(early.to_json())
    assert again.settings == early.settings == ValuationSettings(semivalue="beta(0.3333333333333333, 2)")
    assert get_semivalue(again.settings.semivalue) == Beta(1 / 3, 2)
    assert again.books == early.books
    training.record(recorder=recorder, first=2)
    at_once = value(recorder, semivalue=Beta(1 / 3, 2))
    np.testing.assert_array_equal(value(recorder, semivalue=Beta(1 / 3, 2), since=again).values, at_once.values)
    with pytest.raises(InputError, match=r"semivalue is beta\(0.3333333333333333, 2\) and not shapley"):
        value(recorder, since=early)


def test_a_semivalue_of_ones_own():
    """A user's own is valued like any other; by its name alone nobody can repeat it."""

    class Alone(Semivalue):
        """What a client adds to nobody."""

        def size_weights(self, n_others):
            return np.eye(n_others + 1)[0]

        def draw(self, rng, n_draws):  # noqa: ARG002
            return np.zeros(n_draws)

        def __str__(self):
            return "alone"

    training = Asynchronous(n_rounds=3, n_samples=12)
    result = value(training.record(), semivalue=Alone())
    expected = values_of_rounds(training.tables, training.labels, "logistic", weight=lambda size, _: float(size == 0))
    np.testing.assert_allclose(result.per_round, expected, rtol=0, atol=1e-12)
    assert result.settings.semivalue == "alone"
    with pytest.raises(InputError, match="unknown semivalue 'alone'"):
        Valuation.from_json(result.to_json())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"semivalue": "nucleolus"}, "unknown semivalue 'nucleolus'"),
        ({"semivalue": "beta(1)"}, r"unknown semivalue 'beta\(1\)'"),
        ({"semivalue": "beta(0, 1)"}, "alpha of Beta must be a positive number"),
        ({"semivalue": "banzhaf", "method": "closed-form"}, "Shapley values only"),
    ],
)
def test_bad_semivalues(options, message):
    """What cannot be valued is refused before any work."""
    with pytest.raises(InputError, match=message):
        value(Asynchronous().record(), **options)
