"""How far completed embeddings are off by what is known of each sample, whether or not its uploads were held out.

Held-out uploads are of samples and rounds that were uploaded; embeddings that are missing may be of others. A sample
uploaded only before the first step, when all its embeddings are zero, is completed by zeros, and no held-out upload
shows it.
"""

from __future__ import annotations

import math

import numpy as np

from verfedsv.completion.factors import Factors
from verfedsv.completion.observations import Pattern, spread_evenly
from verfedsv.losses import Floats

MAX_SAMPLES = 1024
"""The most samples that errors of completion are estimated from."""

_STEPS = 20


def expected_errors(
    pattern: Pattern, factors: Factors, regularization: float, held_out_rmse: float
) -> tuple[float, float]:
    """Return the root of the mean squared error expected of all embeddings, and that of their mean square.

    With A_i the sum of w w' over the uploads of sample i, least squares find the part R_i = A_i (A_i + lambda)^-1 of
    its true factors and lose the part Q_i = I - R_i. So the second moment S of the true factors is such that the mean
    of R_i S R_i is that of the fitted ones, which is solved by iteration, in few steps, as some directions may hardly
    be known. The mean squared error is that of Q_i S Q_i, and what uploads that are off by `held_out_rmse` add to it.
    """
    rounds, samples = factors
    of_rounds = np.einsum("tca,tcb->tab", rounds, rounds)
    chosen = spread_evenly(np.flatnonzero(pattern.is_seen), MAX_SAMPLES)
    known = np.array([of_rounds[pattern.rounds_of(i)].sum(axis=0) for i in chosen])
    sizes, vectors = np.linalg.eigh(known)
    sizes = np.maximum(sizes, 0.0)
    turned = vectors.transpose(0, 2, 1)
    found = vectors * (sizes / (sizes + regularization))[:, np.newaxis] @ turned
    noise = vectors * (sizes / (sizes + regularization) ** 2)[:, np.newaxis] @ turned
    fitted = samples[chosen].T @ samples[chosen] / len(chosen)
    true = fitted
    for _ in range(_STEPS):
        true = _without_negative_part(fitted + true - (found @ true @ found).mean(axis=0))
    lost = np.eye(len(fitted)) - found
    squared_error = (lost @ true @ lost + held_out_rmse**2 * noise).mean(axis=0)
    mean_round = of_rounds.mean(axis=0) / rounds.shape[1]
    squares = (max(0.0, float(np.vdot(mean_round, square))) for square in (squared_error, true))  # -0 by rounding
    error, size = map(math.sqrt, squares)
    return error, size


def _without_negative_part(symmetric: Floats) -> Floats:
    """Return the nearest matrix that can be a second moment."""
    sizes, vectors = np.linalg.eigh(symmetric)
    return np.asarray(vectors * np.maximum(sizes, 0.0) @ vectors.T)
