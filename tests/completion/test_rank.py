import numpy as np
import pytest

from verfedsv import InputError, epsilon_rank, rank_bound


@pytest.mark.parametrize("rank", [1, 3, 7])
def test_the_rank_of_an_exact_matrix(rank):
    """A product of two factors has their rank."""
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(30, rank)) @ rng.normal(size=(rank, 50))
    assert epsilon_rank(matrix, 1e-6) == rank


def test_singular_values_below_the_threshold_do_not_count():
    """Those of at least eps times the largest are counted, as in the paper's experiments."""
    assert [epsilon_rank(np.diag([1.0, 0.5, 1e-3, 9e-4]), eps) for eps in (1e-3, 0.4, 0.6)] == [3, 2, 1]
    assert epsilon_rank(np.zeros((3, 4))) == 0


def train_with_falling_steps(n_rounds, data, labels):
    """Return the embeddings of one linear client, (rounds, samples), trained by single samples with steps of 1/t."""
    weights, rounds = np.zeros(data.shape[1]), []
    rng = np.random.default_rng(0)
    for t in range(1, n_rounds + 1):
        rounds.append(data @ weights)
        i = rng.integers(len(data))
        weights = weights + labels[i] * data[i] / (1 + np.exp(labels[i] * data[i] @ weights)) / t
    return np.array(rounds), max(np.linalg.norm(weights), 1.0)


@pytest.mark.parametrize("eps", [0.05, 0.2, 0.5])
def test_the_bound_on_rounds_is_kept(eps):
    """Rounds fall into as many groups as the bound says, each within eps of its first: a matrix of that rank."""
    rng = np.random.default_rng(1)
    data = rng.normal(size=(200, 6))
    data /= np.linalg.norm(data, axis=1, keepdims=True)
    matrix, _ = train_with_falling_steps(300, data, np.sign(data[:, 0]))
    groups, first = 0, None
    for row in matrix:
        if first is None or np.abs(row - first).max() > eps:
            groups, first = groups + 1, row
    assert groups <= rank_bound(eps, n_rounds=300)


def test_the_smallest_bound_is_returned():
    """Features, rounds and balls that cover the data each bound the rank."""
    data = np.repeat(np.eye(3), 5, axis=0)
    assert rank_bound(0.1, n_features=4) == 4
    assert rank_bound(10.0, n_features=4, n_rounds=2) == 1
    assert rank_bound(0.1, data=data, largest_weight=1.0) == 3
    assert rank_bound(2.0, data=data, largest_weight=1.0) == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: epsilon_rank([1.0, 2.0]), "two axes"),
        (lambda: epsilon_rank([[np.nan, 2.0]]), "finite"),
        (lambda: epsilon_rank([[1.0]], eps=1.5), "between 0 and 1"),
        (lambda: rank_bound(0.1), "give n_features"),
        (lambda: rank_bound(0.1, data=[1.0], largest_weight=1.0), r"\(samples, features\)"),
        (lambda: rank_bound(0.1, data=[[np.nan, 1.0]], largest_weight=1.0), "of finite numbers"),
    ],
)
def test_bad_input(call, message):
    """Each mistake is named."""
    with pytest.raises(InputError, match=message):
        call()
