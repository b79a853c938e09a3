import numpy as np
import pytest

from verfedsv.shapley.confidence import radius_of_mean, radius_of_sum

N_TRIALS = 20_000


@pytest.mark.parametrize("probability", [0.5, 0.1, 0.02])
@pytest.mark.parametrize("n_draws", [10, 100, 1000])
def test_means_of_coins_are_covered(probability, n_draws):
    """Means of 0 and 1 are within the bound in all of 20,000 trials; a quarter of the bound would not hold."""
    rng = np.random.default_rng(0)
    means = rng.binomial(n_draws, probability, N_TRIALS) / n_draws
    variance = means * (1 - means) * n_draws / (n_draws - 1)
    radius = np.array([radius_of_mean(np.array([v]), np.array([1.0]), n_draws, 0)[0] for v in np.unique(variance)])
    radius = radius[np.searchsorted(np.unique(variance), variance)]
    error = np.abs(means - probability)
    assert (error <= radius).all()
    assert n_draws < 1000 or probability < 0.5 or (error > radius / 4).any()


@pytest.mark.parametrize("probability", [0.5, 0.05])
@pytest.mark.parametrize("n_terms", [10, 1000])
def test_sums_of_unequal_coins_are_covered(probability, n_terms):
    """The same for sums of terms of different sizes, each the mean of two copies."""
    rng = np.random.default_rng(1)
    sizes = rng.random(n_terms)
    for _ in range(2000):
        a, b = (rng.random((2, n_terms)) < probability) * sizes
        radius = radius_of_sum(np.array([(((a - b) / 2) ** 2).sum()]), np.array([sizes.max()]), 0)[0]
        assert abs(((a + b) / 2).sum() - probability * sizes.sum()) <= radius


def test_later_looks_and_more_clients_ask_for_more():
    """The bound grows with every look and with the number of clients it must hold for together."""
    one = radius_of_mean(np.ones(1), np.ones(1), 100, 0)[0]
    assert radius_of_mean(np.ones(1), np.ones(1), 100, 1)[0] > one
    assert radius_of_mean(np.ones(50), np.ones(50), 100, 0)[0] > one
    assert radius_of_sum(np.ones(1), np.ones(1), 3)[0] > radius_of_sum(np.ones(1), np.ones(1), 2)[0]


def test_the_sum_bound_is_that_of_its_proof():
    """Plain numbers through the two inequalities, with l = log(3 / 0.0005) for one client at the first look."""
    log = np.log(3 / 0.0005)
    deviation = np.sqrt(4.0 + 0.25 * log / 2) + 0.5 * np.sqrt(log / 2)
    expected = deviation * np.sqrt(2 * log) + 0.5 * log / 3
    assert radius_of_sum(np.array([4.0]), np.array([0.5]), 0)[0] == pytest.approx(expected, rel=1e-12)
