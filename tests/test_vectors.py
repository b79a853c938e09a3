import numpy as np
import pytest

from verfedsv.compiled import compiled
from verfedsv.vectors import (
    LANES,
    absolute,
    exp_lanes,
    fill,
    if_equal,
    if_larger,
    larger,
    largest_lane,
    load,
    load_apart,
    load_first,
    root,
    smaller,
    store,
    sum_lanes,
    twice_artanh,
)


@compiled
def _calculate(x, y, results):
    a, b = load(x, 0), load(y, 0)
    store(results, 0, a + b)
    store(results, 8, a - b)
    store(results, 16, a * b)
    store(results, 24, a / b)
    store(results, 32, 2.0 * a - 1.0)
    store(results, 40, 1.0 / a + a / 2.0)
    store(results, 48, root(absolute(a)))
    store(results, 56, larger(a, b))
    store(results, 64, smaller(a, b))
    store(results, 72, if_larger(a, fill(0.0), b, a))
    store(results, 80, if_equal(a, fill(0.5), b, a))
    total = a
    total += b
    total -= 1.0
    total *= b
    store(results, 88, total)


def test_operators_act_lane_by_lane():
    """Every operator agrees with NumPy, between vectors and with numbers on either side."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        x, y = rng.normal(size=(2, LANES))
        x[3] = 0.5
        results = np.empty((12, LANES))
        _calculate(x, y, results.reshape(-1))
        expected = [
            x + y,
            x - y,
            x * y,
            x / y,
            2 * x - 1,
            1 / x + x / 2,
            np.sqrt(np.abs(x)),
            np.maximum(x, y),
            np.minimum(x, y),
            np.where(x > 0, y, x),
            np.where(x == 0.5, y, x),
            (x + y - 1) * y,
        ]
        np.testing.assert_allclose(results, expected, rtol=1e-15, atol=1e-15)


@compiled
def _load_each(x, first, distance, n, results):
    store(results, 0, load_first(x, first, n))
    store(results, 8, load_apart(results, 0, distance))
    return sum_lanes(load(results, 0)), largest_lane(load(results, 0))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_vectors_are_read_and_summed(dtype):
    """The first few numbers from an index on, with zeros for the others, up to the end of an array."""
    x = np.random.default_rng(0).normal(size=20).astype(dtype)
    for first in range(20):
        for n in range(min(LANES, 20 - first) + 1):
            results = np.empty(2 * LANES)
            total, largest = _load_each(x, first, 0, n, results)
            expected = np.zeros(LANES)
            expected[:n] = x[first : first + n]
            np.testing.assert_array_equal(results[:LANES], expected)
            assert total == pytest.approx(expected.sum(), abs=1e-15)
            assert largest == expected.max()


@compiled
def _read_apart(x, first, distance, results):
    store(results, 0, load_apart(x, first, distance))
    return largest_lane(load(results, 0))


def test_numbers_apart():
    """Every few numbers; the largest of them is infinite if one is NaN."""
    x = np.arange(100.0)
    for first, distance in [(0, 1), (3, 7), (29, 10), (5, 0)]:
        results = np.empty(LANES)
        assert _read_apart(x, first, distance, results) == first + 7 * distance
        np.testing.assert_array_equal(results, x[first + distance * np.arange(LANES)])
    x[17] = np.nan
    assert _read_apart(x, 3, 7, np.empty(LANES)) == np.inf


@compiled
def _exp_each(x, result):
    for i in range(0, len(x), LANES):
        store(result, i, exp_lanes(load(x, i)))


@compiled
def _twice_artanh_each(x, result):
    for i in range(0, len(x), LANES):
        store(result, i, twice_artanh(load(x, i)))


@pytest.mark.parametrize(
    ("function", "reference"), [(_exp_each, np.exp), (_twice_artanh_each, lambda x: 2 * np.arctanh(x))]
)
def test_functions_agree_with_the_c_library(function, reference):
    """To three units in the last place."""
    rng = np.random.default_rng(0)
    for reach in (1e-12, 0.01, 1 / 3) + ((40.0, 690.0) if function is _exp_each else ()):
        x = rng.uniform(-reach, reach, 8000)
        result = np.empty_like(x)
        function(x, result)
        np.testing.assert_allclose(result, reference(x), rtol=6.7e-16, atol=0)


def test_extreme_exponents():
    """Beyond the range of float64 the limits are returned, and NaN stays NaN."""
    x, result = np.array([-1e6, 1e6, -np.inf, np.inf, np.nan, 0.0, -700.0, 700.0]), np.empty(LANES)
    _exp_each(x, result)
    limits = np.exp([-700.0, 700.0])
    np.testing.assert_allclose(result, [*limits, *limits, np.nan, 1.0, *limits], rtol=1e-15)
