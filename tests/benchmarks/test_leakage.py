"""What docs/security.md says of messages, held as facts on small trainings."""

import re
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from benchmarks import attacks, wire
from benchmarks.leakage import BEGIN, END, TEXT, rate_embeddings, rate_gradients, rate_models
from benchmarks.wire import PARTIES, SUM, Case, Tap, watch
from tests.federation.textbook import make_data
from verfedsv.data import load, split_features, take_rows
from verfedsv.federation import (
    AsynchronousSchedule,
    Rate,
    SynchronousSchedule,
    Training,
    VirtualClock,
    asynchronous_rounds,
    synchronous_rounds,
)
from verfedsv.federation.messages import Answer, Gradients, Request

PAGE = Path(__file__).parents[2] / "docs" / "security.md"
CASE = Case("adult", "client 2", 300, (3, 3), "none")
SMALL = replace(CASE, client="client 1", batch=50)


@pytest.fixture(scope="module")
def adult():
    """Two thousand samples of Adult, of which 500 are test samples, between four clients."""
    data = take_rows(split_features(load("adult"), 4), np.arange(2000))
    return replace(data, is_test=np.arange(2000) >= 1500)


def messages_of(data, mode, **options):
    """Train, and return all messages with gradients."""
    made = Training.in_process(data, rate=Rate(0.5), **options)
    tap = Tap(made.transport)
    training = Training(made.server, tap)
    if mode == "synchronous":
        rounds = synchronous_rounds(training, SynchronousSchedule(300, 12))
    else:
        schedule = AsynchronousSchedule([0.01, 0.02, 0.015, 0.01], [300] * 4, 0.03, 4)
        rounds = asynchronous_rounds(training, schedule, VirtualClock())
    for _ in rounds:
        training.evaluate()
    return [request for request, _ in tap.crossed if isinstance(request, Gradients)]


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
@pytest.mark.parametrize("weights", [None, np.array([1.0, 5.0])])
def test_the_sign_of_a_gradient_is_the_label_under_a_sum(adult, mode, weights):
    """Every gradient that any client gets is negative for label 1 and positive for label 0."""
    found = messages_of(adult, mode, intercept=True, class_weights=weights)
    assert {message.client for message in found} == set(adult.names)
    for message in found:
        np.testing.assert_array_equal(message.values[:, 0] < 0, adult.labels[message.samples] == 1)


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_test_samples_never_get_gradients(adult, mode):
    """Although all samples are evaluated in every round, all gradients are of training samples."""
    seen = np.unique(np.concatenate([message.samples for message in messages_of(adult, mode)]))
    np.testing.assert_array_equal(seen, np.arange(1500))


def test_the_only_negative_gradient_of_softmax_is_that_of_the_label():
    """One gradient tells one of four classes."""
    data = make_data(n_classes=4)
    view = watch(data, SMALL, SUM, 0)
    np.testing.assert_array_equal((view.gradients < 0).argmax(axis=2)[0], data.labels[: view.n_train])
    assert ((view.gradients < 0).sum(axis=2) == 1).all()
    scores = attacks.score_by_sign(view.gradients)
    np.testing.assert_array_equal(scores.argmax(axis=1), data.labels[: view.n_train])


@pytest.mark.parametrize("parties", PARTIES, ids=lambda parties: parties.title)
def test_gradients_tell_labels_and_guessing_does_not(adult, parties):
    """By sign under a sum, by direction under a network; lengths tell less."""
    guessing, first, every, auc, length, auc_of_length = rate_gradients(watch(adult, CASE, parties, 0), parties, 0)
    assert guessing < 0.78
    assert min(first, every, auc) > 0.99
    assert guessing - 0.05 < length < first
    assert auc_of_length < auc


def test_gradients_that_do_not_depend_on_labels_tell_nothing(adult):
    """The attacks fail where there is nothing to find: on noise of the same shape."""
    view = watch(adult, CASE, PARTIES[1], 0)
    noise = np.random.default_rng(0).normal(size=view.gradients.shape)
    _, first, every, *_ = rate_gradients(replace(view, gradients=noise), PARTIES[1], 0)
    assert max(first, every) < 0.6


def test_gradients_tell_the_embeddings_of_the_others(adult):
    """Under a sum, to the last digits: they are the score less the client's own embeddings."""
    view = watch(adult, CASE, SUM, 0)
    found = attacks.embeddings_of_others(view.gradients, view.uploads)
    assert np.abs(view.others).max() > 0.5
    np.testing.assert_allclose(found, view.others, rtol=0, atol=1e-9)


def test_the_first_gradients_of_amounts_are_the_amounts():
    """Linear models begin with scores of zero, so what is left of score minus label is the label, standardised."""
    data = make_data(n_classes=1)
    view = watch(data, SMALL, SUM, 0)
    is_first = view.rounds[0] == 1
    assert is_first.sum() == 50
    np.testing.assert_array_equal(-view.gradients[0, is_first, 0], data.targets[: view.n_train][is_first])


def test_what_models_tell_of_test_samples_is_less_than_gradients_tell(adult):
    """More than guessing, with few labels and with all, and far from all of them."""
    guessing, few, completed, every = rate_models(watch(adult, CASE, SUM, 0), 0)
    assert guessing[0] - 0.05 < min(few[0], completed[0], every[0])
    assert min(few[1], completed[1], every[1]) > 0.7
    assert max(few[0], completed[0], every[0]) < 0.9


@pytest.mark.parametrize("parties", PARTIES[:2], ids=lambda parties: parties.title)
def test_a_linear_model_hides_nothing_after_as_many_numbers_as_columns(monkeypatch, parties):
    """Its columns follow from evaluations and from uploads; those of one evaluation are too few, or just enough."""
    monkeypatch.setattr(wire, "EVERY", 1)
    view = watch(make_data(n_samples=400, n_features=6, n_test=100), SMALL, parties, 0, n_epochs=7)
    (last, _), *others = rate_embeddings(view, parties, 0)
    assert last < 0.8 or parties is not SUM
    for r2, n_exact in others:
        assert r2 > 1 - 1e-6
        assert n_exact == 6


def test_a_linear_model_that_sends_less_hides_something():
    """Three uploads are not enough for six columns, and tell three combinations of them."""
    view = watch(make_data(n_samples=400, n_features=6, n_test=100), SMALL, SUM, 0)
    r2 = attacks.r2_by_solving(view.uploads, view.rounds, view.columns[: view.n_train], 0)
    assert (r2 < 0.99).all()
    assert 1 < r2.sum() < 4


def test_the_page_has_every_message():
    """The table of what crosses names all kinds of messages, and no other."""
    table = PAGE.read_text(encoding="utf-8").partition("| message |")[2].partition("\n\n")[0]
    rows = [row.split(" | ")[0] for row in table.splitlines()[2:]]
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert sorted(named) == sorted(kind.__name__ for kind in (*get_args(Request), *get_args(Answer)))


def test_the_page_is_what_the_benchmark_writes():
    """Its text is that of the benchmark, word for word, with numbers in their places."""
    written = PAGE.read_text(encoding="utf-8").partition(BEGIN)[2].partition(END)[0]
    pattern = ".+?".join(re.escape(part) for part in re.split(r"\{\w+\}", TEXT))
    assert re.fullmatch(rf"\s*{pattern}\s*", written, re.DOTALL)
