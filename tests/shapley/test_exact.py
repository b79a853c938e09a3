import tracemalloc

import numpy as np
import pytest

import verfedsv
from tests.games import LOSSES, random_game, values_by_definition
from verfedsv.shapley.exact import enumerate_coalitions
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.semivalues import BANZHAF, LEAVE_ONE_OUT, SHAPLEY


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("n_clients", [1, 2, 5, 7, 9])
def test_agrees_with_the_definition(loss, n_clients):
    """Enumeration gives the Shapley value by its definition, to rounding, and certifies no more than that."""
    game = random_game(loss, n_clients, offset=True, step=2.0)
    result = verfedsv.shapley_values(*game.arguments, method="exact", offset=game.offset)
    expected = values_by_definition(game)
    np.testing.assert_allclose(result.values, expected, rtol=1e-11, atol=1e-14)
    assert result.errors.max() < 1e-9 * np.abs(expected).max()
    assert result.n_evaluations == 2**n_clients


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_segments_of_coalitions_fit_together(loss):
    """With more clients than one segment of coalitions holds, the values are those of the same game without them."""
    small = random_game(loss, n_clients=6, n_samples=4, step=1.0)
    idle = np.zeros((12, *small.previous.shape[1:]))
    previous, current = np.concatenate([idle, small.previous]), np.concatenate([idle, small.current])
    result = verfedsv.shapley_values(previous, current, small.labels, loss, "exact")
    np.testing.assert_array_equal(result.values[:12], 0)
    np.testing.assert_allclose(result.values[12:], values_by_definition(small), rtol=1e-11)


@pytest.mark.parametrize("semivalue", [SHAPLEY, BANZHAF, LEAVE_ONE_OUT], ids=str)
def test_samples_can_be_chosen(semivalue):
    """The values of two halves of the samples add up to those of the whole round."""
    game = RoundGame.from_arrays(*random_game("logistic", n_clients=5, n_samples=50).arguments)
    order = np.random.default_rng(0).permutation(50)
    halves = [enumerate_coalitions(game, semivalue, np.sort(part)).values for part in (order[:20], order[20:])]
    np.testing.assert_allclose(sum(halves), enumerate_coalitions(game, semivalue).values, rtol=1e-12)


def test_memory_is_that_of_the_utilities():
    """Nothing of the size coalitions x samples is ever held: 2^16 coalitions of 4,000 samples take a few megabytes."""
    game = random_game("logistic", n_clients=16, n_samples=4000)
    verfedsv.shapley_values(*game.arguments, method="exact")
    tracemalloc.start()
    verfedsv.shapley_values(*game.arguments, method="exact", n_threads=2)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 16 * 8 * 2**16


@pytest.mark.parametrize("n_clients", [24])
@pytest.mark.slow
def test_many_clients(n_clients):
    """Sixteen million coalitions, against the closed form within its certified error."""
    game = random_game("logistic", n_clients, n_samples=3, step=0.05)
    result = verfedsv.shapley_values(*game.arguments, method="exact")
    closed = verfedsv.shapley_values(*game.arguments, method="closed-form")
    assert (np.abs(result.values - closed.values) <= result.errors + closed.errors).all()
