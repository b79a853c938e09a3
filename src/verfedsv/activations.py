"""Activations between the layers of a head, of eight numbers at a time.

As in torch, they are those of `head_layers`; errors are a few units in the last place of the result, or below 1e-299.
"""

from __future__ import annotations

import math

from verfedsv.compiled import inlined_in_order
from verfedsv.vectors import (
    Vector,
    absolute,
    exp_lanes,
    expm1_lanes,
    fill,
    if_larger,
    larger,
    smaller,
    twice_artanh,
)

_RELU, _LEAKY_RELU, _ELU, _TANH, _SIGMOID, _SILU, _GELU, _GELU_BY_TANH, _SOFTPLUS = range(9)

ACTIVATIONS = {
    "ReLU": _RELU,
    "LeakyReLU": _LEAKY_RELU,
    "ELU": _ELU,
    "Tanh": _TANH,
    "Sigmoid": _SIGMOID,
    "SiLU": _SILU,
    "GELU none": _GELU,
    "GELU tanh": _GELU_BY_TANH,
    "Softplus": _SOFTPLUS,
}
"""What `activated` takes for a layer of torch; "GELU" is followed by its approximation."""


@inlined_in_order
def activated(kind: int, x: Vector, a: float, b: float) -> Vector:
    """Return an activation of eight numbers, with its arguments; NaN stays NaN."""
    zero = fill(0.0)
    if kind == _RELU:
        return if_larger(zero, x, zero, x)
    if kind == _LEAKY_RELU:
        return if_larger(zero, x, a * x, x)
    if kind == _ELU:
        return if_larger(zero, x, a * expm1_lanes(smaller(x, zero)), x)
    if kind == _TANH:
        return _tanh(x)
    if kind == _SIGMOID:
        return 1.0 / (1.0 + exp_lanes(zero - x))
    if kind == _SILU:
        return larger(fill(_LEAST), x) / (1.0 + exp_lanes(zero - x))
    if kind == _GELU_BY_TANH:
        return 0.5 * x * (1.0 + _tanh(_SQRT_2_OVER_PI * (x + 0.044715 * x * x * x)))
    if kind == _SOFTPLUS:
        y = a * x
        small = exp_lanes(zero - absolute(y))
        return if_larger(y, fill(b), x, (larger(y, zero) + twice_artanh(small / (2.0 + small))) / a)
    return larger(fill(_LEAST), x) * _normal_distribution(x)


_LEAST = -700.0
"""Below this, where powers of e are limited, SiLU and GELU are 0 but for 1e-299."""

_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)


@inlined_in_order
def _tanh(x: Vector) -> Vector:
    """Return tanh, to full relative precision."""
    zero = fill(0.0)
    y = expm1_lanes(zero - 2.0 * absolute(x))
    y = y / (2.0 + y)
    return if_larger(x, zero, zero - y, y)


_SQRT_HALF = math.sqrt(0.5)
# exp(z^2) erfc(z) (1 + 2z) as a polynomial in (z - 4) / (z + 4), after Shepherd and Laframboise (1981); interpolated at
# 23 Chebyshev nodes of z in [0, 27], where its relative error is below 7e-17.
_C0, _C1, _C2, _C3, _C4, _C5, _C6, _C7, _C8, _C9, _C10, _C11 = (
    1.2329951186255526,
    -0.13962111684056283,
    0.015379652102621225,
    0.06809705425473195,
    -0.10103906603638212,
    0.09373283499695562,
    -0.06633036581080073,
    0.03716751556039361,
    -0.016197734068137334,
    0.005031969769427061,
    -0.000757773277416026,
    -0.0001992555488219761,
)
_C12, _C13, _C14, _C15, _C16, _C17, _C18, _C19, _C20, _C21, _C22 = (
    0.00015062197006674788,
    -2.4403149482077205e-05,
    -1.1224076731817858e-05,
    5.7181323323262435e-06,
    3.0027247744395825e-07,
    -8.359072083251654e-07,
    6.351906535547641e-08,
    1.1624772096494892e-07,
    -7.837865916306315e-09,
    -1.4078643475972477e-08,
    -1.9456064972434173e-09,
)


@inlined_in_order
def _normal_distribution(x: Vector) -> Vector:
    """Return the distribution function of the standard normal distribution, to full relative precision above -9."""
    z = smaller(fill(27.0), _SQRT_HALF * absolute(x))
    inverse = 1.0 / ((1.0 + 2.0 * z) * (4.0 + z))
    q = (z - 4.0) * (1.0 + 2.0 * z) * inverse
    p = _C14 + q * (_C15 + q * (_C16 + q * (_C17 + q * (_C18 + q * (_C19 + q * (_C20 + q * (_C21 + q * _C22)))))))
    p = _C7 + q * (_C8 + q * (_C9 + q * (_C10 + q * (_C11 + q * (_C12 + q * (_C13 + q * p))))))
    p = _C0 + q * (_C1 + q * (_C2 + q * (_C3 + q * (_C4 + q * (_C5 + q * (_C6 + q * p))))))
    tail = 0.5 * exp_lanes(-0.5 * x * x) * p * (4.0 + z) * inverse
    return if_larger(x, fill(0.0), 1.0 - tail, tail)
