"""What the numbers of a valuation depend on besides its settings, in short: to continue only work on the same ones."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from verfedsv.arrays import Array
from verfedsv.completion import CompletionReport
from verfedsv.losses import CONSTANTS, Loss
from verfedsv.valuation.trainings import RecordedTraining

N_POINTS = 64
"""At how many points a user's own functions are compared."""


def fingerprints(training: RecordedTraining, like: Sequence[CompletionReport] | None) -> dict[str, Any]:
    """Return what a training is, what its own loss and head compute, and the completion to repeat, ready for JSON.

    A user's functions have no name that says what they compute, and a module that was edited keeps its name: so what
    they return at fixed points counts, to eight digits, as processors round differently.
    """
    loss, head = training.own_loss, training.head
    return {
        "transcript": training.transcript.head,
        "loss": None if loss is None else _digest(_of_loss(loss, training)),
        "head": None if head is None else _digest([head.probe(training.first_state, N_POINTS)]),
        "like": None if like is None else [[r.rank, float(r.regularization), list(r.fit_sweeps)] for r in like],
    }


def _of_loss(loss: Loss, training: RecordedTraining) -> list[Array]:
    """Return the constants of a loss, and what its methods return at some points."""
    labels = training.labels[np.linspace(0, training.n_samples - 1, N_POINTS).astype(np.intp)]
    x = np.random.default_rng(0).normal(size=(N_POINTS, training.n_classes))
    x *= np.geomspace(0.01, 20, N_POINTS)[:, np.newaxis]
    reach, scale = np.geomspace(0.01, 2, N_POINTS), np.ones(N_POINTS)
    with np.errstate(all="ignore"):
        methods = loss.value(x, labels), loss.gradient(x, labels), *loss.cubic_form(x, labels), loss.spread(x)
        variation = loss.remainder_variation(x, reach, scale)
    constants = (getattr(loss, name) for name in (*CONSTANTS, "shift_invariant", "rounding_is_bounded"))
    return [*(np.array(float(constant)) for constant in constants), *methods, variation]


def _digest(arrays: Iterable[Array]) -> str:
    """Return a hash of arrays, each to eight digits of its largest number."""
    result = hashlib.sha256()
    for array in arrays:
        numbers = np.asarray(array, np.float64)
        finite = np.abs(numbers[np.isfinite(numbers)])
        size = float(finite.max(initial=0.0)) or 1.0
        rounded = np.round(numbers / size, 8) + 0.0  # without negative zeros
        result.update(json.dumps([numbers.shape, f"{size:.7e}", rounded.ravel().tolist()]).encode())
    return result.hexdigest()
