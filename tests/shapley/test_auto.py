import warnings

import numpy as np
import pytest

import verfedsv
from tests.games import LOSSES, random_game
from verfedsv.data import load_adult_round
from verfedsv.errors import ToleranceWarning
from verfedsv.losses import Logistic
from verfedsv.shapley import plan
from verfedsv.shapley.closed_form import third_order
from verfedsv.shapley.confidence import radius_of_sum
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.stratified import _fewest_draws, draw


def exact_values(game):
    return verfedsv.shapley_values(*game.arguments, method="exact").values


@pytest.fixture
def never_enumerate(monkeypatch):
    """Make small games take the route of large ones."""
    monkeypatch.setattr(plan, "ENUMERATION_LIMIT", 0)


def test_small_steps_need_the_closed_form_only():
    """If the certified error is within the tolerance, nothing else is done."""
    result = verfedsv.shapley_values(*random_game("logistic", step=0.05).arguments)
    assert (result.method, result.error_kind, result.tolerance_met) == ("closed-form", "certified", True)
    assert result.standard_errors is None


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_few_clients_are_enumerated(loss):
    """If it is not, the samples that cause it are enumerated, and the error stays certified."""
    game = random_game(loss, n_clients=6, n_samples=300, step=1.5)
    result = verfedsv.shapley_values(*game.arguments, tolerance=1e-4)
    assert (result.method, result.error_kind, result.tolerance_met) == ("closed-form+exact", "certified", True)
    expected = exact_values(game)
    assert np.abs(result.values - expected).max() <= result.errors.max() <= 1e-4 * np.abs(expected).max()


@pytest.mark.usefixtures("never_enumerate")
@pytest.mark.parametrize("loss", ["logistic", "softmax"])
@pytest.mark.parametrize("step", [1.0, 3.0, 10.0])
def test_many_clients_are_sampled(loss, step):
    """If enumeration takes too long, the hard samples are sampled, and the error is a confidence bound that holds."""
    game = random_game(loss, n_clients=7, n_samples=400, step=step)
    result = verfedsv.shapley_values(*game.arguments, tolerance=0.02, n_permutations=20_000)
    assert (result.method, result.error_kind, result.tolerance_met) == ("closed-form+sampling", "confidence", True)
    expected = exact_values(game)
    assert (np.abs(result.values - expected) <= result.errors).all()
    assert result.errors.max() <= 0.02 * np.abs(result.values).max()


@pytest.mark.usefixtures("never_enumerate")
def test_only_the_samples_that_cause_the_error_are_sampled():
    """One sample in a hundred jumps: sampling costs a hundredth of what it would cost on all samples."""
    game = random_game("logistic", n_clients=10, n_samples=2000, step=0.05)
    game.current[:, ::100] += 40 * (game.current - game.previous)[:, ::100]
    result = verfedsv.shapley_values(*game.arguments, tolerance=0.1, n_permutations=100_000)
    assert (result.method, result.tolerance_met) == ("closed-form+sampling", True)
    assert (np.abs(result.values - exact_values(game)) <= result.errors).all()
    round_game = RoundGame.from_arrays(*game.arguments)
    few = draw(round_game, np.arange(0, 2000, 100), 1, (0,))
    everybody = draw(round_game, np.arange(2000), 1, (0,))
    assert few.n_evaluations <= everybody.n_evaluations / 80


@pytest.mark.usefixtures("never_enumerate")
def test_confidence_bounds_cover():
    """The 99.9 % bounds of all clients held for each of 200 seeds, with 30 samples and one draw."""
    game = random_game("logistic", n_clients=5, n_samples=30, step=4.0)
    expected = exact_values(game)
    round_game = RoundGame.from_arrays(*game.arguments)
    for seed in range(200):
        part = draw(round_game, np.arange(30), 1, (seed,))
        assert (np.abs(part.values - expected) <= part.bound()).all()


def test_standard_errors_are_honest():
    """Over 100 seeds the errors, in units of their standard errors, have mean 0 and variance 1."""
    game = random_game("softmax", n_clients=4, n_samples=2000, step=2.0)
    expected = exact_values(game)
    round_game = RoundGame.from_arrays(*game.arguments)
    parts = [draw(round_game, np.arange(2000), 1, (s,)) for s in range(100)]
    scores = np.array([(part.values - expected) / np.sqrt(part.variance) for part in parts])
    assert np.abs(scores.mean(axis=0)).max() < 4 / np.sqrt(100)
    assert 0.75 < np.var(scores) < 1.3


