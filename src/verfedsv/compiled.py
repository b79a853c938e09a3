"""Compilation of inner loops with numba, and the elementary functions that they use.

NumPy alone was three times slower: with two threads or more, its many short calls on blocks that fit the cache wait for
the interpreter lock. Compiled code is cached on disk, beside the package or in the user's cache ($NUMBA_CACHE_DIR), so
each loop is compiled once per machine.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar, cast

import numba
import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.cgutils import get_or_insert_function
from numba.core.event import Event, Listener, register
from numba.extending import intrinsic
from numba.np.arrayobj import make_array

Function = TypeVar("Function", bound=Callable[..., object])

_BYTES = ir.IntType(8).as_pointer()
_REORDERED = {"reassoc", "contract", "nsz", "arcp"}


def compiled(function: Function) -> Function:
    """Return `function` compiled on its first call; it runs without the interpreter lock.

    Sums may be reordered, so that they are vectorised; NaN and infinity keep their meaning.
    """
    return _compile(function, fastmath=_REORDERED)


def inlined(function: Function) -> Function:
    """Return `function` compiled into each compiled loop that calls it; sums may be reordered.

    Compiled loops call only inlined functions (a test checks this). A `compiled` callee would have two versions,
    optimised apart: a process that compiles would run one, a process that reads the cache the other, and their sums
    would differ in the last bits.

    Numba inserts the code before it infers types: inlining by LLVM took twice as long to compile.
    """
    return _compile(function, fastmath=_REORDERED, inline="always")


def inlined_in_order(function: Function) -> Function:
    """Return `function` compiled into each compiled loop that calls it, its arithmetic kept in the order written."""
    return _compile(function, fastmath={"contract"}, forceinline=True)


def _compile(function: Function, **options: Any) -> Function:
    compile_it = partial(numba.njit, nogil=True, error_model="numpy", **options)
    try:
        return cast("Function", compile_it(cache=True)(function))
    except RuntimeError:
        # Neither the package's folder nor the user's cache is writable: compile in each process.
        return cast("Function", compile_it()(function))


class _Announcer(Listener):
    """Says once in a process that loops are compiled: that is most of the time of a first call on a machine."""

    def __init__(self) -> None:
        self.has_said = False
        self.say: Callable[[str], None] = _say_on_terminal

    def on_start(self, event: Event) -> None:
        if not self.has_said and event.data["dispatcher"].py_func.__module__.startswith("verfedsv"):
            self.has_said = True
            self.say("Compiling loops for this processor: some seconds, once on each machine.")

    def on_end(self, event: Event) -> None:
        pass


def _say_on_terminal(text: str) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        print(f"verfedsv: {text}", file=sys.stderr)  # noqa: T201  # not a warning: nothing is to be mended


ANNOUNCER = _Announcer()
register("numba:compile", ANNOUNCER)  # type: ignore[no-untyped-call]


@contextmanager
def announce_by(say: Callable[[str], None]) -> Iterator[None]:
    """Let a function say within that loops are compiled."""
    before, ANNOUNCER.say = ANNOUNCER.say, say
    try:
        yield
    finally:
        ANNOUNCER.say = before


@intrinsic
def _from_bits(_typing_context: Any, _bits: Any) -> Any:
    """Read a 64-bit integer as a float64."""

    def generate(_context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.bitcast(arguments[0], ir.DoubleType())

    return types.float64(types.int64), generate


@intrinsic
def prefetch(_typing_context: Any, array: Any, index: Any) -> Any:
    """Have the processor read the cache line of an item of a contiguous array, by its flat index, ahead of its use."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        content = make_array(signature.args[0])(context, builder, arguments[0])  # type: ignore[no-untyped-call]
        address = builder.bitcast(builder.gep(content.data, [arguments[1]]), _BYTES)
        kind = ir.FunctionType(ir.VoidType(), [_BYTES, *[ir.IntType(32)] * 3])
        function = get_or_insert_function(builder.module, kind, "llvm.prefetch.p0i8")  # type: ignore[no-untyped-call]
        # To be read, kept in the second-level cache, and data.
        builder.call(function, [address, *(ir.Constant(ir.IntType(32), number) for number in (0, 2, 1))])
        return context.get_dummy_value()

    return types.void(array, index), generate


# The C library's exp and log1p take one number at a time: 4.3 and 4.9 ns. Written out, both are vectorised: 0.7 and
# 1.2 ns, with errors below 3 units in the last place.
_LOG2_E = 1 / math.log(2)
_LN2_HIGH, _LN2_LOW = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_E2, _E3, _E4, _E5, _E6, _E7, _E8, _E9, _E10, _E11, _E12, _E13 = (1 / math.factorial(k) for k in range(2, 14))


@inlined_in_order
def exp(x: float) -> float:
    """Return e^x, with x limited to [-700, 700]."""
    x = min(max(x, -700.0), 700.0)
    k = math.floor(x * _LOG2_E + 0.5)
    r = (x - k * _LN2_HIGH) - k * _LN2_LOW
    high = _E8 + r * (_E9 + r * (_E10 + r * (_E11 + r * (_E12 + r * _E13))))
    low = _E2 + r * (_E3 + r * (_E4 + r * (_E5 + r * (_E6 + r * (_E7 + r * high)))))
    result: float = (1 + (r + r * r * low)) * _from_bits((np.int64(k) + 1023) << 52)  # type: ignore[call-arg]  # not the first
    return result


@inlined_in_order
def add(total: float, lost: float, term: float) -> tuple[float, float]:
    """Return a sum with one more term, and its rounding error so far (Kahan), initially 0.

    If the sums of short runs are added like this, only the rounding errors within a run count.
    """
    term -= lost
    longer = total + term
    return longer, (longer - total) - term


@inlined_in_order
def log_of_ratio(y: float, z: float) -> float:
    """Return log((1 + y) / (1 + z)) for y and z in [0, 1]: twice the artanh of t = (y - z) / (2 + y + z).

    |t| is at most 1/3.
    """
    t = (y - z) / (2 + (y + z))
    s = t * t
    tail = 1 / 25 + s * (1 / 27 + s * (1 / 29 + s * (1 / 31 + s * (1 / 33 + s * (1 / 35)))))
    middle = 1 / 13 + s * (1 / 15 + s * (1 / 17 + s * (1 / 19 + s * (1 / 21 + s * (1 / 23 + s * tail)))))
    return 2 * t * (1 + s * (1 / 3 + s * (1 / 5 + s * (1 / 7 + s * (1 / 9 + s * (1 / 11 + s * middle))))))


@inlined_in_order
def softplus(x: float) -> float:
    """Return log(1 + e^x), to full relative precision for every x."""
    return max(x, 0.0) + log_of_ratio(exp(-abs(x)), 0.0)


@inlined_in_order
def sigmoid(x: float) -> float:
    """Return 1 / (1 + e^-x), to full relative precision for every x above -700."""
    return 1 / (1 + exp(-x))
