import numpy as np
import pytest

from experiments.proportion import allowed, judge

SIZES = np.array([1.0, 2.0, 3.0, 4.0, 5.0])


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([SIZES**0.95, SIZES**1.05, SIZES], "yes"),
        ([SIZES**2, SIZES**2.1, SIZES**2], "in trend"),
        ([SIZES[::-1]] * 3, "no"),
        ([SIZES - 1.5] * 3, "in trend"),  # rising, but no power
    ],
)
def test_values_without_errors_have_one_verdict(values, expected):
    """What they were estimated to be allows no other."""
    assert judge(SIZES, values)[1] == expected
    assert allowed(SIZES, values, values) == {expected}


def test_size_zero_counts_for_the_order_only():
    """A difference at no noise that is as large as that at some is no rise; its logarithm is not taken."""
    sizes = np.array([0, *SIZES])
    assert judge(sizes, [[0, *SIZES]] * 3)[1] == "yes"
    assert judge(sizes, [[1, *SIZES]] * 3)[1] == "no"


def test_two_neighbours_whose_order_is_uncertain_are_enough():
    """Each of the others is certain, and the exponent is far from 1 whatever the errors are."""
    values, errors = np.array([SIZES**2] * 3), np.zeros((3, 5))
    errors[:, 2:4] = 3.4  # 9 and 16 could be 12.4 and 12.6
    assert allowed(SIZES, values - errors, values + errors) == {"in trend"}
    errors[:, 2:4] = 3.6
    assert allowed(SIZES, values - errors, values + errors) == {"in trend", "no"}


def test_errors_can_make_values_proportional_or_not():
    """In the same direction for all seeds, or in another for each, which widens the interval over seeds."""
    values = np.array([SIZES**1.2] * 5)
    assert allowed(SIZES, 0.99 * values, 1.01 * values) == {"yes"}
    assert allowed(SIZES, 0.95 * values, 1.05 * values) == {"yes", "in trend"}
    values = np.array([SIZES**1.4] * 5)
    assert allowed(SIZES, 0.99 * values, 1.01 * values) == {"in trend"}
    assert allowed(SIZES, 0.85 * values, 1.15 * values) >= {"yes", "in trend"}


def test_unknown_errors_allow_everything():
    """Whatever was estimated."""
    assert allowed(SIZES, np.full((3, 5), -np.inf), np.full((3, 5), np.inf)) == {"yes", "in trend", "no"}
