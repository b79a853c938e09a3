"""The losses of the server, as functions of the summed embedding.

Shapes, used by every method here: an embedding `x` is `(..., samples, classes)`, `classes` being 1 for a scalar
embedding; `labels` is what `encode` returned, with the samples in front; a loss value is `(..., samples)`. Results are
float64 whatever `x` is.

Each loss states the constants that the error bounds need. They hold for every label and every embedding:

- `lipschitz`: G of the paper, the largest Euclidean norm of the gradient;
- `smoothness`: L of the paper, the largest eigenvalue of the Hessian;
- `gradient_range`: the largest |(f'(x) - f'(x')) . v| over all x, x' and v of `spread` 1;
- `third_derivative`, `fifth_derivative`: the largest |D^n f(x)[v, w, ..., w]| for n = 3 and 5 over v and w of `spread`
  1. docs/closed-form.md derives them.

A loss that does not change when the same number is added to all classes says so (`shift_invariant`): its `spread` is
then the range over classes, and otherwise the Euclidean norm.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedsv.arguments import as_array
from verfedsv.compiled import compiled, exp, sigmoid, softplus
from verfedsv.errors import InputError

Array = NDArray[Any]
Floats = NDArray[np.float64]


class CubicForm(NamedTuple):
    """The third derivative of a loss at a point: D^3 f[u, v, w] = sum_c weights_c (u - ū)_c (v - v̄)_c (w - w̄)_c.

    ū is the mean of u under `centre`, the sum of centre_c u_c. Both arrays are shaped as the point.
    """

    weights: Array
    centre: Array


class Expansion(NamedTuple):
    """A loss around the midpoint of a step: its gradient and third derivative there, (samples, classes) each.

    `decrease` is how much the loss falls over the whole step, summed over samples.
    """

    gradient: Floats
    cubic: CubicForm
    decrease: float


class Loss(ABC):
    """A smooth loss f(x; y) of the summed embedding x of one sample and its label y."""

    name: ClassVar[str]
    lipschitz: ClassVar[float]
    smoothness: ClassVar[float]
    gradient_range: ClassVar[float]
    third_derivative: ClassVar[float]
    fifth_derivative: ClassVar[float]
    shift_invariant: ClassVar[bool] = False

    @abstractmethod
    def encode(self, labels: Array, n_classes: int) -> Array:
        """Return the labels in the form the other methods take; raise InputError if they do not fit the loss."""

    @abstractmethod
    def value(self, x: Array, labels: Array) -> Array:
        """Return the loss of each sample, (..., samples)."""

    @abstractmethod
    def gradient(self, x: Array, labels: Array) -> Array:
        """Return the derivative of the loss of each sample by its embedding, shaped as `x`."""

    @abstractmethod
    def cubic_form(self, x: Array, labels: Array) -> CubicForm:
        """Return the third derivative of the loss at `x`."""

    def third(self, x: Array, labels: Array, v: Array, w: Array) -> Array:
        """Return the vector of u -> D^3 f(x)[u, v, w] of each sample, shaped as `x`."""
        weights, centre = self.cubic_form(x, labels)
        product = weights * (v - dot(centre, v)) * (w - dot(centre, w))
        result: Array = product - centre * product.sum(axis=-1, keepdims=True)
        return result

    def expand(self, base: Floats, step: Floats, labels: Array) -> Expansion:
        """Return the expansion around `base + step / 2` of a step from `base`, (samples, classes) each."""
        middle = base + 0.5 * step
        decrease = self.value(base, labels).sum() - self.value(base + step, labels).sum()
        return Expansion(self.gradient(middle, labels), self.cubic_form(middle, labels), float(decrease))

    def remainder_variation(self, middle: Array, reach: Floats, scale: Floats) -> Floats:  # noqa: ARG002  # Logistic's
        """Return how much the derivative of what sampling estimates can vary, per unit of spread, (samples,).

        That is (f'(c + u) + f'(c - u)) / 2 - scale D^3 f(c)[u, u, .] / 2 around c = `middle`, for u up to `reach`.
        """
        cubic = self.third_derivative * reach**2
        result: Floats = np.minimum(self.gradient_range, cubic) + scale * cubic
        return result

    def spread(self, v: Array) -> Array:
        """Return the size of a change that the bounds are stated in, (..., samples)."""
        if v.shape[-1] == 1:
            return np.abs(v[..., 0])
        result: Array = v.max(axis=-1) - v.min(axis=-1) if self.shift_invariant else np.sqrt(dot(v, v)[..., 0])
        return result

    def __repr__(self) -> str:
        return f"<{self.name} loss>"


class LogPartitionLoss(Loss):
    """A loss log(sum over c of exp(x_c)) - x_y, whose coalitions can be summed without a single exponential."""

    has_zero_class: ClassVar[bool]
    """Whether the sum over c contains one more class whose embedding is always 0."""

    @abstractmethod
    def label_part(self, x: Array, labels: Array) -> Array:
        """Return the linear part x_y of each sample, (..., samples)."""


class Logistic(LogPartitionLoss):
    """log(1 + exp(-y x)) for a label y of -1 or +1 and a scalar embedding x.

    >>> loss = Logistic()
    >>> labels = loss.encode(np.array([0, 1]), n_classes=1)
    >>> loss.value(np.array([[0.0], [3.0]]), labels).round(4)
    array([0.6931, 0.0486])
    """

    name = "logistic"
    lipschitz = 1.0
    smoothness = 0.25
    gradient_range = 1.0
    third_derivative = 1 / (6 * math.sqrt(3))
    # The largest p |1 - 12 p| sqrt(1 - 4 p) over p = s (1 - s) in [0, 1/4], at p = (15 + sqrt(105)) / 120, rounded up.
    fifth_derivative = 0.127683922
    has_zero_class = True

    def encode(self, labels: Array, n_classes: int) -> Array:
        if n_classes != 1:
            raise InputError(
                f"loss 'logistic' takes one number per client and sample, but the embeddings have {n_classes} classes; "
                "use loss='softmax' for several classes"
            )
        vector = _as_vector(labels, self.name)
        positive = vector == 1
        if not (positive | (vector == -1)).all() and not (positive | (vector == 0)).all():
            raise InputError(f"loss 'logistic' takes labels -1 and +1, or 0 and 1; received {_describe_values(vector)}")
        return np.where(positive, 1.0, -1.0)

    def value(self, x: Array, labels: Array) -> Array:
        # The sign of the label goes in first: well classified samples keep the full precision of their small loss.
        return _each(_softplus_each, x[..., 0] * -labels)

    def gradient(self, x: Array, labels: Array) -> Array:
        signs = -labels[:, np.newaxis]
        return signs * _each(_sigmoid_each, x * signs)

    def cubic_form(self, x: Array, labels: Array) -> CubicForm:  # noqa: ARG002  # the same for every label
        return CubicForm(_each(_logistic_third_each, x), np.zeros(x.shape))

    def remainder_variation(self, middle: Array, reach: Floats, scale: Floats) -> Floats:
        # Both terms grow from 0 with |u| and keep their sign, so each is largest at the end: three times tighter.
        c = middle[:, 0]
        mean = 0.5 * (_each(_sigmoid_each, c + reach) + _each(_sigmoid_each, c - reach))
        cubic = scale * _each(_logistic_third_each, c) * reach**2 / 2
        result: Floats = np.abs(mean - _each(_sigmoid_each, c)) + np.abs(cubic)
        return result

    def expand(self, base: Floats, step: Floats, labels: Array) -> Expansion:
        # One compiled loop in place of some twenty array operations: twice as fast for a round of 14 clients.
        gradient, weights = np.empty(base.shape), np.empty(base.shape)
        decrease = _expand_logistic(base.ravel(), step.ravel(), labels, gradient.ravel(), weights.ravel())
        return Expansion(gradient, CubicForm(weights, np.zeros(base.shape)), decrease)

    def label_part(self, x: Array, labels: Array) -> Array:
        return x[..., 0] * (labels > 0)


class Softmax(LogPartitionLoss):
    """Cross entropy of the softmax of an embedding of C classes with a label in 0..C-1."""

    name = "softmax"
    lipschitz = math.sqrt(2)
    smoothness = 0.5
    gradient_range = 1.0
    third_derivative = 0.25
    fifth_derivative = 0.19
    shift_invariant = True
    has_zero_class = False

    def encode(self, labels: Array, n_classes: int) -> Array:
        if n_classes < 2:
            raise InputError(
                "loss 'softmax' takes embeddings of shape (clients, samples, classes) with at least 2 classes; "
                "use loss='logistic' for one number per client and sample"
            )
        vector = _as_vector(labels, self.name)
        if vector.min() < 0 or vector.max() >= n_classes or (vector != np.floor(vector)).any():
            raise InputError(
                f"loss 'softmax' with {n_classes} classes takes whole labels 0 to {n_classes - 1}; "
                f"received {_describe_values(vector)}"
            )
        return vector.astype(np.intp)

    def value(self, x: Array, labels: Array) -> Array:
        rows = _as_rows(x)
        result = np.empty(rows.shape[:-1])
        _log_partition_each(rows, result)
        # Both parts are relative to the largest class, so that a large embedding does not swallow a small loss.
        result += rows.max(axis=-1) - self.label_part(rows, labels)
        return result.reshape(x.shape[:-1])

    def gradient(self, x: Array, labels: Array) -> Array:
        p = _softmax(x)
        p[..., np.arange(x.shape[-2]), labels] -= 1
        return p

    def cubic_form(self, x: Array, labels: Array) -> CubicForm:  # noqa: ARG002  # the same for every label
        # The third derivative of log-sum-exp is the third cumulant under p = softmax(x).
        p = _softmax(x)
        return CubicForm(p, p)

    def expand(self, base: Floats, step: Floats, labels: Array) -> Expansion:
        # One compiled loop with vectorised exponentials in place of the four functions above: six times faster.
        p, gradient = np.empty(base.shape), np.empty(base.shape)
        decrease = _expand_softmax(base, step, labels, p, gradient)
        return Expansion(gradient, CubicForm(p, p), decrease)

    def label_part(self, x: Array, labels: Array) -> Array:
        return x[..., np.arange(x.shape[-2]), labels]


class Squared(Loss):
    """Half the squared distance between the embedding and the label, (samples,) or (samples, classes)."""

    name = "squared"
    lipschitz = math.inf
    smoothness = 1.0
    gradient_range = math.inf
    third_derivative = 0.0
    fifth_derivative = 0.0

    def encode(self, labels: Array, n_classes: int) -> Array:
        targets = _as_real(labels, self.name)
        if targets.ndim == 1 and n_classes == 1:
            targets = targets[:, np.newaxis]
        if targets.ndim != 2 or targets.shape[1] != n_classes:
            expected = "(samples,)" if n_classes == 1 else f"(samples, {n_classes})"
            raise InputError(
                f"loss 'squared' with embeddings of {n_classes} classes takes labels of shape {expected}; "
                f"received {labels.shape}"
            )
        return targets.astype(np.float64)

    def value(self, x: Array, labels: Array) -> Array:
        residual = x - labels
        result: Array = 0.5 * dot(residual, residual)[..., 0]
        return result

    def gradient(self, x: Array, labels: Array) -> Array:
        result: Array = x - labels
        return result

    def cubic_form(self, x: Array, labels: Array) -> CubicForm:  # noqa: ARG002  # the same for every label
        zero = np.zeros(x.shape)
        return CubicForm(zero, zero)


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (Logistic(), Softmax(), Squared())}


def get_loss(loss: str | Loss) -> Loss:
    """Return the loss of that name, or `loss` itself when it is one already."""
    if isinstance(loss, Loss):
        return loss
    try:
        return LOSSES[loss]
    except (KeyError, TypeError):
        raise InputError(f"unknown loss {loss!r}; allowed are {', '.join(map(repr, LOSSES))}") from None


def dot(v: Array, w: Array) -> Array:
    """Return the sum over classes of `v * w`, keeping that axis."""
    if v.shape[-1] == 1:
        product: Array = v * w
        return product
    return np.asarray(np.einsum("...c,...c->...", v, w))[..., np.newaxis]


def _each(function: Callable[[Floats, Floats], None], x: Array) -> Floats:
    """Return an elementwise compiled function of `x`."""
    argument = np.ascontiguousarray(x, dtype=np.float64)
    result = np.empty(argument.shape)
    function(argument.ravel(), result.ravel())
    return result


def _as_rows(x: Array) -> Floats:
    return np.ascontiguousarray(x, dtype=np.float64).reshape(-1, x.shape[-2], x.shape[-1])


def _softmax(x: Array) -> Floats:
    rows = _as_rows(x)
    p = np.empty(rows.shape)
    _softmax_each(rows, p)
    return p.reshape(x.shape)


@compiled
def _softplus_each(x: Floats, result: Floats) -> None:
    for i in range(len(x)):
        result[i] = softplus(x[i])


@compiled
def _sigmoid_each(x: Floats, result: Floats) -> None:
    for i in range(len(x)):
        result[i] = sigmoid(x[i])


@compiled
def _logistic_third_each(x: Floats, result: Floats) -> None:
    for i in range(len(x)):
        s = sigmoid(x[i])
        result[i] = s * (1 - s) * (1 - 2 * s)


@compiled
def _expand_logistic(base: Floats, step: Floats, labels: Floats, gradient: Floats, weights: Floats) -> float:
    """Write gradient and third derivative at the midpoints of scalar steps; return how much the loss falls in all."""
    decrease = 0.0
    for i in range(len(base)):
        sign, middle = -labels[i], base[i] + 0.5 * step[i]
        # Both tails of the sigmoid from one exponential, each to full relative precision.
        small = exp(-abs(middle))
        large = 1 / (1 + small)
        small *= large
        gradient[i] = sign * (large if sign * middle > 0 else small)
        weights[i] = small * large * (small - large if middle > 0 else large - small)
        decrease += softplus(sign * base[i]) - softplus(sign * (base[i] + step[i]))
    return decrease


@compiled
def _expand_softmax(base: Floats, step: Floats, labels: Array, p: Floats, gradient: Floats) -> float:
    """Write the softmax and the gradient at the midpoints of steps; return how much the loss falls in all.

    A loss is log(1 + sum over other classes of exp(x_c - x_top)) + x_top - x_y: both parts are relative to the largest
    class, so that a large embedding does not swallow a small loss.
    """
    n_samples, n_classes = base.shape
    decrease = 0.0
    # 64 samples at a time, their classes side by side, so that the exponentials are vectorised.
    x, tops = np.empty(64 * n_classes), np.empty(64, np.intp)
    for first in range(0, n_samples, 64):
        n = min(64, n_samples - first)
        for end in range(2):
            decrease += (1 - 2 * end) * _powers(base, step, labels, first, n, end, x, tops)
            for i in range(n):
                others = 0.0
                x[i * n_classes + tops[i]] = 0.0
                for c in range(n_classes):
                    others += x[i * n_classes + c]
                decrease += (1 - 2 * end) * np.log1p(others)
        _powers(base, step, labels, first, n, 0.5, x, tops)
        for i in range(n):
            total = 0.0
            for c in range(n_classes):
                total += x[i * n_classes + c]
            for c in range(n_classes):
                p[first + i, c] = gradient[first + i, c] = x[i * n_classes + c] / total
            gradient[first + i, labels[first + i]] -= 1
    return decrease


@compiled
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
def _log_partition_each(x: Floats, result: Floats) -> None:
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


def _as_real(labels: Array, name: str) -> Array:
    array = as_array("labels", labels)
    if not np.isfinite(array).all():
        raise InputError(f"loss {name!r} takes finite labels; received NaN or infinity")
    return array


def _as_vector(labels: Array, name: str) -> Array:
    array = _as_real(labels, name)
    if array.ndim != 1:
        hint = "; use labels.ravel()" if array.size == len(array) else ""
        hint = hint or ("; use labels.argmax(axis=1) if they are one-hot" if name == "softmax" else "")
        raise InputError(f"loss {name!r} takes labels of shape (samples,); received {array.shape}{hint}")
    return array


def _describe_values(labels: Array) -> str:
    distinct = np.unique(labels)
    shown = ", ".join(f"{v:g}" for v in distinct[:6])
    return f"the values {shown}" + (f" and {len(distinct) - 6} more" if len(distinct) > 6 else "")
