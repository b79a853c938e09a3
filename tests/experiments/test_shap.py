import numpy as np
import pytest

import experiments.shap_grid
from experiments.baselines import shapley_values_of
from experiments.experiment import by_seed
from experiments.lab import (
    Settings,
    build,
    run_asynchronously,
    run_rounds,
    split,
    states_of,
    train_asynchronously,
    train_synchronously,
    weights_of,
)
from experiments.shap import (
    ALL_TRAINED_ON,
    EXPERIMENT,
    PAIRS,
    PAPER,
    ShapSettings,
    kendalls_tau,
    shap_scores,
    verdict,
)
from experiments.shap_grid import embedded, fit_separately, grid_tables, held, measure_grid, snapshots
from experiments.shap_scores import LinearShap, dense, perceptron_score, starts_of, train_features
from verfedsv.data import ClientData, VerticalData, prepare
from verfedsv.federation.models import Perceptron

N_FEATURES = 2, 3, 4


def _classes(n_samples=300):
    """Return data of three clients and three classes, with some samples for testing."""
    rng = np.random.default_rng(0)
    clients = [ClientData(f"client {m}", rng.random((n_samples, n))) for m, n in enumerate(N_FEATURES)]
    joined = np.hstack([client.numeric for client in clients])
    scores = (joined - 0.5) @ rng.normal(0, 3, (joined.shape[1], 3)) + rng.gumbel(size=(n_samples, 3))
    return VerticalData(tuple(clients), scores.argmax(axis=1), 3, np.arange(n_samples) >= n_samples - 60)


def _perceptron(n_features, seed):
    """Return the state of a perceptron of 5 neurons and 3 classes with biases."""
    rng = np.random.default_rng(seed)
    state = {name: array.copy() for name, array in Perceptron(n_features, 3, hidden=5, seed=seed).state().items()}
    for name in ("first_biases", "second_biases"):
        state[name] = rng.normal(size=state[name].shape) / 2
    return state


@pytest.mark.parametrize("scale", ["none", "standardise"])
def test_scores_of_linear_models_are_mean_absolute_effects(scale):
    """SHAP values of linear models are a weight times the distance of a feature from its mean."""
    settings = Settings(clients=3, batch_size=200, rate=0.2, rounds=10, train=600, test=50, scale=scale)
    data = split("adult", settings)
    trained = train_synchronously(data, settings)
    expected = []
    for weights, columns in zip(weights_of(trained.training), data.clients, strict=True):
        x = prepare(columns, scale, ~data.is_test)[~data.is_test]
        expected.append(np.abs((x - x.mean(axis=0)) * weights[:, 0]).mean(axis=0).sum())
    np.testing.assert_allclose(shap_scores(data, settings, trained), expected, rtol=1e-6)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's, from the hooks of shap
def test_scores_of_perceptrons_are_those_of_the_joint_model_by_deep_explainer():
    """The scores of clients, each from its own perceptron, are those of `shap.DeepExplainer` on their sum."""
    import shap
    import torch
    from scipy.linalg import block_diag

    rng = np.random.default_rng(1)
    states = [_perceptron(n, seed) for seed, n in enumerate(N_FEATURES)]
    explained, background = rng.normal(size=(7, 9)), rng.normal(size=(5, 9))
    joint = torch.nn.Sequential(torch.nn.Linear(9, 15), torch.nn.ReLU(), torch.nn.Linear(15, 3)).double()
    joint.load_state_dict(
        {
            "0.weight": torch.tensor(block_diag(*(state["first_weights"] for state in states)).T),
            "0.bias": torch.tensor(np.concatenate([state["first_biases"] for state in states])),
            "2.weight": torch.tensor(np.vstack([state["second_weights"] for state in states]).T),
            "2.bias": torch.tensor(sum(state["second_biases"] for state in states)),
        }
    )
    explainer = shap.DeepExplainer(joint, torch.tensor(background))
    values = explainer.shap_values(torch.tensor(explained), check_additivity=False)  # (samples, features, classes)
    edges = np.cumsum(N_FEATURES)[:-1]
    expected = [part.sum() for part in np.split(np.abs(values).mean(axis=0), edges)]
    found = [
        perceptron_score(x, b, state)
        for x, b, state in zip(np.split(explained, edges, 1), np.split(background, edges, 1), states, strict=True)
    ]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


