from itertools import combinations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from verfedsv.report.ranking import overlapping_groups, possible_places

intervals = st.lists(st.tuples(st.integers(-9, 9), st.integers(0, 4)), min_size=1, max_size=9)


@given(intervals)
def test_two_clients_share_a_group_if_and_only_if_their_intervals_overlap(pairs):
    """The groups state exactly which pairs cannot be ranked."""
    values, errors = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    groups = overlapping_groups(values, errors)
    together = {pair for group in groups for pair in combinations(group, 2)}
    expected = {
        (a, b)
        for a, b in combinations(range(len(values)), 2)
        if values[a] - errors[a] <= values[b] + errors[b] and values[b] - errors[b] <= values[a] + errors[a]
    }
    assert together == expected
    assert not any(set(one) < set(other) for one in groups for other in groups)


def test_clients_without_a_known_error_are_in_no_group():
    """They cannot be ranked against anybody."""
    values, errors = np.array([3.0, 2.0, 1.0]), np.array([0.1, np.nan, 0.1])
    assert overlapping_groups(values, errors) == []


@given(intervals)
def test_places_are_those_that_some_true_values_give(pairs):
    """The best place counts the clients surely above, the worst place those surely below."""
    values, errors = (np.array(column, dtype=float) for column in zip(*pairs, strict=True))
    low, high = values - errors, values + errors
    for m, (best, worst) in enumerate(possible_places(values, errors)):
        assert best == 1 + sum(low > high[m])
        assert worst == len(values) - sum(high < low[m])


def test_without_a_known_error_any_place_is_possible():
    """The others may have that client before or behind them."""
    values, errors = np.array([3.0, 2.0, 1.0]), np.array([0.1, np.nan, 0.1])
    assert possible_places(values, errors) == [(1, 2), (1, 3), (2, 3)]
