from math import comb

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import beta as beta_distribution

import verfedsv
from tests.games import LOSSES, random_game, values_by_definition
from verfedsv.errors import InputError
from verfedsv.shapley.semivalues import SEMIVALUES

# The weight of one coalition of a given size among the others, from the definition of each semivalue.
DEFINITIONS = {
    "shapley": ("shapley", lambda size, n: 1 / ((n + 1) * comb(n, size))),
    "banzhaf": ("banzhaf", lambda _size, n: 0.5**n),
    "leave-one-out": ("leave-one-out", lambda size, n: float(size == n)),
    "beta(4, 1)": (verfedsv.Beta(4, 1), None),
    "beta(1, 16)": (verfedsv.Beta(1, 16), None),
    "beta(0.5, 2)": (verfedsv.Beta(0.5, 2), None),
}


def definition(name):
    """Return the semivalue as an argument, and its weights by quadrature over t for Beta (Kwon and Zou, equation 5)."""
    semivalue, weight = DEFINITIONS[name]
    if weight is None:
        # Inclusion with probability t, t from Beta(b, a): the integral of t^s (1 - t)^(n - s).
        density = beta_distribution(semivalue.beta, semivalue.alpha).pdf

        def weight(size, n):
            return quad(lambda t: t**size * (1 - t) ** (n - size) * density(t), 0, 1, limit=200)[0]

    return semivalue, weight


@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_exact_agrees_with_the_definition(name, loss):
    """Exact semivalues are the weighted sums of their definitions."""
    semivalue, weight = definition(name)
    game = random_game(loss, n_clients=5, step=2.0)
    result = verfedsv.shapley_values(*game.arguments, method="exact", semivalue=semivalue)
    np.testing.assert_allclose(result.values, values_by_definition(game, weight), rtol=1e-6, atol=1e-12)
    assert result.semivalue == name


@pytest.mark.parametrize("antithetic", [False, True])
@pytest.mark.parametrize("name", DEFINITIONS)
@pytest.mark.parametrize("loss", LOSSES)
def test_sampled_agrees_within_its_errors(name, loss, antithetic):
    """Sampled semivalues are within their confidence bounds, and within five standard errors, of the exact ones."""
    semivalue, _ = definition(name)
    game = random_game(loss, n_clients=6, step=2.0)
    exact = verfedsv.shapley_values(*game.arguments, method="exact", semivalue=semivalue)
    sampled = verfedsv.shapley_values(
        *game.arguments, method="permutation", semivalue=semivalue, n_permutations=4000, antithetic=antithetic
    )
    difference = np.abs(sampled.values - exact.values)
    assert (difference <= sampled.errors + exact.errors).all()
    assert (difference <= 5 * sampled.standard_errors + exact.errors).all()


@pytest.mark.parametrize("name", [n for n in DEFINITIONS if n != "shapley"])
def test_auto_enumerates_few_clients(name):
    """For semivalues without a closed form the default is exact if that is fast."""
    game = random_game("logistic", n_clients=6)
    assert verfedsv.shapley_values(*game.arguments, semivalue=definition(name)[0]).method == "exact"


def test_auto_samples_many_clients():
    """With many clients the default samples to the tolerance, but leave-one-out stays exact at any number."""
    game = random_game("logistic", n_clients=40, n_samples=200, step=1.0)
    banzhaf = verfedsv.shapley_values(*game.arguments, semivalue="banzhaf", tolerance=0.5)
    assert (banzhaf.method, banzhaf.tolerance_met) == ("permutation", True)
    assert banzhaf.errors.max() <= 0.5 * np.abs(banzhaf.values).max()
    left_out = verfedsv.shapley_values(*game.arguments, semivalue="leave-one-out")
    everybody = game.current.sum(axis=0)
    sign = np.where(game.labels > 0, 1, -1)

    def loss(x):
        return np.logaddexp(0, -sign * x).mean()

    expected = [loss(everybody - game.current[m] + game.previous[m]) - loss(everybody) for m in range(40)]
    np.testing.assert_allclose(left_out.values, expected, rtol=1e-10)
    assert left_out.method == "exact"


@pytest.mark.parametrize("semivalue", [*SEMIVALUES.values(), verfedsv.Beta(3, 7)])
@pytest.mark.parametrize("n_others", [0, 1, 5, 24])
def test_weights_of_all_coalitions_sum_to_one(semivalue, n_others):
    """Every semivalue is a mean: a client that adds 1 to every coalition is worth 1."""
    weights = semivalue.size_weights(n_others)
    assert sum(comb(n_others, s) * w for s, w in enumerate(weights)) == pytest.approx(1)


def test_beta_of_one_and_one_is_shapley():
    """Beta(1, 1) is the Shapley value, with its closed form."""
    game = random_game("logistic", step=0.1)
    result = verfedsv.shapley_values(*game.arguments, semivalue=verfedsv.Beta(1, 1))
    assert (result.method, result.semivalue) == ("closed-form", "shapley")


@pytest.mark.parametrize("parameters", [(0, 1), (1, -1), (float("nan"), 1), ("a", 1), (float("inf"), 1)])
def test_beta_takes_positive_numbers(parameters):
    """Parameters that define no distribution are refused."""
    with pytest.raises(InputError, match="must be a positive number"):
        verfedsv.Beta(*parameters)


@pytest.mark.parametrize(("alpha", "beta"), [(1, 1), (16, 1), (0.1, 0.7), (1000, 3)])
@pytest.mark.parametrize("n_others", [0, 1, 24])
def test_weights_are_correctly_rounded(alpha, beta, n_others):
    """To one unit in the last place, as the errors of exact values do not allow for more."""
    with mpmath.workdps(50):
        a, b = mpmath.mpf(alpha), mpmath.mpf(beta)
        exact = [mpmath.beta(size + b, n_others - size + a) / mpmath.beta(a, b) for size in range(n_others + 1)]
        found = [mpmath.mpf(float(weight)) for weight in verfedsv.Beta(alpha, beta).size_weights(n_others)]
        assert all(abs(one - other) <= other * 2**-53 for one, other in zip(found, exact, strict=True))
