"""The rank of embedding matrices: measured, and bounded by Proposition 1."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike

from verfedsv.arguments import as_array, as_positive, as_whole
from verfedsv.arrays import Floats
from verfedsv.errors import InputError

SQUARED = 1e-5
"""From this eps on, singular values are computed as roots of the eigenvalues of the matrix times its transpose: ten
times faster for long matrices, and its error, 1e-16 of the largest square, is far below."""


def epsilon_rank(matrix: ArrayLike, eps: float = 1e-3) -> int:
    """Return the number of singular values of at least `eps` times the largest, as in the paper's experiments.

    The paper's definition, the lowest rank of any matrix within `eps`, is NP-hard to compute. The matrix of a client is
    (rounds * classes) x samples. A matrix of zeros has rank 0.

    >>> epsilon_rank([[1.0, 2.0], [2.0, 4.001]], eps=1e-2)
    1
    """
    array = as_array("matrix", matrix)
    if array.ndim != 2 or 0 in array.shape or not np.isfinite(array).all():
        raise InputError(f"matrix must have two axes, neither empty, and finite numbers; received shape {array.shape}")
    if not as_positive("eps", eps) < 1:
        raise InputError(f"eps must be between 0 and 1; received {eps!r}")
    sizes = _singular_values(array.astype(np.float64), eps)
    return int((sizes >= eps * sizes[0]).sum()) if sizes[0] > 0 else 0


def _singular_values(matrix: Floats, eps: float) -> Floats:
    """Return the singular values in falling order; those below `eps` times the largest may be inexact."""
    largest = np.abs(matrix).max()
    if eps < SQUARED or largest == 0:
        return np.asarray(np.linalg.svd(matrix, compute_uv=False), np.float64)
    wide = (matrix if matrix.shape[0] <= matrix.shape[1] else matrix.T) / largest
    squares = np.linalg.eigvalsh(wide @ wide.T)[::-1]
    return np.sqrt(np.maximum(squares, 0.0))


def rank_bound(
    eps: float,
    *,
    n_features: int | None = None,
    n_rounds: int | None = None,
    lipschitz: float = 1.0,
    data: ArrayLike | None = None,
    largest_weight: float | None = None,
) -> int:
    """Return the bound of Proposition 1 on the rank of a matrix within `eps` of a client's embeddings, entry by entry.

    For one linear model per client, one class, data in rows of norm 1 and steps of 1/t. The smallest of the bounds
    whose arguments are given:

    - `n_features` of the client;
    - `n_rounds` and the `lipschitz` constant G of the loss: embeddings change by at most G/t in round t, so the rounds
      fall into floor(G (1 + log T) / eps) + 1 groups within `eps`. The paper has ceil(L log(T) / eps) with the
      smoothness L; but its proof bounds the gradient itself, and the sum of 1/t is above log T;
    - `data`, (samples, features), and `largest_weight`, the largest norm of the model in any round: the number of balls
      of radius eps / largest_weight that cover the data, by a greedy search.
    """
    eps = as_positive("eps", eps)
    bounds = []
    if n_features is not None:
        bounds.append(as_whole("n_features", n_features, at_least=1))
    if n_rounds is not None:
        path = as_positive("lipschitz", lipschitz) * (1 + math.log(as_whole("n_rounds", n_rounds, at_least=1)))
        # For a tiny eps every round is a group.
        bounds.append(min(n_rounds, math.floor(path / max(eps, 1e-300)) + 1))
    if data is not None and largest_weight is not None:
        rows = as_array("data", data).astype(np.float64)
        if rows.ndim != 2 or len(rows) == 0 or not np.isfinite(rows).all():
            raise InputError(f"data must be (samples, features) of finite numbers; received shape {rows.shape}")
        bounds.append(_covering_number(rows, eps / as_positive("largest_weight", largest_weight)))
    if not bounds:
        raise InputError("give n_features, or n_rounds, or data and largest_weight")
    return min(bounds)


def _covering_number(rows: Floats, radius: float) -> int:
    """Return how many balls cover all rows, each around the row farthest from the centres so far."""
    distance = np.full(len(rows), np.inf)
    n_balls, centre = 0, 0
    while distance.max() > radius:
        distance = np.minimum(distance, np.sqrt(np.square(rows - rows[centre]).sum(axis=1)))
        centre = int(distance.argmax())
        n_balls += 1
    return n_balls
