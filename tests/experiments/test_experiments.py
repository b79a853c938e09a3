import itertools

import numpy as np
import pytest

from experiments import EXPERIMENTS, ResultFile, write_page
from experiments.baselines import _information, shapley_values_of
from experiments.lab import Settings, split, train_synchronously
from experiments.shap import shap_scores
from tests.games import random_game, utility, values_by_definition
from verfedsv.data import ClientData, VerticalData, prepare

MUST_HOLD = {"guarantees", "random-features", "rank"}
"""Experiments whose claims hold at any size, so also with --quick."""


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")  # few samples tell little
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_experiments_run_quickly_on_adult(name, tmp_path):
    """Everything is measured, shown and drawn."""
    experiment = EXPERIMENTS[name]
    file = ResultFile(tmp_path, experiment, "adult", quick=True)
    for _ in file.measure():
        pass
    found = {"adult": file.found}
    tables = experiment.tables(found)
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)
    page = write_page(tmp_path, {name: [file]}, quick=True).read_text()
    assert experiment.title in page
    assert (tmp_path / "paper" / f"{name}.svg").exists() == (experiment.draw is not None)
    if name in MUST_HOLD:
        assert all(claim.holds for claim in experiment.claims(found)), experiment.claims(found)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_settings_are_valid(name):
    """For every data set, quick or not; all experiments include Adult, which ships with the package."""
    experiment = EXPERIMENTS[name]
    assert "adult" in experiment.data
    for data, quick in itertools.product(experiment.data, (False, True)):
        experiment.settings(data, quick=quick)


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")
def test_exact_copies_differ_by_nothing(tmp_path):
    """In the experiment on similar features, a copy without noise has the same value to the last bit."""
    file = ResultFile(tmp_path, EXPERIMENTS["similar-features"], "adult", quick=True)
    for _ in file.measure():
        pass
    assert all(part["differences"][0] == 0 for part in file.found.values())


def test_shapley_values_by_the_definition():
    """Of a game given by its utility, against another implementation."""
    game = random_game("softmax", n_clients=4)
    values = shapley_values_of(lambda coalition: utility(game, coalition), 4)
    np.testing.assert_allclose(values, values_by_definition(game), atol=1e-14)


def test_shap_scores_are_those_of_a_linear_model():
    """SHAP values of linear models are a weight times the distance of a feature from its mean."""
    settings = Settings(clients=3, batch_size=200, rate=0.2, rounds=10, samples=600)
    data = split("adult", settings)
    trained = train_synchronously(data, settings)
    expected = []
    for weights, columns in zip(trained.weights, data.clients, strict=True):
        x = prepare(columns, "standardise", ~data.is_test)[~data.is_test]
        expected.append(np.abs((x - x.mean(axis=0)) * weights[:, 0]).mean(axis=0).sum())
    np.testing.assert_allclose(shap_scores(data, settings, trained), expected, rtol=1e-6)


def test_information_is_shared_by_copies_and_none_of_noise():
    """A client with the label and its copy get half of the label's entropy each, and noise gets nothing."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 4000)
    known = labels[:, np.newaxis] + np.zeros((1, 2))
    columns = {"knows": known, "copy": known, "noise": rng.normal(size=(4000, 2))}
    clients = tuple(ClientData(name, x) for name, x in columns.items())
    data = VerticalData(clients, labels, 2, np.zeros(4000, bool))
    np.testing.assert_allclose(_information(data, 2), [np.log(2) / 2, np.log(2) / 2, 0], atol=2e-3)
