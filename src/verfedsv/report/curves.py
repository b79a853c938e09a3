"""Curves over rounds, thinned to what a page can hold."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arrays import Floats

MOST_POINTS = 500
"""Points of one curve."""

MOST_POINTS_IN_ALL = 12_000
"""Points of all curves of the same kind: 200 clients get 60 each."""

MOST_CURVES = 200
"""Curves of the same kind: of more clients, those with the largest absolute values have one."""

_DIGITS = 5


@dataclass(frozen=True)
class Curve:
    """Numbers over rounds, counted from 1. `n_rounds` is their number before the curve was thinned."""

    n_rounds: int
    rounds: tuple[int, ...]
    values: tuple[float, ...]


def curve(values: ArrayLike, n_curves: int = 1, rounds: ArrayLike | None = None) -> Curve:
    """Return the curve of some numbers, by default of rounds 1, 2, ..., thinned to its part of the room for `n_curves`.

    Numbers are rounded to five digits. NaN and infinity are skipped.
    """
    numbers = np.asarray(values, dtype=np.float64)
    at = np.arange(1, len(numbers) + 1) if rounds is None else np.asarray(rounds, dtype=np.int64)
    known = np.isfinite(numbers)
    numbers, at = numbers[known], at[known]
    kept = thin(numbers, room_for(n_curves))
    digits = tuple(float(f"{number:.{_DIGITS}g}") for number in numbers[kept])
    return Curve(len(numbers), tuple(at[kept].tolist()), digits)


def room_for(n_curves: int) -> int:
    """Return how many points each of some curves may have.

    >>> room_for(8), room_for(200)
    (500, 60)
    """
    return min(MOST_POINTS, MOST_POINTS_IN_ALL // min(MOST_CURVES, max(1, n_curves)))


def thin(values: Floats, most: int) -> NDArray[np.intp]:
    """Return the indices of the points to keep: both ends, and the extremes of equal stretches between them.

    So no peak is lost, and all are true points of the curve.

    >>> thin(np.array([0.0, 1.0, 9.0, 2.0, 1.0, -5.0, 0.0, 0.0]), most=6)
    array([0, 1, 2, 4, 5, 7])
    """
    if len(values) <= most:
        return np.arange(len(values))
    edges = np.linspace(1, len(values) - 1, (most - 2) // 2 + 1).astype(np.intp)
    kept = {0, len(values) - 1}
    for begin, end in pairwise(edges):
        stretch = values[begin:end]
        kept |= {int(begin + stretch.argmin()), int(begin + stretch.argmax())}
    return np.array(sorted(kept))
