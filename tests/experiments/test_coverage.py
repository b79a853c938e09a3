import dataclasses

import numpy as np
import pytest

from experiments.coverage import CoverageSettings, Pairs, compare, draw_run, parts, tables
from experiments.lab import train_synchronously
from verfedsv.data import load

SETTINGS = CoverageSettings(train=200, rates=(0.05, 0.4), rank=3, regularization=0.1, seeds=2)


def run(true, stated, verdict="sound", completion=None):
    return {"true": true, "stated": stated, "completion": completion or stated, "verdict": verdict}


def test_full_batches_have_no_error():
    """Nothing is completed, so values are the truth, within stated errors that are tiny, and the verdict is sound."""
    data, drawn = draw_run("adult", SETTINGS, 0)
    trained = train_synchronously(data, drawn.but(batch_size=200, rounds=30), with_truth=True)
    found = compare(trained, trained.value(method="exact"))
    pairs = Pairs.of([found])
    assert found["true"] == [0.0] * drawn.clients
    assert found["completion"] == [0.0] * drawn.clients
    assert max(found["stated"]) < 1e-9 * max(found["values"])
    assert pairs.is_within.all()
    assert (pairs.ratios == 0).all()
    assert found["verdict"] == "sound"


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")
def test_mini_batches_have_the_error_of_completion():
    """True errors are distances from the values of the same batches with all samples uploaded in every round."""
    data, drawn = draw_run("adult", SETTINGS, 1)
    trained = train_synchronously(data, drawn, with_truth=True)
    result = trained.value()
    found = compare(trained, result)
    np.testing.assert_allclose(found["true"], np.abs(result.values - trained.truth), rtol=1e-9)
    assert min(found["true"]) > 0
    assert found["stated"] == result.errors.tolist()


def test_pairs_are_counted():
    """Two trainings: one with a client outside, called sound, and an unknown error; one doubtful and all within."""
    found = [
        run([1.0, 3.0, 5.0], [2.0, 2.0, None], completion=[0.5, 1.0, None]),
        run([0.0, 0.1], [0.0, 1.0], "doubtful"),
    ]
    pairs = Pairs.of(found)
    assert pairs.is_known.tolist() == [True, True, False, True, True]
    assert pairs.is_within.tolist() == [True, False, False, True, True]
    assert pairs.ratios.tolist() == [0.5, 1.5, 0.0, 0.1]
    assert pairs.row() == [
        "2",
        "5",
        "1",
        "3 of 4 (75.0 %)",
        "2 of 4 (50.0 %)",
        "0.3",
        "1.5",
        "1 of 2",
        "1 of 1",
        "3",
    ]


def test_an_error_where_none_is_stated_is_outside():
    """The ratio is infinite, not undefined."""
    pairs = Pairs.of([run([1.0], [0.0])])
    assert pairs.ratios.tolist() == [np.inf]
    assert not pairs.is_within.any()


def test_trainings_without_a_known_error_are_in_no_fraction():
    """There is no median either."""
    row = Pairs.of([run([1.0, 2.0], [None, None], "doubtful")]).row()
    assert row == ["1", "2", "2", "-", "-", "-", "-", "0 of 0", "0 of 0", "0"]


def test_the_sum_of_rows_leaves_tuned_data_out():
    """The row of all held-out data has their pairs only."""
    part = {
        "clients": 2,
        "batch_size": 3,
        "epochs": 2,
        "rounds": 4,
        "rate": 0.5,
        "losses": [1.0, 0.5],
        "auto": run([1.0, 1.0], [2.0, 2.0]),
        "paper": run([3.0, 1.0], [2.0, 2.0]),
    }
    found = tables({name: {"seed 0": part, "seed 1": part} for name in ("adult", "letter", "sector")})
    for table, within in zip(found[:2], ("8 of 8 (100.0 %)", "4 of 8 (50.0 %)"), strict=True):
        assert [row[0] for row in table.rows] == ["Letter", "Sector", "all of these", "Adult, used in tuning"]
        assert table.rows[2][1:5] == ["4", "8", "0", within]


def test_runs_are_drawn_within_limits_and_differ():
    """Every feature and row goes to exactly one place, batches are a fifth to a twentieth, and a seed repeats."""
    drawn = [draw_run("adult", SETTINGS, seed) for seed in range(30)]
    assert {settings.clients for _, settings in drawn} == set(range(3, 9))
    assert {settings.epochs for _, settings in drawn} == set(range(2, 11))
    assert all(10 <= settings.batch_size <= 40 for _, settings in drawn)
    assert all(0.05 <= settings.rate <= 0.4 for _, settings in drawn)
    # Rows of Adult have at most 14 ones, whatever the order of the columns.
    for data, settings in drawn:
        assert sum(client.numeric.shape[1] for client in data.clients) == 123
        assert len(data.clients) == settings.clients
        assert (sum(client.numeric.sum(axis=1) for client in data.clients) <= 14).all()
        assert not data.is_test.any()
    (first, settings), (again, same) = drawn[3], draw_run("adult", SETTINGS, 3)
    assert settings == same
    for one, other in zip(first.clients, again.clients, strict=True):
        np.testing.assert_array_equal(one.numeric.toarray(), other.numeric.toarray())
    assert not np.array_equal(first.labels, drawn[4][0].labels)


def test_halves_of_two_classes_are_the_classes():
    """Labels 0 and 1 stay what they are."""
    data, _ = draw_run("adult", SETTINGS, 0)
    halved, _ = draw_run("adult", SETTINGS.but(halves=True), 0)
    np.testing.assert_array_equal(data.labels, halved.labels)
    assert halved.n_classes == 2


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")
def test_many_classes_can_be_halved(monkeypatch):
    """The halves have no names, as those of the classes would be too many, and a training of them is recorded."""
    adult = load("adult")
    labels = np.arange(len(adult.labels)) % 4
    several = dataclasses.replace(adult, labels=labels, n_classes=4, classes=("a", "b", "c", "d"))
    monkeypatch.setattr("experiments.coverage._load", lambda _: several)
    data, drawn = draw_run("halves", SETTINGS.but(halves=True), 0)
    assert (data.n_classes, data.classes, {*data.labels.tolist()}) == (2, None, {0, 1})
    assert train_synchronously(data, drawn.but(rounds=2), with_truth=False).value(method="exact").n_samples > 0


def test_each_seed_is_a_part():
    """Its findings have a pair for each client, for both kinds of rank."""
    todo = parts("adult", SETTINGS.but(n_epochs=(2, 2), n_clients=(3, 3)))
    assert list(todo) == ["seed 0", "seed 1"]
    found = todo["seed 1"]()
    assert found["clients"] == len(found["auto"]["true"]) == len(found["paper"]["stated"]) == 3
    assert found["auto"]["unseen"] == 0
