"""What parts of a valuation share: the errors they are allowed, and the numbers that seed their draws."""

import numpy as np
import pytest

from verfedsv.shapley.estimators import get_estimator
from verfedsv.shapley.plan import Allowance, Plan


def test_no_two_calls_draw_the_same():
    """Every chunk of every round has its own number, whichever rounds are valued together."""
    plans = [Plan(get_estimator("auto"), 100, 10, first_round=first, n_chunks=3) for first in (0, 4)]
    calls = [plan.call(t, chunk) for plan in plans for t in range(4) for chunk in range(3)]
    assert len(set(calls)) == 24


def test_parts_together_have_what_the_whole_is_allowed():
    """Certified errors and coalitions add up over parts, sampled errors by their squares; the largest draw stays."""
    whole, sizes, n_mean = Allowance(1e-3, 2e-3, 3e-4, 1e9), np.array([10, 30, 60]), 7
    parts = [whole.of_part(int(size), 100, n_mean) for size in sizes]
    # From a mean over 7 samples to its part of the mean over all.
    scale = n_mean / 100
    assert sum(part.certified * scale for part in parts) == pytest.approx(whole.certified)
    assert np.sqrt(sum((part.sampled * scale) ** 2 for part in parts)) == pytest.approx(whole.sampled)
    assert [part.largest * scale for part in parts] == pytest.approx([whole.largest] * 3)
    assert sum(part.coalitions for part in parts) == pytest.approx(whole.coalitions)
