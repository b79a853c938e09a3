"""Trainings of more clients than can be enumerated, held to the definition by lowering the limit."""

from dataclasses import replace

import numpy as np
import pytest

from tests.valuation.test_values import Asynchronous
from verfedsv import Recorder, Valuation, value
from verfedsv.shapley import plan, stratified
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.plan import Allowance
from verfedsv.shapley.stratified import _cap, draw_enough

pytestmark = pytest.mark.filterwarnings("ignore::verfedsv.errors.ToleranceWarning")


@pytest.fixture(autouse=True)
def never_enumerate(monkeypatch):
    monkeypatch.setattr(plan, "ENUMERATION_LIMIT", 0)


@pytest.mark.parametrize("loss", ["logistic", "softmax"])
def test_sampled_values_are_within_their_errors(loss):
    """Of all rounds together and of each: for ten trainings of seven clients, against the definition."""
    for seed in range(10):
        training = Asynchronous(loss, n_clients=7, n_samples=30, n_rounds=5, step=2.0, seed=seed)
        result = value(training.record(), seed=seed)
        expected = training.by_definition()
        assert result.method == "closed-form+sampling"
        assert (np.abs(result.values - expected.mean(axis=0)) <= result.estimator_errors).all()
        assert (np.abs(result.per_round - expected) <= result.per_round_errors).all()
        # Each permutation adds up to the decrease of the loss.
        np.testing.assert_allclose(result.per_round.sum(axis=1), expected.sum(axis=1), atol=1e-12)


def test_errors_average_out_over_rounds():
    """The error of the mean over many rounds is far below the mean of their errors; the true one is too."""
    training = Asynchronous(n_clients=7, n_samples=100, n_rounds=60, step=1.5)
    result = value(training.record(), tolerance=0.2)
    true = np.abs(result.values - training.by_definition().mean(axis=0))
    assert result.methods == ("closed-form", "sampling")
    assert (true <= result.estimator_errors).all()
    assert result.estimator_errors.max() < result.per_round_errors.mean(axis=0).max() / 3


def test_a_sample_that_jumps_is_drawn_more_often():
    """One sample in 500 moves a hundred times as far; without more draws it alone would make the error."""
    rng = np.random.default_rng(0)
    current = rng.normal(size=(12, 500, 1))
    current[:, 7] *= 100
    game = RoundGame.from_arrays(np.zeros_like(current), current, rng.integers(0, 2, 500))
    plain, more = (
        draw_enough(game, np.arange(500), Allowance(0.0, 1e9, largest, 0.0), max_permutations=128, seed=0, call=0)
        for largest in (1e9, 1e-3)
    )
    assert more.largest.max() < 1.1e-3 < plain.largest.max() / 100


def test_the_sum_of_draws_is_bounded():
    """Numbers above a limit are lowered to it, so that all add up to what is allowed, and not to less."""
    np.testing.assert_allclose(_cap(np.array([1.0, 50.0, 2.0, 9.0]), 24), [1.0, 12.0, 2.0, 9.0])
    np.testing.assert_allclose(_cap(np.array([1.0, 50.0, 2.0, 90.0]), 23), [1.0, 10.0, 2.0, 10.0])
    np.testing.assert_allclose(_cap(np.array([5.0, 3.0]), 100), [5.0, 3.0])
    np.testing.assert_allclose(_cap(np.array([5.0, 5.0, 5.0]), 6), [2.0, 2.0, 2.0])


def test_a_sampled_training_can_be_watched():
    """Valued as it grows, also by way of JSON, it has the values and errors of valuing it at its end."""
    training = Asynchronous(n_clients=7, n_rounds=9, step=2.0)
    recorder, result = None, None
    for first, last in ((0, 2), (2, 5), (5, 9)):
        recorder = training.record(recorder=recorder, first=first, last=last)
        result = value(recorder, since=result)
        result = Valuation.from_json(result.to_json())
    at_once = value(recorder)
    np.testing.assert_array_equal(result.per_round, at_once.per_round)
    np.testing.assert_array_equal(result.per_round_errors, at_once.per_round_errors)
    np.testing.assert_array_equal(result.errors, at_once.errors)


