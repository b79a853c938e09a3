import numpy as np
import pytest

from experiments import guarantees
from experiments.lab import Settings, split, train_synchronously
from tests.games import Game, values_by_definition
from verfedsv import Transcript
from verfedsv.data import take_rows
from verfedsv.transcript import Upload

SETTINGS = Settings(clients=3, batch_size=50, rate=0.5, rounds=12, rank=2, regularization=0.1)


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")  # few samples tell little
def test_largest_errors_are_those_of_a_training_by_hand():
    """Embeddings of all rounds and samples from logistic regression written out, against the completed ones."""
    data = take_rows(split("adult", SETTINGS), np.arange(200))
    trained = train_synchronously(data, SETTINGS)
    result = trained.value(method="exact")
    columns = [client.numeric.toarray() for client in data.clients]
    signs = np.where(data.labels == 1, 1, -1)
    weights = [np.zeros(x.shape[1]) for x in columns]
    uploads = [record for record in Transcript.open(trained.path) if isinstance(record, Upload)]
    batches = [record.samples for record in uploads if record.client == "client 1"]
    expected = np.zeros(3)
    for t, batch in enumerate(batches):
        true = [x @ w for x, w in zip(columns, weights, strict=True)]
        completed = [result.factorisation.completions[m].embeddings(t)[:, 0] for m in range(3)]
        expected = np.maximum(expected, np.abs(np.subtract(completed, true)).max(axis=1))
        slope = -signs / (1 + np.exp(signs * sum(true)))
        for x, w in zip(columns, weights, strict=True):
            w -= 0.5 * x[batch].T @ slope[batch] / len(batch)
    np.testing.assert_allclose(guarantees._largest_errors(data, trained, result), expected, rtol=1e-9)
    assert (expected > 1e-3).all()


def test_the_bound_needs_the_number_of_clients():
    """Errors of the other clients add up in a value: to G M eps, where the paper states 2 G eps."""
    previous, current = np.zeros((2, 5, 1))
    previous[0], current[0] = -20.0, 20.0
    off = np.array([0.0, 0.1, 0.1, 0.1, 0.1])[:, np.newaxis]
    true, completed = (
        values_by_definition(Game(previous + error, current + error, np.array([1]), "logistic")) for error in (0.0, off)
    )
    error, eps = np.abs(true - completed).max(), off.mean()
    assert error == pytest.approx(5 * eps, rel=1e-3)


def test_the_copy_and_the_zeros_come_last():
    """The client of zeros has no column that is not zero, and the copy has those of client 1."""
    data = guarantees._data("adult", SETTINGS)
    assert data.names[-2:] == ("copy", "zeros")
    assert data.clients[-1].numeric.nnz == 0
    assert (data.clients[-2].numeric != data.clients[0].numeric).nnz == 0


def test_errors_above_a_bound_are_reported():
    """A bound holds if it does for all seeds; one residual above rounding refutes fairness.

    Estimates that are unknown are not counted, nor are those of the copy and of the client of zeros.
    """
    residuals = {"residuals": {"balance": 1e-12}}
    completion = {"errors": [2.0, 0.1, 0.1, 2.0, 0.0], "estimates": [None, 0.2, 0.3, None, 0.0], "stated": 1.0}
    completion["proved"] = 5.0
    found = {
        "synchronous, seed 0": residuals,
        "asynchronous, seed 0": {"residuals": {"balance": 1e-3}},
        "completion, seed 0": completion,
        "completion, seed 1": {**completion, "errors": [0.5, 0.4, 0.3, 0.5, 0.0], "estimates": [0.7] * 5},
    }
    verdicts = [claim.verdict for claim in guarantees.claims({"adult": found})]
    assert verdicts == ["yes", "no", "no"]
    row = guarantees.tables({"adult": found})[1].rows[0]
    assert row[3:5] == ["5 of 5", "0.71"]
