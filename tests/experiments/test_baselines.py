from itertools import combinations

import numpy as np
import pytest

from experiments.baselines import (
    TITLES,
    BaselineSettings,
    _information,
    _losses_by_retraining,
    _situational_importance,
    coalitions,
    parts,
    shapley_values_of,
    tables,
)
from experiments.lab import split, train_synchronously, weights_of
from tests.games import random_game, utility, values_by_definition
from verfedsv.data import ClientData, VerticalData

SETTINGS = BaselineSettings(
    clients=3,
    batch_size=50,
    rate=0.2,
    epochs=2,
    train=200,
    duration=0.08,
    rank=3,
    regularization=0.1,
    splits=(3,),
    seeds=2,
)


def test_shapley_values_by_the_definition():
    """Of a game given by its utility, against another implementation."""
    game = random_game("softmax", n_clients=4)
    values = shapley_values_of(lambda coalition: utility(game, coalition), 4)
    np.testing.assert_allclose(values, values_by_definition(game), atol=1e-14)


def test_coalitions_are_all_subsets():
    """Each once, the empty one first."""
    every = list(coalitions(3))
    assert every[0] == frozenset()
    assert sorted(map(sorted, every)) == sorted(list(c) for size in range(4) for c in combinations(range(3), size))


def test_losses_by_retraining_are_those_of_gradient_descent():
    """In full batches, of each coalition's columns alone; without features and intercept, the loss stays log 2."""
    settings = SETTINGS.but(batch_size=200, rounds=15, epochs=20)
    data = split("adult", settings)
    losses = _losses_by_retraining(data, settings)
    signs = 2.0 * data.labels - 1
    for coalition in coalitions(3):
        x = np.hstack([np.zeros((200, 1)), *(data.clients[m].numeric.toarray() for m in sorted(coalition))])
        weights = np.zeros(x.shape[1])
        for _ in range(15):
            weights += 0.2 * x.T @ (signs / (1 + np.exp(signs * (x @ weights)))) / 200
        assert losses[coalition] == pytest.approx(np.log1p(np.exp(-signs * (x @ weights))).mean(), rel=1e-9)
    assert losses[frozenset()] == pytest.approx(np.log(2))


def test_situational_importance_of_linear_models():
    """The mean distance of a client's columns times weights from that of the mean columns."""
    data = split("adult", SETTINGS)
    trained = train_synchronously(data, SETTINGS)
    expected = []
    for client, weights in zip(data.clients, weights_of(trained.training), strict=True):
        x = client.numeric.toarray()
        expected.append(np.abs((x - x.mean(axis=0)) @ weights[:, 0]).mean())
    np.testing.assert_allclose(_situational_importance(trained), expected, rtol=1e-9)


def test_information_is_shared_by_copies_and_none_of_noise():
    """A client with the label and its copy get half of the label's entropy each, and noise gets nothing."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 4000)
    known = labels[:, np.newaxis] + np.zeros((1, 2))
    columns = {"knows": known, "copy": known, "noise": rng.normal(size=(4000, 2))}
    clients = tuple(ClientData(name, x) for name, x in columns.items())
    data = VerticalData(clients, labels, 2, np.zeros(4000, bool))
    np.testing.assert_allclose(_information(data, 2), [np.log(2) / 2, np.log(2) / 2, 0], atol=2e-3)


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")  # few samples tell little
def test_seeds_draw_other_batches_of_the_same_data():
    """Leave-one-out differs between seeds, the information of the columns does not."""
    todo = parts("adult", SETTINGS)
    assert list(todo) == ["3 clients, seed 0", "3 clients, seed 1"]
    first, second = (part() for part in todo.values())
    assert set(first) == set(TITLES)
    assert first["leave-one-out"] != second["leave-one-out"]
    assert first["information"] == second["information"]


@pytest.mark.parametrize(("seeds", "tau", "share"), [(1, "1.00", "50.0"), (2, "-1.00 to 1.00", "16.7 to 50.0")])
def test_tables_show_all_seeds(seeds, tau, share):
    """One number for one seed, or if all look the same; else the lowest and the highest."""
    orders = [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]]
    found = {
        f"3 clients, seed {seed}": {
            kind: [1.0, 2.0, 3.0] if kind == "retraining" else orders[seed] if kind == "shap" else [1.0, 2.0, 4.0]
            for kind in TITLES
        }
        for seed in range(seeds)
    }
    first, second = tables({"adult": found})
    assert first.rows[0] == ["Adult, 3 clients", *["1.00"] * (len(TITLES) - 2), tau]
    assert first.rows[-1][-1] == f"{1.0 if seeds == 1 else 0.0:.2f}"
    assert second.rows[2][-1] == share
    assert all(("one seed" if seeds == 1 else "2 seeds") in table.caption for table in (first, second))
