"""The loops of the losses, compiled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from verfedsv.compiled import Array, Floats, compiled, exp, inlined, log_of_ratio, sigmoid, softplus

_SHORT = 0.35
"""Steps up to which eleven derivatives suffice: the next term is below the rounding error of the decrease."""


def each(function: Callable[[Floats, Floats], None], x: Array) -> Floats:
    """Return an elementwise compiled function of `x`."""
    argument = np.ascontiguousarray(x, dtype=np.float64)
    result = np.empty(argument.shape)
    function(argument.ravel(), result.ravel())
    return result


def as_rows(x: Array) -> Floats:
    """Return `x` as a contiguous array of three axes, the last two samples and classes."""
    return np.ascontiguousarray(x, dtype=np.float64).reshape(-1, x.shape[-2], x.shape[-1])


def softmax(x: Array) -> Floats:
    """Return the softmax over classes."""
    rows = as_rows(x)
    p = np.empty(rows.shape)
    _softmax_each(rows, p)
    return p.reshape(x.shape)


@compiled
def softplus_each(x: Floats, result: Floats) -> None:
    """Write log(1 + exp(x))."""
    for i in range(len(x)):
        result[i] = softplus(x[i])


@compiled
def sigmoid_each(x: Floats, result: Floats) -> None:
    """Write 1 / (1 + exp(-x))."""
    for i in range(len(x)):
        result[i] = sigmoid(x[i])


@compiled
def logistic_third_each(x: Floats, result: Floats) -> None:
    """Write the third derivative of log(1 + exp(x))."""
    for i in range(len(x)):
        s = sigmoid(x[i])
        result[i] = s * (1 - s) * (1 - 2 * s)


@inlined
def expand_logistic(base: Floats, step: Floats, labels: Floats, gradient: Floats, weights: Floats) -> float:
    """Write gradient and third derivative at the midpoints of scalar steps; return the decrease of the loss."""
    n_long = 0
    for i in range(len(base)):
        sign, middle = -labels[i], base[i] + 0.5 * step[i]
        # Both tails of the sigmoid from one exponential, each to full relative precision.
        small = exp(-abs(middle))
        large = 1 / (1 + small)
        small *= large
        gradient[i] = sign * (large if sign * middle > 0 else small)
        weights[i] = small * large * (small - large if middle > 0 else large - small)
        n_long += abs(step[i]) > _SHORT
    decrease = 0.0
    if n_long == 0:
        # Taylor's series around the midpoint, whose even terms cancel: no exponentials, and no cancellation.
        for i in range(len(base)):
            slope, half = gradient[i], 0.5 * step[i]
            u, h = abs(slope) * (1 - abs(slope)), half * half
            ninth = 1 + u * (u * (5040 - 20160 * u) - 252)
            eleventh = 1 + u * (u * (52920 + u * (1814400 * u - 604800)) - 1020)
            tail = (1 + u * (360 * u - 60)) / 5040 + h * (ninth / 362880 + h * eleventh / 39916800)
            tail = 1 / 6 + h * ((1 - 12 * u) / 120 + h * tail)
            decrease -= step[i] * (slope + weights[i] * h * tail)
        return decrease
    for i in range(len(base)):
        # log(1 + e^x) is max(x, 0) + log(1 + e^-|x|); the difference of two logarithms takes one series.
        before, after = -labels[i] * base[i], -labels[i] * (base[i] + step[i])
        decrease += (max(before, 0.0) - max(after, 0.0)) + log_of_ratio(exp(-abs(before)), exp(-abs(after)))
    return decrease


@inlined
def expand_softmax(base: Floats, step: Floats, labels: Array, p: Floats, gradient: Floats) -> float:
    """Write softmax and gradient at the midpoints of steps, (classes, samples); return the decrease of the loss.

    The loss is log(1 + sum over other classes of exp(x_c - x_top)) + x_top - x_y: both parts are relative to the
    largest class, so that a small loss is not lost beside a large embedding.
    """
    n_classes, n = len(base), len(labels)
    decrease = 0.0
    top, index, before, after, others = np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    # Written out three times: with arrays that change places, the loops would not be vectorised.
    _write_points(base, step, 0.0, p, top, index)
    for i in range(n):
        decrease += top[i] - p[labels[i], i]
    _write_powers(p, top, index, before)
    _write_points(base, step, 1.0, p, top, index)
    for i in range(n):
        decrease -= top[i] - p[labels[i], i]
    _write_powers(p, top, index, after)
    for i in range(n):
        decrease += np.log1p((before[i] - after[i]) / (1 + after[i]))
    _write_points(base, step, 0.5, p, top, index)
    _write_powers(p, top, index, others)
    for c in range(n_classes):
        x, slope = p[c, :n], gradient[c, :n]
        for i in range(n):
            x[i] /= 1 + others[i]
            slope[i] = x[i]
    for i in range(n):
        gradient[labels[i], i] -= 1
    return decrease


@inlined
def _write_points(base: Floats, step: Floats, time: float, x: Floats, top: Floats, index: Floats) -> None:
    """Write the points at a fraction `time` of the steps, the largest number of each sample, and its class."""
    n = len(top)
    top[:], index[:] = -np.inf, 0.0
    for c in range(len(base)):
        line, old, moved = x[c, :n], base[c, :n], step[c, :n]
        for i in range(n):
            line[i] = old[i] + time * moved[i]
            index[i] = c if line[i] > top[i] else index[i]
            top[i] = max(top[i], line[i])


@inlined
def _write_powers(x: Floats, top: Floats, index: Floats, others: Floats) -> None:
    """Replace x_c by exp(x_c - x_top), and write their sums over all classes but the largest."""
    n = len(top)
    others[:] = 0.0
    for c in range(len(x)):
        line = x[c, :n]
        for i in range(n):
            line[i] = exp(line[i] - top[i])
            others[i] += 0.0 if index[i] == c else line[i]


@compiled
def _softmax_each(x: Floats, p: Floats) -> None:
    n_rows, n_samples, n_classes = x.shape
    for row in range(n_rows):
        for i in range(n_samples):
            largest = x[row, i].max()
            total = 0.0
            for c in range(n_classes):
                p[row, i, c] = exp(x[row, i, c] - largest)
                total += p[row, i, c]
            for c in range(n_classes):
                p[row, i, c] /= total


@compiled
def log_partition_each(x: Floats, result: Floats) -> None:
    """Write log(sum_c exp(x_c)) minus the largest x_c."""
    n_rows, n_samples, n_classes = x.shape
    for row in range(n_rows):
        for i in range(n_samples):
            top = x[row, i].argmax()
            others = 0.0
            for c in range(n_classes):
                if c != top:
                    others += exp(x[row, i, c] - x[row, i, top])
            result[row, i] = np.log1p(others)
