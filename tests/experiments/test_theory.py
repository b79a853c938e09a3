import numpy as np
import pytest

from experiments import theory
from experiments.lab import build, run_rounds, split
from tests.games import Game, random_game, utility, values_by_definition
from verfedsv import rank_bound, shapley_values
from verfedsv.data import ClientData, VerticalData, take_rows

SETTINGS = theory.TheorySettings(clients=3, batch_size=40, rate=0.5, rounds=6, rank=2, regularization=0.1)


def few_samples() -> VerticalData:
    """Return a hundred samples of Adult, of three clients."""
    return take_rows(split("adult", SETTINGS), np.arange(100))


def coalitions(n_clients):
    """Return all coalitions in the order of `utilities`."""
    return [frozenset(m for m in range(n_clients) if c >> m & 1) for c in range(2**n_clients)]


def test_utilities_are_those_of_the_definition():
    """Of all coalitions in some rounds, from embeddings before each step."""
    data = few_samples()
    training = build(data, SETTINGS)
    embedded = [training.evaluate().embeddings[:, :, 0]]
    embedded += [each.evaluate().embeddings[:, :, 0] for each in run_rounds(training, SETTINGS)]
    games = [Game(embedded[t - 1], embedded[t], data.labels, "logistic") for t in (2, 4)]
    expected = [[utility(game, coalition) for coalition in coalitions(3)] for game in games]
    np.testing.assert_allclose(theory.utilities(data, SETTINGS, {4, 2}), expected, atol=1e-14)
    assert np.ptp(expected) > 1e-3


def test_values_of_a_table_of_utilities():
    """Exact values are those of the definition, and sampled ones are unbiased and sum to the utility of all."""
    game = random_game("logistic", n_clients=4, step=2.0)
    table = np.array([utility(game, coalition) for coalition in coalitions(4)])
    exact = values_by_definition(game)
    np.testing.assert_allclose(theory.values_of(table), exact, atol=1e-14)
    rng = np.random.default_rng(0)
    sampled = np.array([theory.sampled_values(table, 10, rng) for _ in range(4000)])
    np.testing.assert_allclose(sampled.sum(axis=1), table[-1], atol=1e-13)
    assert sampled.std(axis=0).min() > 1e-3
    assert (np.abs(sampled.mean(axis=0) - exact) < 4 * sampled.std(axis=0) / np.sqrt(4000)).all()


def test_the_right_bound_of_sampling_does_not_depend_on_the_unit_of_the_loss():
    """The paper's does: a loss in thousandths is allowed a thousandth of the relative error."""
    one, small = (theory.bounds_of_sampling(width, 8, 1664, 0.05) for width in (1.0, 1e-3))
    assert small["each"] == pytest.approx(1e-3 * one["each"])
    assert small["norm"] == pytest.approx(1e-3 * one["norm"])
    assert small["paper"] == pytest.approx(1e-6 * one["paper"])
    # Hoeffding's inequality for an interval of length 2 R, and a failure for each of the clients.
    assert 8 * 2 * np.exp(-2 * 1664 * one["each"] ** 2 / 2**2) == pytest.approx(0.05)


def test_covering_radii_give_the_library_bound():
    """The number of balls is that of `rank_bound` at every radius."""
    rows = np.random.default_rng(0).normal(size=(60, 3))
    radii = theory.covering_radii(rows)
    for radius in (0.01, 0.3, 1.0, 2.0):
        assert (radii > radius).argmin() + 1 == rank_bound(radius, data=rows, largest_weight=1.0)
    assert len(radii) == 60


def test_truncation_errors_are_those_of_all_columns():
    """Columns that occur several times are not written out, but count as often as they occur."""
    rng = np.random.default_rng(0)
    matrix, counts = rng.normal(size=(5, 8)), rng.integers(1, 9, 8)
    every = np.repeat(matrix, counts, axis=1)
    left, sizes, right = np.linalg.svd(every, full_matrices=False)
    expected = [np.abs(every - (left[:, :k] * sizes[:k]) @ right[:k]).max() for k in range(6)]
    np.testing.assert_allclose(theory.truncation_errors(matrix, counts), expected, atol=1e-12)


