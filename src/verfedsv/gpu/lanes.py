"""Loops that value eight samples in vectors, compiled for the threads of a GPU: each thread is one lane of a vector.

Formulas are written once, in the compiled loops of the CPU; here a vector has one number.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from types import FunctionType
from typing import Any

from numba import config, cuda
from numba.core.dispatcher import Dispatcher

Kernel = Any
"""A compiled kernel: `kernel[n_blocks, n_threads](*arrays)`."""


IS_SIMULATED = bool(config.ENABLE_CUDASIM)  # type: ignore[attr-defined]

_INLINED: dict[str, bool] = {} if IS_SIMULATED else {"forceinline": True}
"""The simulator does not know this option."""


def one_each(n: int) -> tuple[int, int]:
    """Return the numbers of blocks and threads to launch for a thread for each of n numbers."""
    # numba warns of fewer than 128 blocks. The simulator starts a thread of Python for each thread.
    n_threads, fewest = (4, 1) if IS_SIMULATED else (128, 128)
    return max(fewest, -(-n // n_threads)), n_threads


def kernel(function: Callable[..., None]) -> Kernel:
    """Return a function compiled as a kernel; multiplications and additions may be contracted, nothing is reordered."""
    return cuda.jit(function)


def device(function: Callable[..., Any]) -> Any:
    """Return a function that is compiled into each kernel that calls it."""
    return cuda.jit(device=True, **_INLINED)(function)


@cache
def lane(loop: Any) -> Any:
    """Return an inlined loop of the CPU, and all that it calls, as a function of a thread."""
    function = loop.py_func
    names = {name: function.__globals__[name] for name in function.__code__.co_names if name in function.__globals__}
    own = {name: _as_lane(name, thing) for name, thing in names.items()}
    return device(FunctionType(function.__code__, {**function.__globals__, **own}, function.__name__))


def _as_lane(name: str, thing: Any) -> Any:
    if name in _STAND_INS:
        return _STAND_INS[name]
    return lane(thing) if isinstance(thing, Dispatcher) else thing


@device
def _same(x: float) -> float:
    return x


@device
def _load(numbers: Any, index: int) -> float:
    return numbers[index]  # type: ignore[no-any-return]


@device
def _store(numbers: Any, index: int, x: float) -> None:
    numbers[index] = x


@device
def _larger(left: float, right: float) -> float:
    return left if left > right else right


@device
def _smaller(left: float, right: float) -> float:
    return left if right > left else right


@device
def _if_larger(left: float, right: float, then: float, otherwise: float) -> float:
    return then if left > right else otherwise


@device
def _if_equal(left: float, right: float, then: float, otherwise: float) -> float:
    return then if left == right else otherwise


@device
def _largest(x: float) -> float:
    return x if x == x else math.inf  # NaN counts as infinity


@device
def _exp(x: float) -> float:
    return math.exp(min(max(x, -700.0), 700.0))


@device
def _log1p(x: float, _line: Any) -> float:
    return math.log1p(x)


# Arrays stay in registers only if every index is known when compiling, so classes are compared with the label.


@device
def _of_label(numbers: Any, labels: Any, first: int, _line: Any) -> float:
    result = 0.0
    for c in range(len(numbers)):
        result = numbers[c] if labels[first] == c else result
    return result


@device
def _subtract_label(numbers: Any, labels: Any, first: int) -> None:
    for c in range(len(numbers)):
        numbers[c] -= 1.0 if labels[first] == c else 0.0


_STAND_INS = {
    "LANES": 1,
    "fill": _same,
    "load": _load,
    "store": _store,
    "absolute": device(lambda x: abs(x)),
    "root": device(lambda x: math.sqrt(x)),
    "larger": _larger,
    "smaller": _smaller,
    "if_larger": _if_larger,
    "if_equal": _if_equal,
    "largest_lane": _largest,
    "sum_lanes": _same,
    "exp_lanes": _exp,
    "log1p_lanes": _log1p,
    "of_labels": _of_label,
    "subtract_labels": _subtract_label,
}
"""What stands for the functions of `vectors`, and for those that take each lane alone."""
