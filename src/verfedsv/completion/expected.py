"""How far completed embeddings are off by what is known of each sample, whether or not its uploads were held out.

Held-out uploads are of samples and rounds that were uploaded; embeddings that are missing may be of others. A sample
uploaded only before the first step, when all its embeddings are zero, is completed by zeros, and no held-out upload
shows it.
"""

from __future__ import annotations

import numpy as np

from verfedsv.completion.factors import Factors
from verfedsv.completion.observations import Pattern, spread_evenly

MAX_SAMPLES = 1024
"""How many samples the means are taken over."""

_STEPS = 20


def expected_errors(
    pattern: Pattern, factors: Factors, regularization: float, held_out_rmse: float
) -> tuple[float, float]:
    """Return the root of the mean squared error expected of all embeddings, and that of their mean square.

    With A_i the sum of w w' over the uploads of sample i, least squares find of its true factors h the part
    A_i (A_i + lambda)^-1 h and lose Q_i h, where Q_i = lambda (A_i + lambda)^-1. So the second moment S of the true
    factors is that of the fitted ones plus the mean of Q_i S Q_i, which is solved for S by iteration. Uploads that are
    off by `held_out_rmse` add the mean of (A_i + lambda)^-1 A_i (A_i + lambda)^-1 times its square.
    """
    rounds, samples = factors
    of_rounds = np.einsum("tca,tcb->tab", rounds, rounds)
    chosen = spread_evenly(np.flatnonzero(pattern.is_seen), MAX_SAMPLES)
    known = np.array([of_rounds[pattern.rounds_of(i)].sum(axis=0) for i in chosen])
    sizes, vectors = np.linalg.eigh(known)
    sizes = np.maximum(sizes, 0.0)
    turned = vectors.transpose(0, 2, 1)
    lost = vectors * (regularization / (sizes + regularization))[:, np.newaxis] @ turned
    noise = (vectors * (sizes / (sizes + regularization) ** 2)[:, np.newaxis] @ turned).mean(axis=0)
    fitted = samples[chosen].T @ samples[chosen] / len(chosen)
    true = fitted
    for _ in range(_STEPS):
        true = fitted + (lost @ true @ lost).mean(axis=0)
    mean_round = of_rounds.mean(axis=0) / rounds.shape[1]
    squared_error = np.vdot(mean_round, true - fitted) + held_out_rmse**2 * np.vdot(mean_round, noise)
    return float(np.sqrt(squared_error)), float(np.sqrt(np.vdot(mean_round, true)))
