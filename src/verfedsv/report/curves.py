"""Curves over rounds, thinned to what a page can hold."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.losses import Floats

MOST_POINTS = 500
"""Of one curve."""

MOST_POINTS_IN_ALL = 12_000
"""Of all curves of the same kind: 200 clients get 60 points each."""

MOST_CURVES = 200
"""Of the same kind: of more clients, those with the largest values, of whatever sign, have curves."""

_DIGITS = 5


@dataclass(frozen=True)
class Curve:
    """Numbers over rounds, counted from 1. `n_rounds` says how many there were before the curve was thinned."""

    n_rounds: int
    rounds: tuple[int, ...]
    values: tuple[float, ...]


def curve(values: ArrayLike, n_curves: int = 1, rounds: ArrayLike | None = None) -> Curve:
    """Return the curve of some numbers, which are of the rounds 1, 2, ... if those are not given.

    A curve of more points than there is room for, if `n_curves` share it, is thinned (see `thin`). Numbers are
    rounded to five digits. What is not a number is left out.
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
    """Return which points of a curve to keep: the first and the last, and the extremes of equal stretches between them.

    There are as many stretches as there is room for two points of each, the smallest and the largest. So no peak is
    lost, and what is left are true points of the curve.

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