def test_identical_clients_are_worth_the_same():
    """Symmetry holds to the last bit for sampled values too, with the same errors."""
    training = Asynchronous(n_clients=7, step=2.0)
    training.events = [event for event in training.events if event[0] != 3]
    copies = [(3, *event[1:]) for event in training.events if event[0] == 1]
    events, training.events = training.events, []
    for event in events:
        training.events.append(event)
        if event[0] == 1:
            training.events.append(copies.pop(0))
    result = value(training.record())
    assert result.methods == ("closed-form", "sampling")
    np.testing.assert_array_equal(result.per_round[:, 1], result.per_round[:, 3])
    np.testing.assert_array_equal(result.estimator_errors[1], result.estimator_errors[3])


def test_a_round_in_which_changes_cancel_is_sampled_too():
    """The first round achieves nothing, so that no error at all is allowed; as many draws are taken as may be."""
    rng = np.random.default_rng(0)
    change = 3 * rng.normal(size=(6, 20))
    recorder = Recorder(None, rng.integers(0, 2, 20), [f"client {m}" for m in range(12)])
    for m in range(12):
        recorder.update(f"client {m}", np.arange(20), change[m // 2] * (-1) ** m, time=1.0)
    recorder.stamp(time=1.0)
    result = value(recorder)
    assert result.method == "closed-form+sampling"
    exact = value(recorder, method="exact")
    assert (np.abs(result.values - exact.values) <= result.estimator_errors).all()


def test_errors_of_rounds_hold_for_all_rounds_together():
    """The bound of round t takes 1 / ((t + 2) (t + 3)) of the failure probability, and the total takes the half."""
    result = value(Asynchronous(n_clients=7, n_samples=30, n_rounds=5, step=2.0).record())
    assert result.sampled.largest[:, :7].any(axis=1).all()

    def radius(variance, largest, look):
        log = np.log(3 * 8 * (look + 1) * (look + 2) / 1e-3)
        deviation = np.sqrt(variance + largest**2 * log / 2) + largest * np.sqrt(log / 2)
        return deviation * np.sqrt(2 * log) + largest * log / 3

    rounds = result.sampled
    for t in range(5):
        expected = rounds.errors[t] + radius(rounds.variance[t], rounds.largest[t], t + 1)
        np.testing.assert_allclose(result.per_round_errors[t], expected[:7], rtol=1e-12)
    total = rounds.errors.sum(axis=0) + radius(rounds.variance.sum(axis=0), rounds.largest.max(axis=0), 0)
    np.testing.assert_allclose(result.estimator_errors, total[:7] / 5, rtol=1e-9)


def test_a_valuation_can_be_continued_more_than_once():
    """Continuing from a valuation leaves it as it was: the second time gives what the first gave."""
    training = Asynchronous(n_clients=7, n_rounds=6, step=2.0)
    recorder = training.record(last=3)
    earlier = value(recorder)
    table, seen, budget = earlier.replay.table.copy(), earlier.replay.is_seen.copy(), replace(earlier.replay.budget)
    training.record(recorder=recorder, first=3)
    first, second = (value(recorder, since=earlier) for _ in range(2))
    np.testing.assert_array_equal(earlier.replay.table, table)
    np.testing.assert_array_equal(earlier.replay.is_seen, seen)
    assert (earlier.replay.budget, earlier.replay.n_rounds, earlier.replay.unstamped) == (budget, 3, [])
    np.testing.assert_array_equal(first.per_round, second.per_round)
    np.testing.assert_array_equal(first.per_round_errors, second.per_round_errors)


def test_the_pilot_is_not_part_of_the_result(monkeypatch):
    """Draws that decide how many more are needed have a seed of their own, so that the number is independent."""
    keys, draw = [], stratified.draw
    monkeypatch.setattr(stratified, "draw", lambda *given: keys.append(given[-1]) or draw(*given))
    current = np.random.default_rng(0).normal(size=(5, 200, 1))
    game = RoundGame.from_arrays(np.zeros_like(current), current, np.arange(200) % 2)
    draw_enough(game, np.arange(200), Allowance(0.0, 1e9, 1e9, 0.0), max_permutations=4, seed=0, call=3)
    assert len(set(keys)) == len(keys) == 2
