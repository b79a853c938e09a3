"""Ranges of payouts: what a client might get if the values are off by as much as their errors allow.

The values may lie anywhere between value - error and value + error, and the lowest and highest payouts of a client over
all of these are at corners. Unless negative values are deducted, a client never gets less for a higher value of its
own, nor more for a higher one of another. So it gets least if its own value is lowest and all others are highest, and
most in the opposite case. If they are deducted, its payout is pot * x / (x + y), x being its value and y the sum of the
others: monotone in x and in y, but in a direction that depends on their signs, so all four corners of x and y are
evaluated.

Where a corner cannot be paid out, because no value is positive there or all such clients are at the cap, its limit is
taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from verfedsv.settlement.rules import Limits, Split, split

Range = tuple[Fraction, Fraction]


def ranges_of_parts(values: Sequence[int], errors: Sequence[int], pot: Fraction, limits: Limits) -> list[Range]:
    """Return the lowest and the highest part of a pot for each client, negative values counting as zero."""
    lows = [max(0, value - error) for value, error in zip(values, errors, strict=True)]
    highs = [max(0, value + error) for value, error in zip(values, errors, strict=True)]

    def corner(m: int, own: Sequence[int], others: Sequence[int]) -> Split:
        return split([*others[:m], own[m], *others[m + 1 :]], pot, limits)

    result = []
    for m in range(len(values)):
        worst, best = corner(m, lows, highs), corner(m, highs, lows)
        # What the others may not take where they are highest goes to this one, however little above zero it is.
        result.append((worst.part(lows[m]) + worst.left, best.part(highs[m])))
    return result


def ranges_with_deduction(values: Sequence[int], errors: Sequence[int], pot: Fraction) -> list[Range | None]:
    """Return the same if negative values are deducted; None for all if the sum of the values may not be positive."""
    lowest, highest = sum(values) - sum(errors), sum(values) + sum(errors)
    if lowest <= 0:
        return [None] * len(values)
    result: list[Range | None] = []
    for value, error in zip(values, errors, strict=True):
        ys = lowest - (value - error), highest - (value + error)
        parts = [pot * x / (x + y) for x in (value - error, value + error) for y in ys]
        result.append((min(parts), max(parts)))
    return result


def outward(low: Fraction, high: Fraction) -> tuple[int, int]:
    """Return the narrowest range of whole cents that contains one of fractions."""
    return low.numerator // low.denominator, -(-high.numerator // high.denominator)
