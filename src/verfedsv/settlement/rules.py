"""The rules by which a budget is shared: in proportion to values, above a floor, below a cap, or both.

Everything here is exact. Values are scaled to whole numbers, and what a client would get without rounding is a
fraction: a quotient of decimals would already be rounded, and rounding would decide ties.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Rule = Literal["shares", "floor", "cap", "floor-and-cap", "shapley-positive"]
Negative = Literal["zero", "deduct", "refuse"]


@dataclass(frozen=True)
class Limits:
    """What each client gets at least and at most, in cents; None where there is no such limit."""

    floor: Fraction | None = None
    cap: Fraction | None = None

    def kept_by(self, part: Fraction) -> Fraction:
        """Return a part, raised to the floor or held at the cap."""
        if self.floor is not None and part < self.floor:
            return self.floor
        return self.cap if self.cap is not None and part > self.cap else part


@dataclass(frozen=True)
class Split:
    """How a pot is split: `per_weight` for each unit of weight, within the limits.

    `left` is what nobody may take, because all with a weight are at the cap, or nobody has one; `per_weight` is then
    None.
    """

    per_weight: Fraction | None
    limits: Limits
    left: Fraction

    def part(self, weight: int) -> Fraction:
        """Return what a client with that weight gets."""
        if self.per_weight is not None:
            return self.limits.kept_by(self.per_weight * weight)
        at_least = self.limits.floor or Fraction(0)
        return at_least if self.limits.cap is None or weight <= 0 else self.limits.cap

    def limit_of(self, weight: int) -> Literal["floor", "cap"] | None:
        """Return the limit that replaces the proportional part of a client with that weight, if any."""
        if self.per_weight is None:
            return None
        change = self.part(weight) - self.per_weight * weight
        return None if change == 0 else "floor" if change > 0 else "cap"


def split(weights: Sequence[int], pot: Fraction, limits: Limits = Limits()) -> Split:  # noqa: B008  # it is frozen
    """Return the split of a pot in proportion to weights, within limits.

    Clients beyond a limit get the limit, and the others share the rest in proportion, until nobody is beyond. If the
    limits together add more than they take, a unit of weight is worth less in the end, so all below the floor stay
    there and are settled. If they take more than they add, the same holds for all above the cap.

    >>> halves = split([6, 3, 1], Fraction(100), Limits(cap=Fraction(50)))
    >>> [str(halves.part(weight)) for weight in (6, 3, 1)]
    ['50', '75/2', '25/2']
    """
    floor, cap = limits.floor or Fraction(0), limits.cap
    free, rest = list(weights), pot
    while True:
        total = sum(free)
        if total <= 0:
            # Those without a weight get the floor too.
            return Split(None, limits, rest - floor * len(free))
        per_weight = rest / total
        # Weights are compared as whole numbers: with 2,000 clients, fractions took forty times as long.
        smallest = math.ceil(floor / per_weight) if floor else 0
        largest = math.floor(cap / per_weight) if cap is not None and rest else 0
        below = [weight for weight in free if weight < smallest] if floor else []
        above = [weight for weight in free if weight > largest] if cap is not None and rest else []
        added = floor * len(below) - per_weight * sum(below)
        taken = per_weight * sum(above) - (cap or 0) * len(above)
        if added == taken:
            return Split(per_weight, limits, Fraction(0))
        if added > taken:
            free, rest = [weight for weight in free if weight >= smallest], rest - floor * len(below)
        else:
            free, rest = [weight for weight in free if weight <= largest], rest - (cap or 0) * len(above)


def round_to_cents(amounts: Sequence[Fraction]) -> list[int]:
    """Return whole numbers with the same sum, which must be whole: each amount rounded down, and some up.

    Largest remainder: those that lose most by rounding down are rounded up, the first among equals.

    >>> round_to_cents([Fraction(100, 3)] * 3)
    [34, 33, 33]
    """
    rounded = [amount.numerator // amount.denominator for amount in amounts]
    missing = int(sum(amounts) - sum(rounded))
    by_loss = sorted(range(len(amounts)), key=lambda m: rounded[m] - amounts[m])  # stable
    for m in by_loss[:missing]:
        rounded[m] += 1
    return rounded


def as_whole_numbers(*rows: Sequence[float]) -> list[list[int]]:
    """Return rows of floats, all multiplied by the smallest power of two that makes them whole numbers.

    >>> as_whole_numbers([0.5, 0.25], [3.0])
    [[2, 1], [12]]
    """
    fractions = [[Fraction(value) for value in row] for row in rows]
    # Denominators of floats are powers of two: the largest is a multiple of all.
    scale = max((value.denominator for row in fractions for value in row), default=1)
    return [[value.numerator * (scale // value.denominator) for value in row] for row in fractions]