def test_sampling_remainders_beats_sampling_utilities():
    """On a real jump, four permutations of each sample are worth more than 10,000 of all samples together."""
    jump = load_adult_round(8, jump=True)
    arguments = jump.previous, jump.current, jump.labels
    game = RoundGame.from_arrays(*arguments)
    part = draw(game, np.arange(game.n_samples), 1, (0,))
    plain = verfedsv.shapley_values(*arguments, method="permutation", n_permutations=1000)
    ratio = plain.standard_errors.max() / np.sqrt(part.variance.max())
    assert ratio**2 * 1000 > 10_000


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("step", [1e-6, 1e-2, 1.0, 100.0])
@pytest.mark.parametrize("tolerance", [1e-8, 1e-3, 0.5])
def test_the_tolerance_is_met_or_not_and_said_so(loss, step, tolerance):
    """For every step, either the errors are within the tolerance or a warning says that they are not."""
    game = random_game(loss, n_clients=5, n_samples=60, step=step)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ToleranceWarning)
        result = verfedsv.shapley_values(*game.arguments, tolerance=tolerance)
    met = bool(result.errors.max() <= tolerance * np.abs(result.values).max())
    assert met == result.tolerance_met == (not caught)
    expected = exact_values(game)
    assert (np.abs(result.values - expected) <= result.errors + 1e-12 * (1 + np.abs(expected))).all()


@pytest.mark.parametrize("n_clients", [3, 30])
def test_what_is_only_rounding_is_left_to_the_closed_form(n_clients):
    """If rounding alone exceeds the tolerance, nothing else is tried: the closed form has the smallest error."""
    rng = np.random.default_rng(0)
    previous = np.full((n_clients, 4), 2.0**33)
    current = previous + np.round(rng.normal(size=(n_clients, 4)) * 8) * 2.0**-17
    arguments = previous, current, [0, 1, 0, 1]
    closed = verfedsv.shapley_values(*arguments, method="closed-form", offset=-previous.sum(axis=0))
    with pytest.warns(ToleranceWarning, match="; allow a larger tolerance"):
        result = verfedsv.shapley_values(*arguments, offset=-previous.sum(axis=0), tolerance=1e-12)
    assert (result.method, result.error_kind) == ("closed-form", "certified")
    np.testing.assert_array_equal(result.errors, closed.errors)


@pytest.mark.slow
def test_the_jump_of_adult():
    """From zero to the trained model in one round, 20 clients: tolerance 1e-3, verified against all coalitions."""
    jump = load_adult_round(20, jump=True)
    arguments = jump.previous[:, ::8], jump.current[:, ::8], jump.labels[::8]
    result = verfedsv.shapley_values(*arguments, tolerance=1e-3)
    exact = verfedsv.shapley_values(*arguments, method="exact")
    assert result.tolerance_met
    assert np.abs(result.values - exact.values).max() <= 1e-3 * exact.values.max()
    assert (np.abs(result.values - exact.values) <= result.errors).all()


def test_draws_are_not_more_than_the_bound_takes():
    """Only samples whose single draws may be far off are drawn more often."""
    variance, largest = np.full(20, 1e-8), np.concatenate([np.full(9000, 1e-5), np.full(1000, 1e-3)])
    usual, apart = _fewest_draws(variance, largest, error=3e-3, most=1000)
    draws = np.maximum(usual, np.ceil(largest / apart))
    bound = radius_of_sum(variance * (1 / draws).mean(), np.full(20, (largest / draws).max()), look=0).max()
    assert bound <= 3e-3
    alike = next(n for n in range(1, 1001) if radius_of_sum(variance / n, np.full(20, 1e-3 / n), look=0).max() <= 3e-3)
    assert draws.sum() < 0.5 * alike * len(largest)


def test_values_of_tiny_steps_are_not_moved_by_the_rounding_of_the_utility():
    """The loss falls by a difference of rounded losses; the closed form of the values is far more accurate."""
    rng = np.random.default_rng(3)
    previous, labels = rng.normal(size=(5, 257, 3)), rng.normal(size=(257, 3))
    current = previous + 1e-6 * rng.normal(size=previous.shape)
    result = verfedsv.shapley_values(previous, current, labels, "squared")
    raw = third_order(RoundGame.from_arrays(previous, current, labels, "squared"))
    assert abs(raw.utility - raw.values.sum()) > raw.errors.sum()
    np.testing.assert_array_equal(result.values, raw.values)
    np.testing.assert_array_equal(result.errors, raw.errors)


def test_sampling_counts_the_losses_that_it_evaluates(monkeypatch):
    """All but the two for each sample by which the control variate is scaled."""
    rng = np.random.default_rng(0)
    previous, change = rng.normal(size=(2, 6, 100))
    game = RoundGame.from_arrays(previous, previous + change, rng.integers(0, 2, 100), n_threads=1)
    counted, value = [], Logistic.value

    def counting(self, x, labels):
        result = value(self, x, labels)
        counted.append(result.size)
        return result

    monkeypatch.setattr(Logistic, "value", counting)
    found = draw(game, np.arange(100), 5, (0, 0))
    assert sum(counted) == found.n_evaluations + 2 * 100
