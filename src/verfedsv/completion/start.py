"""The start of alternating least squares: the leading directions of the embeddings interpolated in time.

From random factors the sweeps end in poor local minima once the rank exceeds what the data need; from here they do not
(docs/benchmarks.md has both), and no seed is needed.
"""

from __future__ import annotations

import numpy as np

from verfedsv.arrays import Floats
from verfedsv.compiled import compiled
from verfedsv.completion.sweeps import Observed

MIN_SAMPLES, MAX_SAMPLES, MAX_ELEMENTS = 64, 4096, 2**24
"""Limits on the samples, evenly spaced, that the directions are computed from."""

_EXTRA_DIRECTIONS, _POWER_STEPS = 10, 4


def most_samples(n_rows: int) -> int:
    """Return how many samples the directions are computed from, for that many rounds times classes."""
    return min(MAX_SAMPLES, max(MIN_SAMPLES, MAX_ELEMENTS // n_rows))


def leading_directions(chosen: Observed, n_rounds: int, n_seen: int, rank: int) -> Floats:
    """Return factors of the rounds, (rounds, classes, rank), best direction first, from some of `n_seen` samples.

    They are the leading left singular vectors of the interpolated matrix, each times the square root of its singular
    value, as the penalty of equation 2 splits a matrix between its two factors.
    """
    n_chosen, n_classes = len(chosen.starts) - 1, chosen.values.shape[1]
    by_time = np.zeros((n_chosen, n_rounds * n_classes))
    interpolate(chosen, by_time)
    directions, sizes = _leading_singular_vectors(by_time, rank)
    sizes *= np.sqrt(n_seen / n_chosen)
    return (directions * np.sqrt(sizes)).reshape(n_rounds, n_classes, rank)


def _leading_singular_vectors(matrix: Floats, rank: int) -> tuple[Floats, Floats]:
    """Return the leading right singular vectors, (columns, rank), and singular values of a matrix.

    Subspace iteration, as a full decomposition would cost a hundred times more. If the matrix has fewer than `rank`
    directions, the others have singular value 0. With as many steps, scikit-learn's `randomized_svd` finds the same to
    rounding in 1.1 to 1.6 times the time (2 to 4 times for a thousand samples), and importing it takes a second.
    """
    n_columns = matrix.shape[1]
    n_directions = min(rank + _EXTRA_DIRECTIONS, n_columns)
    basis = np.random.default_rng(0).standard_normal((n_columns, n_directions))
    for _ in range(_POWER_STEPS):
        basis, _ = np.linalg.qr(matrix.T @ (matrix @ basis))
    _, sizes, rotation = np.linalg.svd(matrix @ basis, full_matrices=False)
    found = min(rank, len(sizes))
    vectors, values = np.zeros((n_columns, rank)), np.zeros(rank)
    vectors[:, :found], values[:found] = (basis @ rotation.T)[:, :found], sizes[:found]
    # The sign is chosen to make the largest entry positive.
    signs = np.sign(vectors[np.abs(vectors).argmax(axis=0), np.arange(rank)])
    return vectors * np.where(signs == 0, 1, signs), values


@compiled
def interpolate(chosen: Observed, by_time: Floats) -> None:
    """Write the embeddings of samples in all rounds, (samples, rounds * classes).

    Linear between two rounds in which a sample was observed; constant before the first and after the last.
    """
    starts, rounds, is_held_out, values = chosen
    n_classes = values.shape[1]
    n_rounds = by_time.shape[1] // n_classes
    for j in range(len(starts) - 1):
        row, before = by_time[j], -1
        for p in range(starts[j], starts[j + 1]):
            if is_held_out[p]:
                continue
            now = rounds[p]
            for t in range(0 if before < 0 else rounds[before] + 1, now + 1):
                weight = 1.0 if before < 0 else (t - rounds[before]) / (now - rounds[before])
                for c in range(n_classes):
                    earlier = 0.0 if before < 0 else values[before, c]
                    row[t * n_classes + c] = weight * values[p, c] + (1 - weight) * earlier
            before = p
        if before >= 0:
            for t in range(rounds[before] + 1, n_rounds):
                for c in range(n_classes):
                    row[t * n_classes + c] = values[before, c]
