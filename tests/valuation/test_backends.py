import pickle
from dataclasses import replace

import numpy as np
import pytest

from tests.valuation.test_values import Asynchronous
from verfedsv import InputError, value
from verfedsv.losses import get_loss
from verfedsv.shapley import closed_form, factor_sums
from verfedsv.shapley.estimators import ESTIMATORS
from verfedsv.shapley.moments import BoundConstants
from verfedsv.shapley.plan import Plan
from verfedsv.valuation.backends import CompiledLoops
from verfedsv.valuation.chunks import Change, Chunk, Round


@pytest.mark.parametrize("method", ["closed-form", "exact", "auto"])
def test_the_size_of_a_chunk_is_the_backends_own(monkeypatch, method):
    """Chunks of seven samples add up to the values of one chunk of all, with errors of the same size."""
    recorder = Asynchronous("softmax", n_samples=40, offset=True).record()
    whole = value(recorder, method)
    monkeypatch.setattr(CompiledLoops, "chunk_size", lambda *_: 7)
    parts = value(recorder, method)
    assert (np.abs(parts.values - whole.values) <= parts.errors + whole.errors).all()
    np.testing.assert_allclose(parts.losses, whole.losses, rtol=1e-12)
    if method != "auto":  # which chooses its samples chunk by chunk
        np.testing.assert_allclose(parts.values, whole.values, rtol=1e-9, atol=1e-14)
        np.testing.assert_allclose(parts.errors, whole.errors, rtol=0.5, atol=1e-14)


def test_backends_and_plans_can_be_sent_to_other_processes():
    """Both are pickled with each chunk."""
    plan = Plan(ESTIMATORS["auto"], n_samples=10, n_permutations=5)
    backend, again = pickle.loads(pickle.dumps((CompiledLoops(), plan)))  # noqa: S301  # our own
    assert isinstance(backend, CompiledLoops)
    assert type(again.estimator) is type(plan.estimator)


def factored_chunk(n_classes, n_samples, scale, server):
    """Return a chunk of completed embeddings: client 3 is absent at times, 4 is as 0, 5 never moves."""
    rng = np.random.default_rng(n_classes * n_samples)
    loss = get_loss("logistic" if n_classes == 1 else "softmax")
    labels = loss.encode(rng.integers(0, max(2, n_classes), n_samples), n_classes)
    factors = {player: rng.normal(size=(n_samples, rank)) for player, rank in enumerate((3, 1, 6, 2))}
    factors[4] = factors[0]
    if server:
        factors[6] = np.ones((n_samples, 1))
    weights = {player: np.zeros((n_classes, own.shape[1])) for player, own in factors.items()}
    rounds = []
    for t in range(12):
        moving = [player for player in (0, 1, 2, 3, 6) if player in factors and not (player == 3 and t % 3 == 1)]
        for player in moving if t != 7 else []:
            weights[player] = weights[player] + scale * rng.normal(size=weights[player].shape)
        weights[4] = weights[0]
        rounds.append(Round([Change(player, None, weights[player]) for player in sorted({*moving, 4})]))
    table = np.zeros((7, n_samples, n_classes))
    table[5] = rng.normal(size=(n_samples, n_classes))
    return Chunk(loss, labels, 6, table, rounds, factors)


@pytest.mark.parametrize("server", [False, True])
@pytest.mark.parametrize("scale", [1e-3, 1.0])
@pytest.mark.parametrize("n_samples", [1, 7, 64, 131])
@pytest.mark.parametrize("n_classes", [1, 2, 7])
def test_completed_rounds_are_valued_as_games(n_classes, n_samples, scale, server):
    """The loop over factors agrees with the games of the rounds; equal clients are equal, unmoved ones exactly 0."""
    chunk = factored_chunk(n_classes, n_samples, scale, server)
    plan = Plan(ESTIMATORS["closed-form"], n_samples, n_permutations=1)
    found, parts = CompiledLoops().value(chunk, plan), replace(chunk)
    vars(parts)["weights"] = None
    expected = CompiledLoops().value(parts, plan)
    size = np.abs(expected.values).max()
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-12, atol=1e-14 * size)
    np.testing.assert_allclose(found.utility, expected.utility, rtol=1e-12, atol=1e-14 * size)
    np.testing.assert_allclose(found.errors, expected.errors, rtol=0.2, atol=1e-16 * size)
    np.testing.assert_array_equal(found.values[:, 4], found.values[:, 0])
    assert not found.values[7].any()
    assert not found.values[1::3, 3].any()
    assert not found.values[:, 5].any()
    assert not found.errors[:, 5].any()
    assert found.values[:, 6].any() == server
    assert found.methods == expected.methods
    assert found.n_evaluations >= expected.n_evaluations


@pytest.mark.parametrize("n_classes", [1, 3])
def test_many_rounds_are_valued_in_several_calls(monkeypatch, n_classes):
    """Few samples at a time, and the sums are the same."""
    chunk, plan = (
        factored_chunk(n_classes, 300, 0.1, server=True),
        Plan(ESTIMATORS["closed-form"], 300, n_permutations=1),
    )
    at_once = CompiledLoops().value(chunk, plan)
    monkeypatch.setattr(closed_form, "MOST_NUMBERS", 1)
    found = CompiledLoops().value(chunk, plan)
    np.testing.assert_allclose(found.values, at_once.values, rtol=1e-13, atol=1e-15)
    np.testing.assert_allclose(found.errors, at_once.errors, rtol=1e-12)
    assert found.n_evaluations == at_once.n_evaluations


@pytest.mark.parametrize("wrong", [np.nan, np.inf, 1e70])
@pytest.mark.parametrize("n_classes", [1, 3])
def test_the_loop_over_rounds_ends_where_an_embedding_is_wrong(n_classes, wrong):
    """The decrease of that round is NaN, and later rounds are not valued."""
    chunk = factored_chunk(n_classes, 20, 1.0, server=False)
    chunk.rounds[4].changes[1].values[0, 0] = wrong
    loop = factor_sums.sum_logistic_rounds if n_classes == 1 else factor_sums.sum_softmax_rounds
    _, _, decrease = loop(chunk.factored(), chunk.labels, 0, 20, BoundConstants.of(chunk.loss, 6, 20, n_classes))
    assert np.isfinite(decrease[:4]).all()
    assert np.isnan(decrease[4])
    assert not decrease[5:].any()


@pytest.mark.parametrize("n_classes", [1, 3])
def test_completed_embeddings_that_are_too_large_are_refused(n_classes):
    """With the same message as in a single round."""
    chunk = factored_chunk(n_classes, 20, 1.0, server=False)
    chunk.rounds[4].changes[1].values[0, 0] = 1e70
    with pytest.raises(InputError, match="must sum to less than 1e\\+60"):
        CompiledLoops().value(chunk, Plan(ESTIMATORS["auto"], 20, n_permutations=1))
