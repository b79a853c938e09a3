"""Types of arrays, and which numbers can be computed with. Without compiled loops, so that it is imported quickly."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Floats = NDArray[np.float64]

LARGEST_EMBEDDING = 1e12
"""Limit of the size of an embedding. A larger one comes from a training that diverged, or from a client that wants to
spoil the values of all: rounding errors grow with it."""

LARGEST_LABEL = 1e60
"""Sums of squared labels must stay within float64."""

PART_BYTES = 1 << 25
"""Limit of what is held of a part of the samples at a time: the embeddings of all clients, or the features of one."""

_PART = 8192
"""Numbers whose squares are summed at once."""


def is_usable(numbers: Array) -> bool:
    """Return whether all embeddings are finite and below the limit of their size."""
    # The sum of squares decides nearly always, in a fifth of the time; the half leaves room for its rounding.
    if numbers.dtype.char in "fd" and _sum_squares(numbers) < LARGEST_EMBEDDING**2 / 2:
        return True
    # One pass each, without a temporary array. A NaN passes neither comparison.
    ends = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    return ends[0] > -LARGEST_EMBEDDING and ends[1] < LARGEST_EMBEDDING


def _sum_squares(numbers: Array) -> float:
    """Return the sum of squares."""
    # In parts: OpenBLAS takes threads for more numbers, which wait for each other for milliseconds on a busy machine.
    if numbers.size <= _PART:
        return float(np.vdot(numbers, numbers))
    flat = numbers.reshape(-1)
    return sum(float(np.vdot(part, part)) for part in np.split(flat, range(_PART, len(flat), _PART)))
