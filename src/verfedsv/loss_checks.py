"""Checks of a loss of a user's own: its methods against numeric derivatives of each other, its constants against both.

Wrong derivatives or constants give wrong values with a certificate. A check at some points finds mistakes; it cannot
prove that there are none.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from verfedsv.arguments import as_array
from verfedsv.errors import InputError
from verfedsv.losses import LOSSES, Array, Floats, Loss, dot, get_loss

STEPS = (-2, -1, 0, 1, 2)
FIRST = np.array([1, -8, 0, 8, -1]) / 12
SECOND = np.array([-1, 16, -30, 16, -1]) / 12
"""Weights of function values at `STEPS` that give the first and second derivatives, to fourth order."""

SLACK = 1e-3
"""Relative to the largest derivative of its kind, which allows for losses that compute in float32."""


def check_loss(loss: str | Loss, labels: ArrayLike, n_classes: int = 1, *, n_points: int = 256, seed: int = 0) -> None:
    """Raise InputError if a loss contradicts itself at random points: value, gradient, third derivative, constants.

    Labels are those of a training, of which `n_points` are taken; `n_classes` is the width of the summed embedding.
    Every loss of your own is checked like this at a few points whenever it is used.

    >>> check_loss("softmax", labels=[0, 1, 2], n_classes=3)
    """
    loss = get_loss(loss)
    _check(loss, loss.encode(as_array("labels", labels), n_classes), n_classes, n_points, seed)


def encode_checked(loss: Loss, labels: Array, n_classes: int) -> Array:
    """Return the labels as the loss takes them; a loss that is none of this package is checked at a few points."""
    encoded = loss.encode(labels, n_classes)
    if type(loss) is not type(LOSSES.get(loss.name)):
        _check(loss, encoded, n_classes, n_points=8, seed=0)
    return encoded


def _check(loss: Loss, encoded: Array, n_classes: int, n_points: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    labels = encoded[np.linspace(0, len(encoded) - 1, n_points).astype(np.intp)]
    x = np.geomspace(0.1, 4, n_points)[:, np.newaxis] * rng.normal(size=(n_points, n_classes))
    v, w = (u / loss.spread(u)[:, np.newaxis] for u in rng.normal(size=(2, n_points, n_classes)))
    third_size, fifth_size = loss.third_derivative, loss.fifth_derivative
    # The root is the scale on which derivatives change, if the constants are right.
    h = 0.05 * (math.sqrt(third_size / fifth_size) if 0 < min(third_size, fifth_size) < math.inf else 1.0)
    line = [x + step * h * w for step in STEPS]
    values = [_shaped(loss, "value", loss.value(point, labels), (n_points,)) for point in line]
    gradients = [_shaped(loss, "gradient", loss.gradient(point, labels), x.shape) for point in line]
    thirds = [_third(loss, point, labels, w) for point in line]
    gradient, third = gradients[2], thirds[2]
    hessian, numeric_third = _derivative(gradients, FIRST, h), _derivative(gradients, SECOND, h * h)
    fifth = _derivative(thirds, SECOND, h * h)
    if not np.allclose(loss.value(np.stack(line), labels), values, rtol=1e-6, atol=0):
        raise InputError(f"loss {loss.name!r}: value must take arrays (..., samples, classes), and give (..., samples)")
    _compare(loss, "the slope by gradient", dot(gradient, w), _derivative(values, FIRST, h)[:, np.newaxis], x)
    _compare(loss, "the third derivative by cubic_form", third, numeric_third, x)
    if loss.shift_invariant and n_classes > 1:
        shifted = loss.value(x + 1, labels)
        if not np.allclose(shifted, values[2], rtol=SLACK, atol=1e-6):
            raise InputError(
                f"loss {loss.name!r}: shift_invariant is True, and adding 1 to all classes changes its value"
            )
    jump = gradient - loss.gradient(x[::-1], labels)
    norm = np.sqrt(dot(w, w)[:, 0])
    found = {
        "lipschitz": np.sqrt(dot(gradient, gradient)[:, 0]),
        "smoothness": np.sqrt(dot(hessian, hessian)[:, 0]) / norm,
        "gradient_range": np.abs([dot(jump, v), dot(jump, w)]),
        "third_derivative": np.abs([dot(third, v), dot(third, w)]),
        "fifth_derivative": np.abs([dot(fifth, v), dot(fifth, w)]),
    }
    for name, sizes in found.items():
        stated, largest = getattr(loss, name), float(sizes.max())
        if largest > stated * (1 + 10 * SLACK) + 1e-6:
            raise InputError(f"loss {loss.name!r}: {name} is said to be {stated:g}, and {largest:g} was found")


def _third(loss: Loss, x: Floats, labels: Array, w: Floats) -> Floats:
    """Return D^3 f(x)[w, w, .] from the loss's cubic form."""
    weights, centre = (_shaped(loss, "cubic_form", part, x.shape) for part in loss.cubic_form(x, labels))
    product = weights * (w - dot(centre, w)) ** 2
    result: Floats = product - centre * product.sum(axis=-1, keepdims=True)
    return result


def _derivative(at_steps: list[Floats], weights: Floats, divisor: float) -> Floats:
    return np.asarray(np.tensordot(weights, at_steps, axes=1) / divisor)


def _shaped(loss: Loss, method: str, result: ArrayLike, shape: tuple[int, ...]) -> Floats:
    array = np.asarray(result)
    if array.shape != shape or not np.isfinite(array).all():
        what = "numbers that are not finite" if array.shape == shape else f"shape {array.shape}"
        raise InputError(f"loss {loss.name!r}: {method} must return finite numbers of shape {shape}; received {what}")
    return array


def _compare(loss: Loss, what: str, stated: Floats, numeric: Floats, x: Floats) -> None:
    off = np.abs(stated - numeric).max(axis=-1)
    row = int(off.argmax())
    if off[row] > SLACK * max(np.abs(stated).max(), np.abs(numeric).max()) + 1e-6:
        ours, theirs, where = (array[row].round(6).tolist() for array in (stated, numeric, x))
        raise InputError(
            f"loss {loss.name!r}: {what} is {ours} at x = {where}, and by numeric differences it is {theirs}"
        )
