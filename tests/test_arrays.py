"""Which numbers can be computed with."""

import numpy as np
import pytest

from verfedsv.arrays import is_usable


@pytest.mark.parametrize("number", [np.float16, np.float32, np.float64, np.int64])
def test_numbers_are_usable_one_by_one(number):
    """Each must be finite and below 1e12 in size, however large or small the sum of all squares is."""
    many = np.full((50, 2), 6e4 if number is np.float16 else 9e11, dtype=number)
    assert is_usable(many)
    assert is_usable(many[:0])
    wrong = [2**62, -(2**32) * 10**3] if number is np.int64 else [np.nan, np.inf, -np.inf]
    large = {np.float32: [1.001e12, -3e38], np.float64: [1e12, -1e300]}
    for value in [*wrong, *large.get(number, [])]:
        for n_samples in (50, 10_000):  # the latter are summed in parts
            some = np.zeros((n_samples, 2), dtype=number)
            assert is_usable(some)
            some[-1, 1] = value
            assert not is_usable(some)
            assert not is_usable(some[:, 1:])
