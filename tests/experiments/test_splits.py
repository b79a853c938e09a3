from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest

from experiments.lab import split, train_synchronously
from experiments.splits import Joint, SplitSettings, _divide, _shares, _sum_features, compare
from tests.games import Game, values_by_definition
from verfedsv.data import ClientData
from verfedsv.losses import get_loss

SETTINGS = SplitSettings(clients=1, batch_size=50, rate=0.2, rounds=8, train=150)


@pytest.mark.parametrize(("loss", "n_classes"), [("logistic", 1), ("softmax", 3)])
def test_values_of_features_add_up_to_those_of_clients(loss, n_classes):
    """Summed over a client's features, they are its first-order value, computed sample by sample."""
    rng = np.random.default_rng(0)
    x, weights = rng.normal(size=(20, 7)), rng.normal(size=(4, 7, n_classes))
    labels = rng.integers(0, max(2, n_classes), 20)
    joint = Joint(x, get_loss(loss).encode(labels, n_classes), get_loss(loss), weights)
    clients = _divide(rng.permutation(7), 3)
    expected = np.zeros(3)
    for before, after in pairwise(weights):
        for features, label in zip(x, labels, strict=True):
            middle = features @ (before + after) / 2
            if loss == "logistic":
                slope = 1 / (1 + np.exp(-middle)) - label
            else:
                slope = np.exp(middle) / np.exp(middle).sum() - (np.arange(3) == label)
            for m, own in enumerate(clients):
                expected[m] -= slope @ (features[own] @ (after - before)[own]) / 20 / 4
    np.testing.assert_allclose(_sum_features(joint.first_order_values(), clients), expected, atol=1e-14)


def test_splits_are_valued_as_if_trained_separately():
    """Ten splits of one joint training have the values of ten trainings of three clients; first order is close."""
    joint, data, rng = Joint.train("adult", SETTINGS), split("adult", SETTINGS), np.random.default_rng(0)
    of_features, columns = joint.first_order_values(), data.clients[0].numeric.tocsc()
    for _ in range(10):
        clients = _divide(rng.permutation(123), 3)
        apart = replace(
            data, clients=tuple(ClientData(f"{m}", columns[:, own].tocsr()) for m, own in enumerate(clients))
        )
        truth = train_synchronously(apart, SETTINGS, with_truth=True).truth
        np.testing.assert_allclose(joint.exact_values(clients), truth, atol=1e-13)
        np.testing.assert_allclose(_shares(_sum_features(of_features, clients)), _shares(truth), atol=0.2)


def test_exact_values_are_the_definition():
    """On some of the samples, the sum over rounds of Shapley values by their definition."""
    joint = Joint.train("adult", SETTINGS)
    rows = np.array([1, 5, 30, 31, 99])
    clients = _divide(np.arange(123)[::-1], 3)
    embeddings = [[joint.features[rows][:, own] @ weights[own, 0] for own in clients] for weights in joint.weights]
    labels = joint.labels[rows]
    games = [Game(np.array(a), np.array(b), labels, "logistic") for a, b in pairwise(embeddings)]
    expected = sum(values_by_definition(game) for game in games) / SETTINGS.rounds
    np.testing.assert_allclose(joint.take(rows).exact_values(clients), expected, atol=1e-14)
    assert np.abs(expected).max() > 1e-4


def test_the_place_of_the_paper_by_brute_force():
    """Each number is counted over all splits and all orders of the clients."""
    rng = np.random.default_rng(1)
    shares, paper = 100 * rng.dirichlet([4, 4, 4], size=300), np.array([50.0, 20.0, 30.0])
    orders = np.array([[max(abs(row[list(order)] - paper)) for order in permutations(range(3))] for row in shares])
    found = compare(shares, paper)
    np.testing.assert_allclose(found["nearest"], [orders[:, 0].min(), orders.min()])
    assert found["within"] == pytest.approx(100 * np.mean(orders.min(axis=1) <= 2)) != 0
    assert found["unequal"] == pytest.approx(100 * np.mean(shares.std(axis=1) >= paper.std())) != 0
    assert found["percentiles"] == pytest.approx([100 * np.mean(shares.ravel() <= x) for x in paper])
