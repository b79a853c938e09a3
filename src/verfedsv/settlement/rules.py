"""The rules by which a budget is shared: in proportion to values, above a floor or below a cap.

Everything here is exact. Values are scaled to whole numbers, and what a client would get without rounding is a
fraction: a quotient of decimals would already be rounded, and rounding would decide ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Rule = Literal["shares", "floor", "cap", "shapley-positive"]
Negative = Literal["zero", "deduct", "refuse"]


@dataclass(frozen=True)
class Limit:
    """What each client gets at least, or at most, in cents."""

    amount: Fraction
    kind: Literal["floor", "cap"]

    def is_beyond(self, part: Fraction) -> bool:
        """Return whether a part would be below the floor, or above the cap."""
        return part < self.amount if self.kind == "floor" else part > self.amount


@dataclass(frozen=True)
class Split:
    """How a pot is split: `per_weight` for each unit of weight, but for the limit.

    `left` is what nobody may take: all who have a weight are at the cap, or nobody has one; `per_weight` is None then.
    """

    per_weight: Fraction | None
    limit: Limit | None
    left: Fraction

    def part(self, weight: int) -> Fraction:
        """Return what a client of that weight gets."""
        if self.per_weight is None:
            gets_limit = self.limit is not None and (self.limit.kind == "floor" or weight > 0)
        else:
            gets_limit = self.is_limited(weight)
        if self.limit is not None and gets_limit:
            return self.limit.amount
        return Fraction(0) if self.per_weight is None else self.per_weight * weight

    def is_limited(self, weight: int) -> bool:
        """Return whether a client of that weight gets the limit instead of its proportional part."""
        if self.limit is None or self.per_weight is None:
            return False
        return self.limit.is_beyond(self.per_weight * weight)


def split(weights: Sequence[int], pot: Fraction, limit: Limit | None = None) -> Split:
    """Return the split of a pot in proportion to weights, in which everybody keeps the limit.

    Those beyond the limit get it, and the others share the rest in proportion, until nobody is beyond. That puts more
    and more clients at the limit, and never takes one back: under a floor each one raised leaves less to the others,
    under a cap each one held leaves more.

    >>> halves = split([6, 3, 1], Fraction(100), Limit(Fraction(50), "cap"))
    >>> [str(halves.part(weight)) for weight in (6, 3, 1)]
    ['50', '75/2', '25/2']
    """
    free, n_limited = list(weights), 0
    while True:
        rest = pot - (limit.amount * n_limited if limit is not None else 0)
        total = sum(free)
        if total <= 0:
            # Under a floor those without a weight get it too.
            at_floor = limit.amount * len(free) if limit is not None and limit.kind == "floor" else Fraction(0)
            return Split(None, limit, rest - at_floor)
        per_weight = rest / total
        kept = free if limit is None or rest == 0 else _within(free, limit.kind, limit.amount / per_weight)
        if len(kept) == len(free):
            return Split(per_weight, limit, Fraction(0))
        free, n_limited = kept, n_limited + len(free) - len(kept)


def _within(weights: list[int], kind: Literal["floor", "cap"], edge: Fraction) -> list[int]:
    """Return the weights that get no less than a floor, or no more than a cap; `edge` gets just that.

    They are compared as whole numbers: with 2,000 clients, fractions took forty times as long.
    """
    if kind == "floor":
        smallest = math.ceil(edge)
        return [weight for weight in weights if weight >= smallest]
    largest = math.floor(edge)
    return [weight for weight in weights if weight <= largest]


def round_to_cents(amounts: Sequence[Fraction]) -> list[int]:
    """Return whole numbers with the same sum, which must be whole: each amount rounded down, and some up.

    Largest remainder: those that lose most by rounding down are rounded up, and of equals the first.

    >>> round_to_cents([Fraction(100, 3)] * 3)
    [34, 33, 33]
    """
    rounded = [amount.numerator // amount.denominator for amount in amounts]
    missing = int(sum(amounts) - sum(rounded))
    by_loss = sorted(range(len(amounts)), key=lambda m: rounded[m] - amounts[m])  # stable: of equals the first
    for m in by_loss[:missing]:
        rounded[m] += 1
    return rounded


def as_whole_numbers(*rows: Sequence[float]) -> list[list[int]]:
    """Return rows of floats as whole numbers in exactly the same proportion, all by one scale.

    >>> as_whole_numbers([0.5, 0.25], [3.0])
    [[2, 1], [12]]
    """
    fractions = [[Fraction(value) for value in row] for row in rows]
    # Denominators of floats are powers of two: the largest is a multiple of all.
    scale = max((value.denominator for row in fractions for value in row), default=1)
    return [[value.numerator * (scale // value.denominator) for value in row] for row in fractions]
