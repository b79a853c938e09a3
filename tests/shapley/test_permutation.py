from itertools import combinations

import numpy as np
import pytest

import verfedsv
from tests.games import LOSSES, Game, random_game, utility, values_by_definition
from verfedsv.shapley.estimators import get_estimator
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.permutation import default_permutations
from verfedsv.shapley.plan import Plan


def sample(game, **options):
    return verfedsv.shapley_values(*game.arguments, method="permutation", **options)


@pytest.mark.parametrize("loss", LOSSES)
def test_is_unbiased_with_honest_standard_errors(loss):
    """Over 200 seeds the errors, in units of their standard errors, have mean 0 and variance 1."""
    game = random_game(loss, n_clients=4, n_samples=10, step=2.0)
    expected = values_by_definition(game)
    scores = []
    for seed in range(200):
        result = sample(game, n_permutations=100, seed=seed)
        scores.append((result.values - expected) / result.standard_errors)
    assert np.abs(np.mean(scores, axis=0)).max() < 4 / np.sqrt(200)
    assert 0.75 < np.var(scores) < 1.3


def test_confidence_bounds_cover():
    """The 99.9 % bounds of all clients together held for each of 300 seeds, with as few as 20 permutations."""
    game = random_game("logistic", n_clients=5, n_samples=3, step=3.0)
    expected = values_by_definition(game)
    for seed in range(300):
        result = sample(game, n_permutations=20, seed=seed)
        assert (np.abs(result.values - expected) <= result.errors).all()


def test_default_is_the_number_of_the_paper():
    """K = ceil(100 M ln M) permutations, each of M + 1 utilities."""
    game = random_game("logistic", n_clients=5, n_samples=3)
    assert default_permutations(5) == 805
    assert default_permutations(14) == 3695
    assert sample(game).n_evaluations == 805 * 6


def test_reproducible_from_the_seed():
    """The same seed gives the same values, another seed others."""
    game = random_game("logistic", n_clients=6, step=2.0)
    np.testing.assert_array_equal(sample(game, seed=3).values, sample(game, seed=3).values)
    assert (sample(game, seed=3).values != sample(game, seed=4).values).all()


def test_antithetic_pairs_lower_the_error():
    """Reversed permutations cancel the even orders: at the same cost, a fraction of the standard error."""
    game = random_game("logistic", n_clients=8, n_samples=100, step=0.5)
    plain, paired = sample(game, n_permutations=2000), sample(game, n_permutations=2000, antithetic=True)
    assert paired.n_evaluations == plain.n_evaluations
    assert paired.standard_errors.max() < 0.2 * plain.standard_errors.max()


def test_stops_at_the_requested_standard_error():
    """Sampling ends with the first batch in which every standard error is small enough."""
    game = random_game("logistic", n_clients=8, n_samples=100, step=1.0)
    full = sample(game, n_permutations=20_000)
    target = 3 * full.standard_errors.max()
    early = sample(game, n_permutations=20_000, standard_error=target)
    assert early.standard_errors.max() <= target
    assert early.n_evaluations < full.n_evaluations / 5


def test_one_permutation_is_two():
    """A standard error needs two draws, so one permutation is taken as two."""
    game = random_game("logistic", n_clients=3)
    result = sample(game, n_permutations=1)
    assert result.n_evaluations == 2 * 4
    assert np.isfinite(result.standard_errors).all()


@pytest.mark.parametrize(("own", "other", "start"), [(1.0, 80.0, -40.0), (1e-3, 0.1, -0.05)])
def test_the_bound_allows_for_draws_that_were_never_made(own, other, start):
    """Two equal draws show no variance: the error is that of the range of all draws, which is nearly attained here.

    Its factor is that of Maurer and Pontil for two draws, two clients and the first look.
    """
    previous, current = np.array([[start], [0.0]]), np.array([[start + other], [own]])
    game = Game(previous, current, np.array([1]), "logistic")
    first, last = (utility(game, frozenset(s)) for s in ({1}, {0}))
    everybody = utility(game, frozenset({0, 1}))
    draws_of_own = abs(first - (everybody - last))
    results = [sample(game, n_permutations=2, seed=seed) for seed in range(10)]
    errors = [result.errors[1] for result in results if not result.standard_errors.any()]
    assert len(errors) > 1
    assert min(errors) >= 7 * np.log(3 * 2 * 2 / 1e-3) / 3 * 0.98 * draws_of_own


def test_every_batch_of_every_call_is_a_look_of_its_own():
    """Where draws do not vary, errors are in proportion to the logarithm of one over the failure probability.

    600 permutations are three batches, so call 0 ends with look 2, and call 3 with look 11.
    """
    current = np.eye(3)[:, np.newaxis]  # each client moves a class of its own: no order matters
    game = RoundGame.from_arrays(np.zeros_like(current), current, np.ones((1, 3)), "squared")
    plan = Plan(get_estimator("permutation"), 1, 600)
    first, later = (plan.estimator.estimate(game, plan, call).errors for call in (0, 3))
    logs = [np.log(3 * 3 * (look + 1) * (look + 2) / 1e-3) for look in (2, 11)]
    np.testing.assert_allclose(later / first, logs[1] / logs[0], rtol=1e-9)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_single_client_has_the_whole_change(loss):
    """No order of clients changes what it adds, also beside clients that did not move: only rounding is left."""
    game = random_game(loss, n_clients=1, step=5.0)
    idle = np.zeros_like(game.previous)
    for n_idle in (0, 2):
        previous, current = (np.concatenate([h, *[idle] * n_idle]) for h in (game.previous, game.current))
        result = sample(Game(previous, current, game.labels, loss))
        np.testing.assert_allclose(result.values[0], utility(game, frozenset({0})), rtol=1e-12)
        assert result.errors[0] < 1e-11
        assert (result.errors[1:] == 0).all()


@pytest.mark.parametrize("step", [1e-3, 0.3, 5.0])
@pytest.mark.parametrize("loss", LOSSES)
def test_the_interval_contains_all_draws(loss, step):
    """What a client adds to any coalition of the others, by the definition, differs by at most the stated width."""
    for seed in range(10):
        game = random_game(loss, n_clients=4, n_samples=2, step=step, seed=seed)
        game.current[:2] += np.array([1e-3, 50.0]).reshape(2, *[1] * (game.current.ndim - 1)) * step  # of unequal size
        width = RoundGame.from_arrays(*game.arguments).width_of_draws()
        for m in range(4):
            others = [frozenset(s) for n in range(4) for s in combinations({0, 1, 2, 3} - {m}, n)]
            added = [utility(game, s | {m}) - utility(game, s) for s in others]
            assert np.ptp(added) <= width[m] * (1 + 1e-9)
