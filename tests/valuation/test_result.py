import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.report.valuations import make_valuation

few = st.lists(
    st.tuples(st.floats(-1, 3), st.floats(0, 0.2), st.lists(st.floats(-1, 1), min_size=8, max_size=8)),
    min_size=1,
    max_size=6,
)


@given(few)
def test_true_shares_are_within_their_bounds(clients):
    """However the true values lie within the errors, the shares of them are within the bounds, or there are none."""
    values, errors, where = (np.array(column) for column in zip(*clients, strict=True))
    valuation = make_valuation(values, errors)
    bounds = valuation.share_bounds
    if np.isnan(bounds).any():
        assert np.isnan(bounds).all()
        assert valuation.errors.sum() >= abs(values.sum())
        return
    for position in where.T:
        truth = values + position * errors
        shares = truth / truth.sum()
        slack = 1e-9 * np.abs(bounds).max()
        assert (bounds[:, 0] - slack <= shares).all()
        assert (shares <= bounds[:, 1] + slack).all()


def test_bounds_are_reached():
    """They are no wider than they must be: if one value is as large as it may be and the others as small."""
    valuation = make_valuation([2.0, 1.0, 1.0], [0.2, 0.1, 0.1])
    np.testing.assert_allclose(valuation.share_bounds[0], [1.8 / (1.8 + 2.2), 2.2 / (2.2 + 1.8)])


def test_one_unknown_error_leaves_the_others_their_bounds():
    """They bound the shares among the clients whose errors are known; the one that is not has none."""
    known = make_valuation([2.0, 1.0], [0.2, 0.1]).share_bounds
    bounds = make_valuation([2.0, 1.0, 0.1], [0.2, 0.1, np.nan]).share_bounds
    np.testing.assert_array_equal(bounds[:2], known)
    assert np.isnan(bounds[2]).all()
    assert np.isnan(make_valuation([1.0, 1.0], [np.nan, np.nan]).share_bounds).all()