@pytest.mark.parametrize(("bias", "tolerance"), [(20, 1e-9), (0, 0.2)])
@pytest.mark.parametrize("seed", range(3))
def test_scores_of_perceptrons_are_near_those_of_shapley_values(seed, bias, tolerance):
    """By the definition: equal if no neuron switches, within a fifth on random perceptrons (20 seeds: -13 to +15 %)."""
    rng = np.random.default_rng(seed)
    state, (explained, background) = _perceptron(5, seed), rng.normal(size=(2, 4, 5))
    state["first_biases"] += bias

    def output(coalition, x):
        """Return the mean scores of a sample whose other features are those of the background."""
        mixed = np.where(np.isin(np.arange(5), list(coalition)), x, background)
        inner = np.maximum(mixed @ state["first_weights"] + state["first_biases"], 0)
        return (inner @ state["second_weights"]).mean(axis=0)

    expected = np.mean(
        [
            sum(np.abs(shapley_values_of(lambda members: output(members, x)[c], 5)).sum() for c in range(3))  # noqa: B023
            for x in explained
        ]
    )
    assert perceptron_score(explained, background, state) == pytest.approx(expected, rel=tolerance)


def test_scores_of_a_trained_perceptron_are_of_the_drawn_samples():
    """The background and the explained samples are different training samples, drawn with the seed."""
    settings = Settings(clients=3, batch_size=100, rate=0.5, rounds=5, train=200, test=50, model="perceptron")
    data = split("adult", settings)
    trained = train_synchronously(data, settings)
    scores = shap_scores(data, settings, trained, n_explained=20, n_background=10)
    drawn = np.random.default_rng([settings.seed, *b"explained"]).permutation(200)
    features = [dense(prepare(columns, "none", ~data.is_test))[:200] for columns in data.clients]
    expected = [
        perceptron_score(x[drawn[10:30]], x[drawn[:10]], state)
        for x, state in zip(features, states_of(trained.training), strict=True)
    ]
    np.testing.assert_allclose(scores, expected)


@pytest.mark.parametrize("n_background", [5, 240])
def test_averages_of_linear_models_are_those_of_the_shap_package(n_background):
    """Absolute and signed averages, against the values of `shap.LinearExplainer` for every sample and class."""
    import shap

    data = _classes()
    joined, labels = np.hstack([client.numeric for client in data.clients])[:240], data.labels[:240]
    background = joined[:n_background]
    weights = np.random.default_rng(2).normal(size=(9, 3))
    masker = shap.maskers.Independent(background, max_samples=n_background)
    values = np.stack([shap.LinearExplainer((w, 0.0), masker).shap_values(joined) for w in weights.T], axis=2)
    edges = np.cumsum(N_FEATURES)[:-1]
    expected = {
        "absolute": [np.abs(part).mean(axis=0).sum() for part in np.split(values, edges, 1)],
        "signed": [np.abs(part.mean(axis=0).sum(axis=0)).sum() for part in np.split(values, edges, 1)],
        "signed, true class": [
            part[np.arange(240), :, labels].mean(axis=0).sum() for part in np.split(values, edges, 1)
        ],
    }
    explained = LinearShap.on(joined, labels, 3, starts_of(np.split(joined, edges, 1)), background)
    for kind, scores in explained.scores(weights).items():
        np.testing.assert_allclose(scores, expected[kind], atol=1e-6)
    is_zero = np.isnan(explained.taus(weights, np.arange(3.0))["signed"])
    assert is_zero == (n_background == 240)


def test_synchronous_snapshots_have_true_values():
    """Values after T rounds are those that T + 1 rounds have by enumeration: uploads precede the step of a round."""
    settings = Settings(clients=3, batch_size=60, rate=0.5, rounds=6)
    data = _classes()
    truth = 6 * train_synchronously(data, settings, with_truth=True).truth
    training = build(data, settings)
    features = train_features(data, settings)
    found = snapshots(training, run_rounds(training, settings), embedded(features), data.labels[:240], [2, 5])
    np.testing.assert_allclose(found[1].values, truth, rtol=1e-4)
    assert found[0].values.sum() < found[1].values.sum()
    assert found[1].weights.shape == (9, 3)


def test_asynchronous_snapshots_have_the_values_of_the_recorded_training():
    """Values up to a time stamp are those of the valuation of a recorded training that ends there."""
    settings = Settings(clients=3, batch_size=60, rate=0.5, duration=0.4, method="exact")
    data = _classes()
    valuation = train_asynchronously(data, settings).value(rows=np.arange(0, 240, 2))
    training = build(data, settings.but(duration=0.8))
    steps = run_asynchronously(training, settings.but(duration=0.8))
    (found,) = snapshots(training, steps, held(slice(None, None, 2)), data.labels[:240:2], [10])
    np.testing.assert_allclose(found.values, valuation.values * valuation.n_rounds, rtol=1e-4)


