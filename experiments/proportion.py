"""Whether values are proportional to sizes, as the paper says of Figures 2 and 3, and what stated errors allow."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from experiments.experiment import Exponent, Verdict
from verfedsv.arrays import Floats

TINY, HUGE = 1e-300, 1e300
"""Stand for zero and infinity in logarithms."""


def stated(errors: ArrayLike) -> Floats:
    """Return stated errors, infinite where they are unknown, which is None in results."""
    array = np.array(errors, float)
    return np.where(np.isnan(array), np.inf, array)


def judge(sizes: ArrayLike, values: ArrayLike) -> tuple[Exponent | None, Verdict]:
    """Return the exponent of values, (seeds, sizes), in rising sizes, and whether they are proportional.

    "yes": medians rise, and the exponent is 1 within 0.25; "in trend": they only rise. Size 0 is for the order alone.
    """
    x, y = np.asarray(sizes, float), np.asarray(values, float)
    exponent = Exponent.fit(x[x > 0], y[:, x > 0])
    is_rising = bool((np.diff(np.median(y, axis=0)) > 0).all())
    if not is_rising:
        return exponent, "no"
    return exponent, "yes" if exponent is not None and exponent.is_proportional else "in trend"


def allowed(sizes: ArrayLike, low: ArrayLike, high: ArrayLike) -> set[Verdict]:
    """Return the verdicts of `judge` on values anywhere between two arrays, (seeds, sizes).

    Order and exponent are tested each by itself, so that a verdict may be too many.
    """
    x, least, most = (np.asarray(each, float) for each in (sizes, low, high))
    lows, highs = np.median(least, axis=0), np.median(most, axis=0)
    found: set[Verdict] = {"no"} if (highs[:-1] >= lows[1:]).any() else set()
    if (np.maximum.accumulate(lows)[:-1] < highs[1:]).all():
        flattest, steepest = _slopes(x[x > 0], least[:, x > 0], most[:, x > 0])
        if any(Exponent.of(np.clip(x, flattest, steepest)).is_proportional for x in np.linspace(0.75, 1.25, 51)):
            found.add("yes")
        # All seeds at one end, or every other one at the other.
        others = np.where(np.arange(len(flattest)) % 2, flattest, steepest)
        at_ends = all(Exponent.of(slopes).is_proportional for slopes in (flattest, steepest, others))
        if not at_ends or (least[:, x > 0] <= 0).any():
            found.add("in trend")
    return found


def _slopes(sizes: Floats, low: Floats, high: Floats) -> tuple[Floats, Floats]:
    """Return the lowest and highest exponent that each seed could have, from values between two arrays."""
    logs = np.log(sizes) - np.log(sizes).mean()
    weights = logs / np.square(logs).sum()  # of the logarithms of values in the slope by least squares
    bottom, top = (weights * np.log(np.clip(x, TINY, HUGE)) for x in (low, high))
    return np.minimum(bottom, top).sum(axis=1), np.maximum(bottom, top).sum(axis=1)
