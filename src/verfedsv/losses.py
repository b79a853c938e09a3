"""Losses as functions of the summed embedding.

Shapes in all methods: an embedding `x` is `(..., samples, classes)`, with `classes` 1 for a scalar embedding; `labels`
are those that `encode` returned, samples first; a loss value is `(..., samples)`. Results are float64.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Real
from typing import ClassVar, NamedTuple

import numpy as np

from verfedsv.arguments import as_array
from verfedsv.arrays import LARGEST_LABEL, Array, Floats
from verfedsv.errors import InputError
from verfedsv.loss_loops import (
    as_rows,
    each,
    logistic_third_each,
    sigmoid_each,
    softmax,
    softmax_losses,
    softplus_each,
)
from verfedsv.vectors import LANES

CONSTANTS = ("lipschitz", "smoothness", "gradient_range", "third_derivative", "fifth_derivative")


class CubicForm(NamedTuple):
    """The third derivative of a loss at a point: D^3 f[u, v, w] = sum_c weights_c (u - ū)_c (v - v̄)_c (w - w̄)_c.

    ū is the mean of u under `centre`, the sum of centre_c u_c. Both arrays are shaped as the point.
    """

    weights: Array
    centre: Array


class Loss(ABC):
    """A smooth loss f(x; y) of the summed embedding x of one sample and its label y.

    To add one, implement `encode`, `value`, `gradient` and `cubic_form`, and set the constants that error bounds are
    computed from. They must hold for every label and every embedding; `math.inf` states no bound.

    - `lipschitz`: the largest Euclidean norm of the gradient, G of the paper;
    - `smoothness`: the largest eigenvalue of the Hessian, L of the paper;
    - `gradient_range`: the largest |(f'(x) - f'(x')) . v| over all x, x' and v of `spread` 1;
    - `third_derivative`, `fifth_derivative`: the largest |D^n f(x)[v, w, ..., w]| for n = 3 and 5 over v and w of
      `spread` 1. docs/closed-form.md derives those of the losses here.

    The `spread` of a change is its Euclidean norm, or its range over classes if `shift_invariant` is set because the
    same number added to all classes does not change the loss.

    Bounds allow for rounding: `value` may be off by a few units in the last place of |f| + |x| (1 + |f'|), `gradient`
    and `cubic_form` by a few units in their last place. A loss that is proven to do so sets `rounding_is_bounded`;
    otherwise errors are "certified but for rounding". `check_loss` compares methods and constants with numeric
    differences.
    """

    name: ClassVar[str]
    lipschitz: ClassVar[float]
    smoothness: ClassVar[float]
    gradient_range: ClassVar[float]
    third_derivative: ClassVar[float]
    fifth_derivative: ClassVar[float]
    shift_invariant: ClassVar[bool] = False
    rounding_is_bounded: ClassVar[bool] = False

    @abstractmethod
    def encode(self, labels: Array, n_classes: int) -> Array:
        """Return the labels as the other methods take them; raise InputError if they do not fit the loss."""

    @abstractmethod
    def value(self, x: Array, labels: Array) -> Array:
        """Return the loss of each sample, (..., samples)."""

    @abstractmethod
    def gradient(self, x: Array, labels: Array) -> Array:
        """Return the gradient of the loss of each sample, shaped as `x`."""

    @abstractmethod
    def cubic_form(self, x: Array, labels: Array) -> CubicForm:
        """Return the third derivative of the loss at `x`."""

    def remainder_variation(self, middle: Array, reach: Floats, scale: Floats) -> Floats:  # noqa: ARG002  # Logistic's
        """Return how much the slope of what `auto` samples can vary, per unit of spread, (samples,).

        The slope is (f'(c + u) + f'(c - u)) / 2 - scale D^3 f(c)[u, u, .] / 2 with c = `middle`, u up to `reach`.
        """
        cubic = self.third_derivative * reach**2
        return np.asarray(np.minimum(self.gradient_range, cubic) + scale * np.where(scale > 0, cubic, 0.0))

    def spread(self, v: Array) -> Array:
        """Return the spread of changes, (..., samples)."""
        if v.shape[-1] == 1:
            return np.abs(v[..., 0])
        return np.asarray(v.max(axis=-1) - v.min(axis=-1) if self.shift_invariant else np.sqrt(dot(v, v)[..., 0]))

    def __repr__(self) -> str:
        return f"<{self.name} loss>"


class LogPartitionLoss(Loss):
    """A loss log(sum over c of exp(x_c)) - x_y, whose coalitions are summed by products of exponentials.

    `has_zero_class`: the sum contains one more class, whose embedding is always 0.
    """

    has_zero_class: ClassVar[bool]

    @abstractmethod
    def probabilities(self, x: Array) -> Floats:
        """Return the probability of each class, (..., samples, C), where a scalar embedding has C = 2."""

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
    rounding_is_bounded = True
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
                f"loss 'logistic' takes one number per client and sample; received {n_classes}. If they are a hidden "
                "layer, pass each client's part of the logit instead; if they are one logit per class, use "
                "loss='softmax'"
            )
        vector = _as_vector(labels, self.name)
        positive = vector == 1
        n_others = max(np.count_nonzero(vector == -1), np.count_nonzero(vector == 0))
        if np.count_nonzero(positive) + n_others < len(vector):
            raise InputError(f"loss 'logistic' takes labels -1 and +1, or 0 and 1; received {_describe_values(vector)}")
        # A fifth of the time of np.where: 1 of 6 ms for 1.5 million labels.
        signs: Floats = (2 * positive.view(np.int8) - 1).astype(np.float64)
        return signs

    def value(self, x: Array, labels: Array) -> Array:
        # The sign of the label goes in first: the small loss of a well classified sample keeps its full precision.
        return each(softplus_each, x[..., 0] * -labels)

    def gradient(self, x: Array, labels: Array) -> Array:
        signs = -labels[:, np.newaxis]
        return signs * each(sigmoid_each, x * signs)

    def cubic_form(self, x: Array, labels: Array) -> CubicForm:  # noqa: ARG002  # the same for every label
        return CubicForm(each(logistic_third_each, x), np.zeros(x.shape))

    def remainder_variation(self, middle: Array, reach: Floats, scale: Floats) -> Floats:
        # Both terms grow from 0 with |u| and keep their sign, so both are largest at the end: three times tighter.
        c = middle[:, 0]
        mean = 0.5 * (each(sigmoid_each, c + reach) + each(sigmoid_each, c - reach))
        cubic = scale * each(logistic_third_each, c) * reach**2 / 2
        return np.asarray(np.abs(mean - each(sigmoid_each, c)) + np.abs(cubic))

    def probabilities(self, x: Array) -> Floats:
        return np.concatenate([each(sigmoid_each, -x), each(sigmoid_each, x)], axis=-1)

    def label_part(self, x: Array, labels: Array) -> Array:
        return x[..., 0] * (labels > 0)


class Softmax(LogPartitionLoss):
    """Cross entropy of the softmax of an embedding of C classes with a label in 0..C-1."""

    name = "softmax"
    rounding_is_bounded = True
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
        is_whole = vector.dtype.kind in "biu" or (vector == np.floor(vector)).all()
        if vector.min() < 0 or vector.max() >= n_classes or not is_whole:
            counts_from_1 = is_whole and vector.min() >= 1 and vector.max() == n_classes
            raise InputError(
                f"loss 'softmax' with {n_classes} classes takes whole labels 0 to {n_classes - 1}; "
                f"received {_describe_values(vector)}" + ("; if they count from 1, subtract 1" if counts_from_1 else "")
            )
        return vector.astype(np.intp)

    def value(self, x: Array, labels: Array) -> Array:
        rows, n_samples = as_rows(x), len(labels)
        if n_samples < LANES:
            rows = np.pad(rows, ((0, 0), (0, LANES - n_samples), (0, 0)))
            labels = np.pad(labels, (0, LANES - n_samples))
        result = np.empty(rows.shape[:-1])
        softmax_losses(rows, labels, result)
        return result[:, :n_samples].reshape(x.shape[:-1])

    def gradient(self, x: Array, labels: Array) -> Array:
        p = softmax(x)
        p[..., np.arange(x.shape[-2]), labels] -= 1
        return p

    def cubic_form(self, x: Array, labels: Array) -> CubicForm:  # noqa: ARG002  # the same for every label
        # The third derivative of log-sum-exp is the third cumulant under p = softmax(x).
        p = softmax(x)
        return CubicForm(p, p)

    def probabilities(self, x: Array) -> Floats:
        return softmax(x)

    def label_part(self, x: Array, labels: Array) -> Array:
        return x[..., np.arange(x.shape[-2]), labels]


class Squared(Loss):
    """Half the squared distance, |x - y|^2 / 2; labels y are (samples,) or (samples, classes)."""

    name = "squared"
    rounding_is_bounded = True
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
        targets = targets.astype(np.float64)
        if not (np.abs(targets) < LARGEST_LABEL).all():
            largest = np.abs(targets).max()
            raise InputError(f"loss 'squared' takes labels below {LARGEST_LABEL:g} in size; received {largest:g}")
        return targets

    def value(self, x: Array, labels: Array) -> Array:
        residual = x - labels
        return np.asarray(0.5 * dot(residual, residual)[..., 0])

    def gradient(self, x: Array, labels: Array) -> Array:
        return np.asarray(x - labels)

    def cubic_form(self, x: Array, labels: Array) -> CubicForm:  # noqa: ARG002  # the same for every label
        zero = np.zeros(x.shape)
        return CubicForm(zero, zero)


LOSSES: dict[str, Loss] = {loss.name: loss for loss in (Logistic(), Softmax(), Squared())}


def get_loss(loss: str | Loss) -> Loss:
    """Return the loss with that name, or `loss` itself if it is one with all constants."""
    if isinstance(loss, type) and issubclass(loss, Loss):
        raise InputError(f"loss must be an instance, and {loss.__name__} is a class; pass {loss.__name__}()")
    if not isinstance(loss, Loss):
        found = LOSSES.get(loss) if isinstance(loss, str) else None
        if found is None:
            allowed = ", ".join(map(repr, LOSSES))
            raise InputError(f"unknown loss {loss!r}; allowed are {allowed} and a verfedsv.Loss of your own")
        return found
    if not isinstance(getattr(loss, "name", None), str):
        raise InputError(f"{type(loss).__name__}: a loss needs a name, which is a text")
    for constant in CONSTANTS:
        size = getattr(loss, constant, None)
        if not isinstance(size, Real) or not float(size) >= 0:
            raise InputError(
                f"loss {loss.name!r}: {constant} must be a number, at least 0 (math.inf if there is no bound); "
                f"received {size!r}"
            )
    return loss


def is_own(loss: Loss) -> bool:
    """Return whether a loss is not one of this package."""
    return type(loss) is not type(LOSSES.get(loss.name))


def dot(v: Array, w: Array) -> Array:
    """Return the sum over classes of `v * w`, keeping that axis."""
    if v.shape[-1] == 1:
        return np.asarray(v * w)
    return np.asarray(np.einsum("...c,...c->...", v, w))[..., np.newaxis]


def _as_real(labels: Array, name: str) -> Array:
    array = as_array("labels", labels)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"loss {name!r} takes finite labels; received NaN or infinity")
    return array


def _as_vector(labels: Array, name: str) -> Array:
    array = _as_real(labels, name)
    if array.ndim != 1:
        one_hot = "; use labels.argmax(axis=1) if they are one-hot" if name == "softmax" else ""
        hint = "; use labels.ravel()" if array.size == len(array) else one_hot
        raise InputError(f"loss {name!r} takes labels of shape (samples,); received {array.shape}{hint}")
    return array


def _describe_values(labels: Array) -> str:
    distinct = np.unique(labels)
    shown = ", ".join(f"{v:g}" for v in distinct[:6])
    return f"the values {shown}" + (f" and {len(distinct) - 6} more" if len(distinct) > 6 else "")
