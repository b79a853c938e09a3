"""The loops of the losses, compiled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from verfedsv.compiled import Array, Floats, add, compiled, exp, inlined, log_of_ratio, sigmoid, softplus


def each(function: Callable[[Floats, Floats], None], x: Array) -> Floats:
    """Return an elementwise compiled function of `x`."""
    argument = np.ascontiguousarray(x, dtype=np.float64)
    result = np.empty(argument.shape)
    function(argument.ravel(), result.ravel())
    return result


def as_rows(x: Array) -> Floats:
    """Return a contiguous `x`, all axes before samples and classes as one."""
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


@compiled
def expand_logistic(base: Floats, step: Floats, labels: Floats, gradient: Floats, weights: Floats) -> float:
    """Write gradient and third derivative at the midpoints of scalar steps; return how much the loss falls in all."""
    decrease, lost = 0.0, 0.0
    for first in range(0, len(base), 1024):
        part = slice(first, first + 1024)
        of_run = expand_run(base[part], step[part], labels[part], gradient[part], weights[part])
        decrease, lost = add(decrease, lost, of_run)
    return decrease


@inlined
def expand_run(base: Floats, step: Floats, labels: Floats, gradient: Floats, weights: Floats) -> float:
    """Do the same for a run of samples, without compensation."""
    decrease = 0.0
    for i in range(len(base)):
        sign, middle = -labels[i], base[i] + 0.5 * step[i]
        # Both tails of the sigmoid from one exponential, each to full relative precision.
        small = exp(-abs(middle))
        large = 1 / (1 + small)
        small *= large
        gradient[i] = sign * (large if sign * middle > 0 else small)
        weights[i] = small * large * (small - large if middle > 0 else large - small)
        # log(1 + e^x) is max(x, 0) + log(1 + e^-|x|); of the difference of two, the logarithms need one series.
        before, after = sign * base[i], sign * (base[i] + step[i])
        decrease += (max(before, 0.0) - max(after, 0.0)) + log_of_ratio(exp(-abs(before)), exp(-abs(after)))
    return decrease


@compiled
def expand_softmax(base: Floats, step: Floats, labels: Array, p: Floats, gradient: Floats) -> float:
    """Write the softmax and the gradient at the midpoints of steps; return how much the loss falls in all.

    A loss is log(1 + sum over other classes of exp(x_c - x_top)) + x_top - x_y: both parts are relative to the largest
    class, so that a large embedding does not swallow a small loss.
    """
    n_samples, n_classes = base.shape
    decrease, lost = 0.0, 0.0
    # 64 samples at a time, their classes side by side, so that the exponentials are vectorised.
    x, tops = np.empty(64 * n_classes), np.empty(64, np.intp)
    for first in range(0, n_samples, 64):
        n = min(64, n_samples - first)
        of_run = 0.0
        for end in range(2):
            of_run += (1 - 2 * end) * _powers(base, step, labels, first, n, end, x, tops)
            for i in range(n):
                others = 0.0
                x[i * n_classes + tops[i]] = 0.0
                for c in range(n_classes):
                    others += x[i * n_classes + c]
                of_run += (1 - 2 * end) * np.log1p(others)
        decrease, lost = add(decrease, lost, of_run)
        _powers(base, step, labels, first, n, 0.5, x, tops)
        for i in range(n):
            total = 0.0
            for c in range(n_classes):
                total += x[i * n_classes + c]
            for c in range(n_classes):
                p[first + i, c] = gradient[first + i, c] = x[i * n_classes + c] / total
            gradient[first + i, labels[first + i]] -= 1
    return decrease


@inlined
def _powers(
    base: Floats, step: Floats, labels: Array, first: int, n: int, time: float, x: Floats, tops: Array
) -> float:
    """Write exp(x_c - x_top) of `n` samples at a `time` of the step, and their largest classes.

    Return the sum of x_top - x_y.
    """
    n_classes = base.shape[1]
    missed = 0.0
    for i in range(n):
        row = x[i * n_classes : (i + 1) * n_classes]
        top = 0
        for c in range(n_classes):
            row[c] = base[first + i, c] + time * step[first + i, c]
            if row[c] > row[top]:
                top = c
        tops[i] = top
        largest = row[top]
        missed += largest - row[labels[first + i]]
        for c in range(n_classes):
            row[c] -= largest
    flat = x[: n * n_classes]
    for j in range(len(flat)):
        flat[j] = exp(flat[j])
    return missed


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