def test_the_proof_of_proposition_1_bounds_steps_by_too_little():
    """One row with a positive label: the first step is larger than the smoothness, and no larger than Lipschitz's."""
    data = VerticalData((ClientData("only", np.ones((1, 1))),), np.array([1]), 2, np.zeros(1, bool))
    settings = SETTINGS.but(clients=1, batch_size=1)
    found = theory._proposition_1(data, settings, lambda _: np.zeros(1))
    assert theory.SMOOTHNESS < found["clients"][0]["largest step"] <= theory.LIPSCHITZ


def test_proposition_3_by_simulation_and_by_the_library():
    """Means of the models are the paper's; the difference of values is that of the game on the data."""
    rng = np.random.default_rng(0)
    features, labels, rho = rng.normal(size=(50, 3)), rng.normal(size=50), 0.3
    hessian = features.T @ features / 50
    optimum = np.linalg.solve(hessian, features.T @ labels / 50)
    first, second = theory.frequency_models(hessian, optimum, rho, 500, rng)
    np.testing.assert_allclose(first + second, np.tile(optimum, (500, 1)), atol=1e-9)
    standard_errors = first.std(axis=0) / np.sqrt(500)
    assert (np.abs(first.mean(axis=0) - optimum / (1 + rho)) < 4 * standard_errors).all()
    embeddings = np.stack([features @ first[0], features @ second[0]])
    values = shapley_values(np.zeros((2, 50)), embeddings, labels, "squared", "exact").values
    found = theory.value_differences(hessian, optimum, first, second)
    assert found[0] == pytest.approx(values[0] - values[1], rel=1e-9)


def test_the_right_bound_of_proposition_3_is_attained():
    """With the identity for a Hessian and rho = 0: the paper's bound is twice as large as the difference."""
    optimum = np.array([1.0, 2.0])
    models = theory.frequency_models(np.eye(2), optimum, 0.0, 2, np.random.default_rng(0))
    differences = theory.value_differences(np.eye(2), optimum, *models)
    np.testing.assert_allclose(differences, optimum @ optimum / 2, rtol=1e-9)
    row = {"mean": differences[0], "error": 0.0, "paper": optimum @ optimum, "right": optimum @ optimum / 2}
    assert theory.is_below(row, "paper")
    assert not theory.is_below(row, "right")


def test_dependent_columns_are_left_out():
    """The strongest column is taken once, although it is there twice; a constant one is never taken."""
    rng = np.random.default_rng(0)
    strong, weak = rng.normal(size=(2, 300))
    columns = np.column_stack([weak, np.ones(300), strong, 3 * strong + 1])
    found = theory.informative_columns(columns, strong + 0.1 * weak, 3)
    assert found.shape == (300, 2)
    np.testing.assert_allclose(np.abs(np.corrcoef(found.T[0], strong)[0, 1]), 1)


@pytest.mark.filterwarnings("ignore::verfedsv.CompletionWarning")  # few samples tell little
def test_clones_learn_faster_and_halves_learn_the_same():
    """A client in two halves trains the same model; a clone doubles the step of its columns."""
    found = theory._identical(few_samples(), SETTINGS.but(again=(0, 1)))
    assert found["two halves"]["loss"] == pytest.approx(found["0 more"]["loss"], abs=1e-12)
    assert found["1 more"]["loss"] < found["0 more"]["loss"]
    assert found["1 more"]["share"] > found["0 more"]["share"]


def test_proposition_1_is_false_for_a_linear_loss():
    """No matrix of lower rank is near the embeddings, though the paper's bound can be made 1 by choosing L."""
    n_rounds, eps = 20, 1e-4
    # f(h) = h, orthonormal rows, round t takes row t with the rate 1/t: the embedding of row i is -1/i from then on.
    matrix = -np.tril(np.ones((n_rounds, n_rounds - 1)), -1) / np.arange(1, n_rounds)
    least = np.linalg.svd(matrix, compute_uv=False)[-1]
    # Entries within eps: singular values within eps times the root of the number of entries.
    assert least > eps * np.sqrt(matrix.size)
    smoothness = eps / np.log(n_rounds)
    assert np.ceil(round(smoothness * np.log(n_rounds) / eps, 9)) == 1
    assert rank_bound(eps, n_rounds=n_rounds, lipschitz=1.0) >= n_rounds - 1
