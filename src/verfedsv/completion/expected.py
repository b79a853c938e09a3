"""Expected errors of all completed embeddings, from how much the uploads of each sample determine its factors.

Held-out uploads are not a fair sample of missing ones. A sample uploaded only before the first step, when its
embedding is zero, is completed with zeros, and no held-out upload shows that error.
"""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np

from verfedsv.arrays import Floats
from verfedsv.completion.factors import Factors
from verfedsv.completion.sweeps import Observed

MAX_SAMPLES = 1024
"""The most samples that errors of completion are estimated from."""

_STEPS = 20


def expected_errors(
    chosen: Observed, factors: Factors, regularization: float, held_out_rmse: float
) -> tuple[float, float]:
    """Return the expected root mean squared error of all embeddings, and their expected root mean square.

    They are estimated from some samples, with the factors of these and of all rounds.

    With A_i the sum of w w' over the uploads of sample i, least squares finds the part R_i = A_i (A_i + lambda)^-1 of
    its true factors and loses the part Q_i = I - R_i. With S the second moment of the true factors, that of
    the fitted ones is the mean of R_i S R_i, which is solved for S by few steps of iteration, as some directions may
    hardly be determined. The mean squared error is that of Q_i S Q_i, plus what upload errors of `held_out_rmse` add.
    """
    rounds, samples = factors
    of_rounds = np.einsum("tca,tcb->tab", rounds, rounds)
    known = np.array([of_rounds[chosen.rounds[a:b]].sum(axis=0) for a, b in pairwise(chosen.starts)])
    sizes, vectors = np.linalg.eigh(known)
    sizes = np.maximum(sizes, 0.0)
    turned = vectors.transpose(0, 2, 1)
    found = vectors * (sizes / (sizes + regularization))[:, np.newaxis] @ turned
    noise = vectors * (sizes / (sizes + regularization) ** 2)[:, np.newaxis] @ turned
    fitted = samples.T @ samples / len(samples)
    true = fitted
    for _ in range(_STEPS):
        true = _without_negative_part(fitted + true - (found @ true @ found).mean(axis=0))
    lost = np.eye(len(fitted)) - found
    squared_error = (lost @ true @ lost + held_out_rmse**2 * noise).mean(axis=0)
    mean_round = of_rounds.mean(axis=0) / rounds.shape[1]
    # Rounding may make them negative.
    error, size = (math.sqrt(max(0.0, float(np.vdot(mean_round, square)))) for square in (squared_error, true))
    return error, size


def _without_negative_part(symmetric: Floats) -> Floats:
    """Return the nearest positive semidefinite matrix."""
    sizes, vectors = np.linalg.eigh(symmetric)
    return np.asarray(vectors * np.maximum(sizes, 0.0) @ vectors.T)
