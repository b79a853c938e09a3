import subprocess
import sys

import numpy as np
import pytest
from scipy.special import expit, log_expit

from verfedsv.compiled import compiled, exp, log1p_of_fraction, sigmoid, softplus


@compiled
def _each_exp(x, out):
    for i in range(len(x)):
        out[i] = exp(x[i])


@compiled
def _each_log1p(x, out):
    for i in range(len(x)):
        out[i] = log1p_of_fraction(x[i])


@compiled
def _each_softplus(x, out):
    for i in range(len(x)):
        out[i] = softplus(x[i])


@compiled
def _each_sigmoid(x, out):
    for i in range(len(x)):
        out[i] = sigmoid(x[i])


@pytest.mark.parametrize("reach", [1e-12, 0.01, 1.0, 40.0, 690.0])
@pytest.mark.parametrize(
    ("function", "reference"),
    [(_each_exp, np.exp), (_each_softplus, lambda x: -log_expit(-x)), (_each_sigmoid, expit)],
    ids=["exp", "softplus", "sigmoid"],
)
def test_agrees_with_the_c_library(function, reference, reach):
    """The vectorised functions are within three units in the last place of those of the C library."""
    x = np.random.default_rng(0).uniform(-reach, reach, 10_000)
    result = np.empty_like(x)
    function(x, result)
    np.testing.assert_allclose(result, reference(x), rtol=6.7e-16, atol=0)


def test_log1p_agrees_with_the_c_library():
    """log(1 + y) of a fraction keeps its relative precision down to the smallest fractions."""
    y = np.concatenate([[0.0, 1.0], 10.0 ** np.random.default_rng(0).uniform(-300, 0, 10_000)])
    result = np.empty_like(y)
    _each_log1p(y, result)
    np.testing.assert_allclose(result, np.log1p(y), rtol=6.7e-16, atol=0)


def test_extreme_arguments_stay_finite():
    """Arguments beyond the range of float64's exponent give the limits, not infinity or NaN."""
    x = np.array([-1e6, -701.0, 701.0, 1e6])
    result = np.empty_like(x)
    _each_softplus(x, result)
    np.testing.assert_array_equal(result[2:], x[2:])
    assert (result[:2] >= 0).all()
    assert (result[:2] < 1e-300).all()
    _each_sigmoid(x, result)
    np.testing.assert_allclose(result, [0, 0, 1, 1], atol=1e-300)


@pytest.mark.slow
def test_compiles_where_nothing_can_be_written(tmp_path):
    """Where neither the package nor the user's cache can be written to, loops are compiled anew in each process."""
    script = (
        "import numba.core.caching as caching\n"
        "for locator in caching.CacheImpl._locator_classes:\n"
        "    locator.from_function = classmethod(lambda *_: None)\n"
        "import verfedsv\n"
        "print(verfedsv.shapley_values([[0.0, 0.0]], [[1.0, -1.0]], [1, 0], method='closed-form').values)\n"
    )
    done = subprocess.run(  # noqa: S603  # our own script
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.stdout.strip() == "[0.37988549]", done.stderr
