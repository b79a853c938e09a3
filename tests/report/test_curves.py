import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from verfedsv.report.curves import MOST_POINTS, curve, thin

numbers = st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300)


@given(numbers, st.integers(6, 40))
def test_thinned_curves_keep_their_ends_and_extremes(values, most):
    """At most so many points are kept, among them the first, the last, the smallest and the largest."""
    values = np.array(values)
    kept = thin(values, most)
    assert len(kept) <= max(most, 2)
    assert (np.diff(kept) > 0).all()
    assert {0, len(values) - 1} <= set(kept.tolist())
    assert {values.min(), values.max()} <= set(values[kept].tolist())


def test_short_curves_are_kept_whole():
    """Rounds are counted from 1, numbers have five digits, and NaN is left out."""
    found = curve([0.123456789, np.nan, 3.0])
    assert found.rounds == (1, 3)
    assert found.values == (0.12346, 3.0)
    assert found.n_rounds == 2


def test_long_curves_are_bounded():
    """This holds however long the training is, and however many clients there are."""
    values = np.sin(np.arange(100_000) / 50)
    assert len(curve(values).rounds) <= MOST_POINTS
    assert len(curve(values, n_curves=2000).rounds) <= 60
