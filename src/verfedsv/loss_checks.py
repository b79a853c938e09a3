"""Checks of a user's loss: its methods against numeric derivatives of each other, its constants against both.

Wrong derivatives or constants would certify wrong values. A check at some points can find mistakes, not exclude them.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from verfedsv.arguments import as_array
from verfedsv.arrays import Array, Floats
from verfedsv.errors import InputError
from verfedsv.losses import Loss, dot, get_loss, is_own

STEPS = (-2, -1, 0, 1, 2)
FIRST = np.array([1, -8, 0, 8, -1]) / 12
SECOND = np.array([-1, 16, -30, 16, -1]) / 12
"""Weights of function values at `STEPS` in the first and second derivatives, to fourth order."""

SLACK = 1e-3
"""How far derivatives may differ, relative to the largest of their kind; enough for a loss computed in float32."""

ROUNDING = 1e-13
"""The rounding error of numeric differences, relative to the numbers subtracted, with some margin."""

FAR = 50.0
"""A large embedding, at which constants are compared too; its exponential still fits into float32."""


def check_loss(loss: str | Loss, labels: ArrayLike, n_classes: int = 1, *, n_points: int = 256, seed: int = 0) -> None:
    """Raise InputError if the value, gradient, third derivative and constants of a loss contradict each other.

    They are compared at `n_points` summed embeddings of `n_classes` numbers: 0 and random ones up to about 10 in size,
    the constants also at a distance of 50. Labels are taken from `labels`. Every loss of your own is checked like this
    at 8 points whenever it is used.

    >>> check_loss("softmax", labels=[0, 1, 2], n_classes=3)
    """
    loss, array = get_loss(loss), as_array("labels", labels)
    _check(loss, array, loss.encode(array, n_classes), n_classes, n_points, seed)


def encode_checked(loss: Loss, labels: Array, n_classes: int) -> Array:
    """Return the encoded labels; a user's own loss is checked at 8 points."""
    encoded = loss.encode(labels, n_classes)
    if is_own(loss):
        _check(loss, labels, encoded, n_classes, n_points=8, seed=0)
    return encoded


def _check(loss: Loss, given: Array, encoded: Array, n_classes: int, n_points: int, seed: int) -> None:
    if not isinstance(encoded, np.ndarray) or encoded.shape[:1] != given.shape[:1]:
        raise InputError(f"loss {loss.name!r}: encode must return an array with a row for each of {len(given)} samples")
    rng = np.random.default_rng(seed)
    labels = encoded[np.linspace(0, len(encoded) - 1, n_points).astype(np.intp)]
    x = np.geomspace(0.1, 4, n_points)[:, np.newaxis] * rng.normal(size=(n_points, n_classes))
    x[0] = 0.0  # where every training begins
    v, w = (u / loss.spread(u)[:, np.newaxis] for u in rng.normal(size=(2, n_points, n_classes)))
    third, fifth = loss.third_derivative, loss.fifth_derivative
    # If the constants are right, the root is the scale on which derivatives change.
    h = 0.05 * (math.sqrt(third / fifth) if 0 < third < math.inf and 0 < fifth < math.inf else 1.0)
    line = [x + step * h * w for step in STEPS]
    values = [as_shaped(loss, "value", loss.value(point, labels), (n_points,)) for point in line]
    gradients = [as_shaped(loss, "gradient", loss.gradient(point, labels), x.shape) for point in line]
    thirds = [_third(loss, point, labels, w) for point in line]
    size = _largest(values)
    together = np.asarray(loss.value(np.stack(line), labels))
    if together.shape != (len(STEPS), n_points) or _largest(together - values) > SLACK * size:
        raise InputError(f"loss {loss.name!r}: value must take (..., samples, classes) and return (..., samples)")
    if loss.shift_invariant and n_classes > 1 and _largest(loss.value(x + 1, labels) - values[2]) > SLACK * size:
        raise InputError(f"loss {loss.name!r}: shift_invariant is True, but adding 1 to all classes changes its value")
    slope = _derivative(values, FIRST, h)[:, np.newaxis]
    _compare(loss, "the slope by gradient", dot(gradients[2], w), slope, x, ROUNDING * size / h)
    noise = ROUNDING * _largest(gradients) / h**2
    _compare(loss, "the third derivative by cubic_form", thirds[2], _derivative(gradients, SECOND, h**2), x, noise)
    far = [as_shaped(loss, "gradient", loss.gradient(point, labels), x.shape) for point in (FAR * v, -FAR * v)]
    jumps = gradients[2] - np.stack([loss.gradient(x[::-1], labels), *far])
    bent, fifths = _derivative(gradients, FIRST, h), _derivative(thirds, SECOND, h**2)
    found = {
        "lipschitz": _largest(_norm(np.stack([gradients[2], *far]))),
        "smoothness": _largest(_norm(bent) / _norm(w)),
        "gradient_range": _largest([dot(jumps, v), dot(jumps, w)]),
        "third_derivative": _largest([dot(thirds[2], v), dot(thirds[2], w)]),
        "fifth_derivative": _largest([dot(fifths, v), dot(fifths, w)]),
    }
    noise += ROUNDING * _largest(thirds) / h**2
    for name, largest in found.items():
        stated = getattr(loss, name)
        if largest > stated * (1 + 10 * SLACK) + noise:
            raise InputError(f"loss {loss.name!r}: {name} is stated as {stated:g}, but {largest:g} was found")


def _largest(numbers: ArrayLike) -> float:
    return float(np.abs(numbers).max())


def _norm(v: Floats) -> Floats:
    return np.asarray(np.sqrt(dot(v, v)))


def _third(loss: Loss, x: Floats, labels: Array, w: Floats) -> Floats:
    """Return D^3 f(x)[w, w, .] by the loss's cubic form."""
    weights, centre = (as_shaped(loss, "cubic_form", part, x.shape) for part in loss.cubic_form(x, labels))
    product = weights * (w - dot(centre, w)) ** 2
    return np.asarray(product - centre * product.sum(axis=-1, keepdims=True))


def _derivative(at_steps: list[Floats], weights: Floats, divisor: float) -> Floats:
    return np.asarray(np.tensordot(weights, at_steps, axes=1) / divisor)


def as_shaped(loss: Loss, method: str, result: ArrayLike, shape: tuple[int, ...]) -> Floats:
    """Return what a method of a loss returned as contiguous float64; raise InputError if it is something else."""
    array = np.ascontiguousarray(as_array(f"what {method} of loss {loss.name!r} returns", result), dtype=np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        what = "numbers that are not finite" if array.shape == shape else f"shape {array.shape}"
        raise InputError(f"loss {loss.name!r}: {method} must return finite numbers of shape {shape}; received {what}")
    return array


def _compare(loss: Loss, what: str, stated: Floats, numeric: Floats, x: Floats, noise: float) -> None:
    """Raise InputError unless stated derivatives are the numeric ones, up to a noise of rounding."""
    off = np.abs(stated - numeric).max(axis=-1)
    row = int(off.argmax())
    if off[row] > SLACK * _largest([stated, numeric]) + noise:
        ours, theirs, where = (array[row].round(6).tolist() for array in (stated, numeric, x))
        raise InputError(
            f"loss {loss.name!r}: {what} is {ours} at x = {where}, but by numeric differences it is {theirs}"
        )
