"""The loops of the losses, compiled."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.compiled import compiled, exp, inlined, sigmoid, softplus
from verfedsv.vectors import (
    LANES,
    Vector,
    absolute,
    exp_lanes,
    fill,
    if_equal,
    if_larger,
    larger,
    largest_lane,
    load,
    load_apart,
    store,
    sum_lanes,
    twice_artanh,
)

_SHORT = 0.35
"""Limit of the series: of the step for the logistic loss, of half the step relative to the label's for softmax. Terms
left out are below the rounding error. Eight samples take the series together, or none of them."""


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
def expand_logistic(base: Vector, step: Vector, labels: Vector) -> tuple[Vector, Vector, Vector]:
    """Return gradients and third derivatives at the midpoints of scalar steps, and the decreases of the loss."""
    middle, zero = base + 0.5 * step, fill(0.0)
    # Both tails of the sigmoid from one exponential, each to full relative precision.
    small = exp_lanes(zero - absolute(middle))
    large = 1.0 / (1.0 + small)
    small = small * large
    gradient = (zero - labels) * if_larger(labels * middle, zero, small, large)
    third = small * large * if_larger(middle, zero, small - large, large - small)
    if largest_lane(absolute(step)) <= _SHORT:
        # Taylor's series around the midpoint, whose even terms cancel: no exponentials, and no cancellation.
        half, slope = 0.5 * step, absolute(gradient)
        u, h = slope * (1.0 - slope), half * half
        ninth = 1.0 + u * (u * (5040.0 - 20160.0 * u) - 252.0)
        eleventh = 1.0 + u * (u * (52920.0 + u * (1814400.0 * u - 604800.0)) - 1020.0)
        tail = (1.0 + u * (360.0 * u - 60.0)) * (1 / 5040) + h * (ninth * (1 / 362880) + h * eleventh * (1 / 39916800))
        tail = 1 / 6 + h * ((1.0 - 12.0 * u) * (1 / 120) + h * tail)
        decrease = zero - step * (gradient + third * h * tail)
    else:
        # log(1 + e^x) is max(x, 0) + log(1 + e^-|x|); the difference of two logarithms takes one series.
        before, after = zero - labels * base, zero - labels * (base + step)
        y, z = exp_lanes(zero - absolute(before)), exp_lanes(zero - absolute(after))
        decrease = (larger(before, zero) - larger(after, zero)) + twice_artanh((y - z) / (2.0 + (y + z)))
    return gradient, third, decrease


@inlined
def expand_softmax(
    base: Floats, step: Floats, labels: Array, first: int, p: Floats, gradient: Floats, line: Floats
) -> float:
    """Write softmax and gradient at the midpoints of eight steps; return the summed decrease of the loss.

    Eight numbers for each class. The labels begin with the `first`; `line` is space for eight numbers.
    """
    n_classes = len(base) // LANES
    top = fill(-np.inf)
    for c in range(0, n_classes * LANES, LANES):
        x = load(base, c) + 0.5 * load(step, c)
        store(p, c, x)
        top = larger(top, x)
    total = fill(0.0)
    for c in range(0, n_classes * LANES, LANES):
        x = exp_lanes(load(p, c) - top)
        store(p, c, x)
        total = total + x
    total = 1.0 / total
    of_label = of_labels(step, labels, first, line)
    # With u_c half the step of class c relative to that of the label, the decrease is -log(sum p e^u / sum p e^-u), or
    # -2 artanh(sum p sinh u / sum p cosh u): short series, and no difference of losses.
    odd, even, longest = fill(0.0), fill(0.0), fill(0.0)
    for c in range(0, n_classes * LANES, LANES):
        weight = load(p, c) * total
        store(p, c, weight)
        store(gradient, c, weight)
        u = 0.5 * (load(step, c) - of_label)
        longest = larger(longest, absolute(u))
        s = u * u
        tail = 1 / 5040 + s * (1 / 362880 + s * (1 / 39916800 + s * (1 / 6227020800)))
        odd = odd + weight * u * (1.0 + s * (1 / 6 + s * (1 / 120 + s * tail)))
        tail = 1 / 720 + s * (1 / 40320 + s * (1 / 3628800 + s * (1 / 479001600)))
        even = even + weight * (1.0 + s * (1 / 2 + s * (1 / 24 + s * tail)))
    subtract_labels(gradient, labels, first)
    if largest_lane(longest) <= _SHORT:
        decrease: float = -sum_lanes(twice_artanh(odd / even))
    else:
        decrease = _decrease_softmax(base, step, labels, first, line)
    return decrease


@inlined
def _decrease_softmax(base: Floats, step: Floats, labels: Array, first: int, line: Floats) -> float:
    """Return the summed decrease of the loss over eight steps of any length.

    The loss is log(1 + sum over other classes of exp(x_c - x_top)) + x_top - x_y: both parts are relative to the
    largest class, so that a small loss is not lost beside a large embedding.
    """
    n_classes = len(base) // LANES
    of_label, decrease = of_labels(base, labels, first, line), fill(0.0)
    step_of_label = of_labels(step, labels, first, line)
    before, after = fill(0.0), fill(0.0)
    for time in (0.0, 1.0):
        top, index = fill(-np.inf), fill(0.0)
        for c in range(n_classes):
            x = load(base, c * LANES) + time * load(step, c * LANES)
            index = if_larger(x, top, fill(float(c)), index)
            top = larger(x, top)
        before, after = after, fill(0.0)
        for c in range(n_classes):
            x = load(base, c * LANES) + time * load(step, c * LANES)
            after = after + if_equal(index, fill(float(c)), fill(0.0), exp_lanes(x - top))
        decrease = (top - (of_label + time * step_of_label)) - decrease
    total: float = sum_lanes(log1p_lanes((before - after) / (1.0 + after), line) - decrease)
    return total


@inlined
def of_labels(numbers: Floats, labels: Array, first: int, line: Floats) -> Vector:
    """Return the numbers of the classes that are the labels of eight samples."""
    for i in range(LANES):
        line[i] = numbers[labels[first + i] * LANES + i]
    return load(line, 0)


@inlined
def subtract_labels(numbers: Floats, labels: Array, first: int) -> None:
    """Subtract 1 from the numbers of the classes that are the labels of eight samples."""
    for i in range(LANES):
        numbers[labels[first + i] * LANES + i] -= 1


@inlined
def log1p_lanes(x: Vector, line: Floats) -> Vector:
    """Return log(1 + x) of eight numbers."""
    store(line, 0, x)
    for i in range(LANES):
        line[i] = np.log1p(line[i])
    return load(line, 0)


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
def softmax_losses(x: Floats, labels: Array, result: Floats) -> None:
    """Write the softmax losses of embeddings, (..., samples, classes); there must be at least eight samples.

    The loss is log(1 + sum over other classes of exp(x_c - x_top)) + x_top - x_y: both parts are relative to the
    largest class, so that a small loss is not lost beside a large embedding.
    """
    n_rows, n_samples, n_classes = x.shape
    numbers, line = x.reshape(x.size), np.empty(LANES)
    for row in range(n_rows):
        for first in range(0, n_samples, LANES):
            i = min(first, n_samples - LANES)  # the last block may repeat samples of the one before
            at = (row * n_samples + i) * n_classes
            top, index = fill(-np.inf), fill(0.0)
            for c in range(n_classes):
                each_x = load_apart(numbers, at + c, n_classes)
                index = if_larger(each_x, top, fill(float(c)), index)
                top = larger(each_x, top)
            others = fill(0.0)
            for c in range(n_classes):
                power = exp_lanes(load_apart(numbers, at + c, n_classes) - top)
                others = others + if_equal(index, fill(float(c)), fill(0.0), power)
            others = log1p_lanes(others, line)
            for j in range(LANES):
                line[j] = numbers[at + j * n_classes + labels[i + j]]
            store(line, 0, others + (top - load(line, 0)))
            result[row, i : i + LANES] = line
