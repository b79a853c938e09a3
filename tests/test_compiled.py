import ast
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from scipy.special import expit, log_expit

from verfedsv.compiled import compiled, exp, log_of_ratio, sigmoid, softplus


@compiled
def _each_exp(x, out):
    for i in range(len(x)):
        out[i] = exp(x[i])


@compiled
def _each_log_of_ratio(y, z, out):
    for i in range(len(y)):
        out[i] = log_of_ratio(y[i], z[i])


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


def test_logarithm_of_a_ratio_agrees_with_the_c_library():
    """log((1 + y) / (1 + z)) is within three units of the larger logarithm, down to the smallest fractions."""
    rng = np.random.default_rng(0)
    y, z = (np.concatenate([[0.0, 1.0, 0.0, 1.0], 10.0 ** rng.uniform(-300, 0, 10_000)]) for _ in range(2))
    z[:3], z[5000:] = 0.0, 0.0
    result = np.empty_like(y)
    _each_log_of_ratio(y, z, result)
    error = np.abs(result - (np.log1p(y) - np.log1p(z)))
    assert (error <= 6.7e-16 * np.maximum(np.log1p(y), np.log1p(z))).all()


def test_compiled_loops_call_only_inlined_functions():
    """No compiled function calls another: there would be two versions of it, whose sums differ in the last bits."""
    functions = [
        node
        for path in (Path(__file__).parents[1] / "src").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef)
    ]
    decorated = {f.name: {ast.unparse(d) for d in f.decorator_list} for f in functions}
    outer = {name for name, decorators in decorated.items() if "compiled" in decorators}
    inner = {name for name, decorators in decorated.items() if decorators & {"inlined", "inlined_in_order"}}
    assert len(outer) > 20
    assert len(inner) > 15
    for function in functions:
        if function.name in outer | inner:
            called = {ast.unparse(n.func) for n in ast.walk(function) if isinstance(n, ast.Call)}
            assert not called & outer, function.name


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
