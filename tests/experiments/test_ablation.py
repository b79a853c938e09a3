import numpy as np
import pytest

from experiments.ablation import (
    CHOICE,
    EXPERIMENT,
    LONG,
    TRIED,
    _Run,
    _tables_of_longer,
    _tables_of_tried,
    deviation,
)
from experiments.lab import Settings, build, run_rounds, split, train_synchronously
from verfedsv import Completion
from verfedsv.completion import CompletionReport
from verfedsv.data import prepare

SETTINGS = Settings(clients=3, batch_size=40, rate=0.5, rounds=8, train=120)


def test_deviation_by_the_definition():
    """Shares of 50, 30 and 20 % against 40, 70 and -10 %: the size of a negative share counts."""
    assert deviation([5.0, 3.0, 2.0], [4.0, 7.0, -1.0]) == pytest.approx(100 * (10 / 40 + 40 / 70 + 30 / 10) / 3)


@pytest.fixture(scope="module")
def run():
    """A short training on Adult."""
    return _Run(train_synchronously(split("adult", SETTINGS), SETTINGS, with_truth=True))


def test_true_embeddings_do_not_deviate(run):
    """Completions that hold the weights of each round and the features give the true shares, and wrong ones do not."""
    data = split("adult", SETTINGS)
    training = build(data, SETTINGS)

    def weights():
        return [client.state()["weights"].T for client in training.transport.clients.values()]  # (classes, features)

    of_rounds = [weights(), *(weights() for _ in run_rounds(training, SETTINGS))][:-1]
    report = CompletionReport.of_uploads(0, 0)
    completions = [
        Completion(np.stack([of_round[m] for of_round in of_rounds]), prepare(client, "none", ~data.is_test), report)
        for m, client in enumerate(data.clients)
    ]
    assert run.deviation(completions) < 1e-3
    assert run.deviation([completions[1], completions[0], completions[2]]) > 1
    np.testing.assert_allclose(run.values(completions), run.trained.truth, rtol=1e-5)


def test_a_random_start_depends_on_the_seed(run):
    """Ours depends on it only through the uploads that are held out."""
    random, ours = (
        [run.deviation(run.complete(start, 2, 0.1, seed)) for seed in (0, 1)] for start in ("random", "spectral")
    )
    assert abs(random[0] - random[1]) > 10 * abs(ours[0] - ours[1])


def test_longer_fits_are_shown_for_each_client():
    """The lowest and the highest objective and number of sweeps of all seeds."""
    fits = [
        {"deviation": 1.0, "objectives": [10.0, 2000.0], "sweeps": [2, 3]},
        {"deviation": 2.0, "objectives": [11.5, 2000.4], "sweeps": [2, 30]},
    ]
    measured = {LONG: {"random start": fits}, "ours": {"fixed": {"rank": 3, "lambda": 0.1}}}
    [table] = _tables_of_longer({"adult": measured})
    assert table.rows == [["random start", "1.50 (1.00 to 2.00)", "10.0 to 11.5; 2", "2,000; 3 to 30"]]


@pytest.mark.parametrize(
    ("ranks", "lambdas", "shares", "expected"),
    [
        ([30.0, 5.0, 1.5, 1.0], [1.0, 1.1, 1.2, 2.9], (47.0, 17.0, 36.0), ["yes", "yes", "yes", "yes"]),
        ([30.0, 5.0, 7.0, 1.0], [9.0, 1.1, 1.2, 2.9], (60.0, 5.0, 35.0), ["in trend", "yes", "in trend", "in trend"]),
        ([5.0, 5.0, 1.9, 1.0], [9.0, 1.1, 1.2, 2.9], (45.0, -5.0, 60.0), ["no", "no", "in trend", "in trend"]),
        ([3.0, 5.0, 1.0, 4.0], [1.0, 9.0, 1.2, 2.9], (35.0, 5.0, 60.0), ["no", "yes", "no", "no"]),
    ],
)
def test_verdicts(ranks, lambdas, shares, expected):
    """Low from rank 5 on and a fifth of that at rank 1; within two percentage points for lambda from 0.001 to 1."""
    part = {"rank": list(zip((1, 3, 5, 6), ranks, strict=True))}
    part["lambda"] = list(zip((1e-3, 1e-2, 1.0, 10.0), lambdas, strict=True))
    found = {"truth, seed 0": {"shares": list(shares)}, "random, seed 0": part, "random, seed 1": part}
    assert [claim.verdict for claim in EXPERIMENT.claims({"adult": found})] == expected


def test_the_trainings_that_were_tried_are_shown():
    """With their true shares, for the data set that has them; one of the settings is among them."""
    size = TRIED[0]
    assert EXPERIMENT.settings("rcv1").completed == size
    assert CHOICE in EXPERIMENT.parts("rcv1", EXPERIMENT.settings("rcv1"))
    assert CHOICE not in EXPERIMENT.parts("web", EXPERIMENT.settings("web"))
    found = {"3,000 samples, 10 epochs": {"shares": [80.0, 15.0, 5.0], "accuracy": 0.7}}
    (table,) = _tables_of_tried({"web": {}, "rcv1": {CHOICE: found}})
    assert table.rows == [["3,000 samples, 10 epochs", "80.00", "15.00", "5.00", "70.0%"]]