def test_the_grid_compares_the_model_of_each_epoch(monkeypatch):
    """Its cells are tau of scores and values of a training of as many epochs; its tables work with one seed."""
    data = _classes()
    monkeypatch.setattr(experiments.shap_grid, "split", lambda _name, _settings: data)
    settings = ShapSettings(
        clients=3, batch_size=60, rate=0.5, grid=(1, 3), grid_seconds=0.1, backgrounds=(5,), draws=2
    )
    part = by_seed(1, lambda seed: measure_grid("covtype", settings, lambda: fit_separately("covtype", settings), seed))
    grid = [part["seed 0"]()]
    for number, epochs in enumerate(settings.grid):
        trained = train_synchronously(data, settings.but(epochs=epochs))
        # One round more, as its last step comes after the last upload.
        truth = train_synchronously(data, settings.but(rounds=4 * epochs + 1), with_truth=True).truth
        expected = kendalls_tau(shap_scores(data, settings, trained), truth)
        assert grid[0]["tau"]["synchronous; joint; absolute; all rows"][number] == [pytest.approx(expected)]
        assert grid[0]["accuracy"]["synchronous"][number] == trained.accuracy
    tables = grid_tables("covtype", grid, PAPER["covtype"][:2])
    assert len(tables) == 5
    assert all(len(row) == len(table.header) for table in tables for row in table.rows)


def test_every_setting_in_which_a_single_draw_is_largest_is_named():
    """Of accurate models only; accuracies are the joint model's, whatever the values are of."""
    taus = {
        "asynchronous; joint; absolute; 100 rows": [[1.0, 1.0], [0.2, 0.9]],
        "asynchronous; joint; signed; 100 rows": [[1.0, 1.0], [0.3, 0.5]],
        "asynchronous; separate; signed; 100 rows": [[0.1, 0.1], [0.9, 0.1]],
    }
    grid = [
        {
            "epochs": [1, 2],
            "seconds": [1.0, 2.0],
            "rows": 10,
            "accuracy": {"synchronous": [0.5, 0.72], "asynchronous": [0.4, 0.6], "separate": 0.7},
            "tau": taus | {key.replace("asynchronous", "synchronous"): tau for key, tau in taus.items()},
        }
    ]
    first, *details = grid_tables("covtype", grid, (0.94, 0.89))
    found = dict(zip(first.header, first.rows[1], strict=True))
    assert found["the largest tau of a single draw"] == (
        "0.90 (joint model, absolute, 100 rows, 2 s, joint model at 72.0 %; "
        "separate model, signed, 100 rows, 2 s, joint model at 72.0 %)"
    )
    asynchronous = next(table for table in details if "tau of asynchronous" in table.caption)
    assert [row[0] for row in asynchronous.rows] == ["1 s, 40.0 %", "2 s, 60.0 %"]


@pytest.mark.parametrize("name", EXPERIMENT.data)
def test_accuracies_on_training_rows_are_called_so(name):
    """They are what is measured where no rows are held out."""
    settings = EXPERIMENT.settings(name)
    assert (settings.test == 0) == (name in ALL_TRAINED_ON)
    part = {
        "tau": {f"{a}, {b}": 1.0 for a, b in PAIRS},
        "accuracy": {"synchronous": 0.9, "asynchronous": 0.9},
    }
    claims = EXPERIMENT.claims({name: {"seed 0": part}})
    assert all("of training rows" in x.what for x in claims if x.item == "Models: accuracy") == (settings.test == 0)


@pytest.mark.parametrize(
    ("taus", "paper", "least", "expected"),
    [
        ([0.3, 0.5, 0.9], 0.73, 0.61, "no"),  # a wide range around the paper's number is no agreement
        ([0.83, 0.83, 0.84], 0.94, 0.61, "in trend"),
        ([0.84, 0.84], 0.94, 0.61, "yes"),  # within 0.1 of the median
        ([1.0, 1.0], 0.73, 0.61, "in trend"),  # more agreement is not the paper's number either
        ([0.6], 0.94, 0.61, "no"),
        ([1 / 3], 1.0, 0.61, "no"),
    ],
)
def test_verdicts_are_two_sided(taus, paper, least, expected):
    """The paper's number near the median, or else only its lower bound."""
    assert verdict(np.array(taus), paper, least) == expected
