"""Synchronous rounds are valued by the names in them, and who is absent from one stays where it was."""

import numpy as np
import pytest

from tests.games import LOSSES
from tests.trainings import train, values_of_rounds
from tests.transcript.forgeries import stamp, upload, write
from verfedsv import Recorder, complete, value

NAMES = ("bank", "telco", "shop")


def record_with_absences(training, absences):
    """Record a training in which clients miss rounds, and return what the server has after each for the full batch.

    `absences` are pairs of client and round. The table is (rounds, clients, samples, classes).
    """
    recorder = Recorder(None, training.labels, training.clients, training.loss)
    table, tables = np.zeros_like(training.embeddings[0]), []
    for t, batch in enumerate(training.batches):
        there = [m for m in range(len(training.clients)) if (m, t) not in absences]
        uploads = {training.clients[m]: training.embeddings[t, m, batch] for m in there}
        recorder.log(batch, uploads, absent=[name for name in training.clients if name not in uploads])
        table[there] = training.embeddings[t, there]
        tables.append(table.copy())
    return recorder, np.array(tables)


@pytest.mark.parametrize("loss", LOSSES)
def test_absent_from_full_batches(loss):
    """An absent client keeps its embeddings, zeros before it took part; values are those of the definition."""
    training = train(loss, n_samples=30, batch=30, n_epochs=6)
    absences = {(0, 0), (0, 1), (1, 3), (2, 5)}
    recorder, tables = record_with_absences(training, absences)
    result = value(recorder, "exact")
    expected = values_of_rounds(tables, training.labels, loss)
    np.testing.assert_allclose(result.per_round, expected, atol=result.per_round_errors.max() + 1e-13)
    assert all(result.per_round[t, m] == 0 for m, t in absences)
    assert result.completion is None


@pytest.mark.parametrize("loss", LOSSES)
def test_absent_from_batches_that_are_completed(loss):
    """Each client is completed from the rounds it took part in; then it stays where it was in those it missed."""
    training = train(loss, n_samples=100, batch=25, n_epochs=5)
    absences = {(0, 0), (0, 1), (0, 2), (1, 7), (1, 8), (2, 19)}
    recorder, _ = record_with_absences(training, absences)
    result = value(recorder, "exact", rank=2)
    tables = []
    for m in range(3):
        rounds = [t for t in range(20) if (m, t) not in absences]
        fitted = complete([training.batches[t] for t in rounds], [training.uploads(m)[t] for t in rounds], 100, 2)
        zeros = np.zeros((100, training.embeddings.shape[3]))
        last = [sum(r <= t for r in rounds) - 1 for t in range(20)]
        tables.append([fitted.embeddings(k) if k >= 0 else zeros for k in last])
    expected = values_of_rounds(np.array(tables).swapaxes(0, 1), training.labels, loss)
    np.testing.assert_allclose(result.per_round, expected, atol=result.per_round_errors.max() + 1e-12)
    assert all(result.per_round[t, m] == 0 for m, t in absences)


def test_a_client_that_is_always_absent_gets_exactly_nothing():
    """Also where embeddings are completed; its error is 0, and those of others are known."""
    training = train(n_samples=100, batch=25, n_epochs=5)
    recorder, _ = record_with_absences(training, {(1, t) for t in range(20)})
    result = value(recorder, rank=2)
    assert (result.values[1], result.errors[1]) == (0, 0)
    assert np.isfinite(result.errors).all()
    assert result.values[0] > 0


def test_absences_are_the_same_when_valued_on():
    """A running training with absences, valued again as it grows, is valued as a whole."""
    training = train(n_samples=30, batch=30, n_epochs=8)
    absences = {(0, 2), (1, 5), (2, 6)}
    recorder, _ = record_with_absences(training, absences)
    whole = value(recorder)
    shorter = train(n_samples=30, batch=30, n_epochs=4)
    early = value(record_with_absences(shorter, absences)[0])
    assert (early.per_round[2, 0], whole.per_round[5, 1]) == (0, 0)
    np.testing.assert_array_equal(whole.per_round[:4], early.per_round)


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")
def test_rows_in_another_order_are_worth_the_same(tmp_path):
    """A server that writes the same honest rows in another order changes nobody's value."""
    rng = np.random.default_rng(0)
    numbers = {name: rng.normal(size=(3, 2)) * size for name, size in zip(NAMES, (3.0, 0.2, 1.0), strict=True)}

    def rounds(names):
        for t, batch in enumerate(([0, 2], [3, 1], [1, 2])):
            yield [*(upload(name, batch, numbers[name][t].tolist(), t + 1.0) for name in names), stamp(t + 1.0)]

    honest = value(write(tmp_path / "honest", list(rounds(NAMES))), "exact", rank=1, regularization=1e-3)
    for number, names in enumerate([("telco", "bank", "shop"), ("shop", "telco", "bank")]):
        swapped = value(write(tmp_path / f"{number}", list(rounds(names))), "exact", rank=1, regularization=1e-3)
        np.testing.assert_array_equal(swapped.per_round, honest.per_round)


def test_rounds_are_valued_again_when_more_samples_are_seen():
    """Samples that a client uploads for the first time are in the mean of all rounds, also if these were valued."""
    recorder = Recorder(None, [1, 0, 1, 0], ["a", "b"])
    recorder.log([0, 1], {"a": [0.5, -0.5]}, absent=["b"])
    earlier = value(recorder)
    recorder.log([2, 3], {"b": [1.0, -0.2]}, absent=["a"])
    at_once, continued = value(recorder), value(recorder, since=earlier)
    assert (earlier.n_samples, at_once.n_samples) == (2, 4)
    np.testing.assert_array_equal(continued.per_round, at_once.per_round)
    np.testing.assert_array_equal(continued.losses, at_once.losses)
