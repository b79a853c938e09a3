from typing import get_args

import numpy as np
import pytest

from verfedsv.shapley.estimate import ErrorKind, Estimate


def estimate(values, errors, utility=0.0, **others):
    return Estimate(np.array(values), np.array(errors), np.array(utility), frozenset({"exact"}), **others)


def sampled(variance, largest, method="sampling"):
    zeros = np.zeros(len(variance))
    bounds = {"variance": np.array(variance), "largest": np.array(largest)}
    return Estimate(zeros, zeros, np.zeros(()), frozenset({method}), "confidence", 7, **bounds)


def test_balance_moves_within_the_errors():
    """The correction is in proportion to the errors and never larger than they are."""
    balanced = estimate([1.0, 2.0, 3.0], [0.1, 0.3, 0.0], 6.2).balanced()
    np.testing.assert_allclose(balanced.values, [1.05, 2.15, 3.0])
    np.testing.assert_allclose(balanced.errors, [0.15, 0.45, 0.0])


def test_a_gap_that_errors_do_not_explain_is_not_spread():
    """It is an error of the utility, a difference of rounded losses: values of tiny steps keep their digits."""
    balanced = estimate([1.0, 2.0], [0.1, 0.1], 3.3).balanced()
    np.testing.assert_array_equal(balanced.values, [1.0, 2.0])
    np.testing.assert_array_equal(balanced.errors, [0.1, 0.1])


@pytest.mark.parametrize("errors", [[0.0, 0.0], [np.inf, 1.0]])
def test_nothing_is_balanced_without_finite_errors(errors):
    """Values stay as they are if errors are 0 or infinite."""
    balanced = estimate([1.0, 2.0], errors, 6.0).balanced()
    np.testing.assert_array_equal(balanced.values, [1.0, 2.0])
    np.testing.assert_array_equal(balanced.errors, errors)


def test_rounds_are_balanced_one_by_one():
    """Each round of an estimate of several adds up to its own utility."""
    rounds = estimate([[1.0, 2.0], [0.0, 1.0]], [[0.5, 0.5], [0.1, 0.3]], [3.5, 0.8]).balanced()
    np.testing.assert_allclose(rounds.values, [[1.25, 2.25], [-0.05, 0.85]])
    np.testing.assert_allclose(rounds.errors, [[0.75, 0.75], [0.15, 0.45]])


def test_a_sum_adds_errors_and_variances_and_takes_the_largest_draw():
    """Errors and variances are summed separately, and methods are joined."""
    total = Estimate.sum([estimate([1.0, 2.0], [0.1, 0.0], 3.0, n_evaluations=5), sampled([4.0, 1.0], [0.5, 0.2])])
    np.testing.assert_array_equal(total.values, [1.0, 2.0])
    np.testing.assert_array_equal(total.errors, [0.1, 0.0])
    np.testing.assert_array_equal(total.variance, [4.0, 1.0])
    np.testing.assert_array_equal(total.largest, [0.5, 0.2])
    assert (total.utility, total.kind, total.methods) == (3.0, "confidence", {"exact", "sampling"})
    assert total.n_evaluations == 12


def test_the_worst_kind_of_error_wins():
    """The kind of a sum, in any order, is that of its weakest part."""
    kinds = [estimate([1.0], [0.0], kind=kind) for kind in get_args(ErrorKind)]
    assert Estimate.sum(kinds[:2]).kind == Estimate.sum(kinds[1::-1]).kind == "certified but for rounding"
    assert Estimate.sum(kinds[2::-1]).kind == "confidence"
    assert Estimate.sum(kinds[-2::-1]).kind == "confidence on an assumption"
    assert Estimate.sum(kinds[::-1]).kind == "unknown"


def test_many_small_parts_are_not_lost():
    """Parts that are each too small to change the sum change it together."""
    parts = [estimate([1.0], [1.0], 1.0), *[estimate([1e-17], [1e-17], 1e-17)] * 10_000]
    total = Estimate.sum(parts)
    np.testing.assert_allclose([total.values[0] - 1, total.errors[0] - 1, total.utility - 1], 1e-13, rtol=1e-2)


def test_sampled_errors_average_out():
    """The bound of a hundred independent rounds is far below the sum of their bounds, and scales with the values."""
    rounds = Estimate.of_rounds({t: sampled([1.0, 0.0], [0.01, 0.0]) for t in range(100)}, 100, 2)
    total = rounds.total()
    assert total.bound()[0] < rounds.bound(np.arange(100))[:, 0].sum() / 5
    assert (total.bound()[1], rounds.bound()[3, 1]) == (0.0, 0.0)
    np.testing.assert_allclose(total.divided(2).bound(), 0.5 * total.bound())


def test_errors_that_cover_a_variance_are_not_enlarged():
    """A variance without a largest draw is already covered by the errors."""
    known = estimate([1.0], [0.3], variance=np.array([4.0]))
    np.testing.assert_array_equal(known.bound(), [0.3])


def test_identical_players_share_their_mean_and_the_worst_error():
    """Within a group all numbers become equal; others stay."""
    found = estimate([1.0, 3.0, 5.0], [0.1, 0.4, 0.2], variance=np.array([2.0, 1.0, 3.0])).symmetric([[0, 1]])
    np.testing.assert_array_equal(found.values, [2.0, 2.0, 5.0])
    np.testing.assert_array_equal(found.errors, [0.4, 0.4, 0.2])
    np.testing.assert_array_equal(found.variance, [2.0, 2.0, 3.0])


def test_rounds_and_players_that_are_not_there_are_zero():
    """Missing rounds, and a server that is not a player in a round, have zeros."""
    rounds = Estimate.of_rounds({1: estimate([1.0, 2.0], [0.1, 0.1], 3.0)}, 3, 3)
    np.testing.assert_array_equal(rounds.values, [[0, 0, 0], [1, 2, 0], [0, 0, 0]])
    np.testing.assert_array_equal(rounds.utility, [0, 3, 0])


def test_rounds_are_replaced_with_utilities_that_were_unknown():
    """A known utility stays; that of a round that is not replaced stays unknown."""
    first = estimate(np.ones((3, 2)), np.full((3, 2), np.inf), [np.nan, 3.0, np.nan])
    again = estimate(np.zeros((3, 2)), np.zeros((3, 2)), [1.0, 2.0, 0.0])
    both = first.replaced(again, np.array([True, True, False]))
    np.testing.assert_array_equal(both.values[:, 0], [0, 0, 1])
    np.testing.assert_array_equal(both.errors[:, 0], [0, 0, np.inf])
    np.testing.assert_array_equal(both.utility, [1.0, 3.0, np.nan])
