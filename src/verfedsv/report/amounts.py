"""Shares and values of clients as texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import Decimal
from itertools import accumulate
from typing import NamedTuple

from verfedsv.report.numbers import (
    MINUS,
    MOST_DECIMALS,
    SPACE,
    number,
    number_ends,
    percent,
    percent_ends,
    power_of_ten,
)
from verfedsv.report.summary import ClientSummary, Summary

_LEAST_DIGITS, _MOST_DIGITS = 4, 7
"""Of the largest value, or end of a value's range. More than the least are written if they show that two are apart."""

_MOST_DECIMALS_OF_VALUES = 8


class Range(NamedTuple):
    """A value over all rounds, and between what it lies; None if that is not known."""

    value: float
    low: float | None
    high: float | None


class Amounts:
    """Values over all rounds as texts, with decimals that all of them share."""

    def __init__(self, ranges: Sequence[Range]) -> None:
        self._decimals, self._exponent = _scale(ranges)

    @classmethod
    def of(cls, summary: Summary) -> Amounts:
        """Return the amounts of a summary's clients."""
        return cls([Range(c.decrease, c.decrease_low, c.decrease_high) for c in summary.clients])

    def value(self, decrease: float) -> str:
        """Return a value; one that is too small to be written is said to be so."""
        text = number(decrease / 10**self._exponent, self._decimals)
        if decrease == 0 or any(letter in "123456789" for letter in text):
            return self._with_power(text)
        least = self._with_power(f"{10**-self._decimals:.{self._decimals}f}")
        return f"{'<' if decrease > 0 else '>'}{SPACE}{MINUS if decrease < 0 else ''}{least}"

    def ends(self, client: ClientSummary) -> str:
        """Return between what a client's value lies, rounded outwards, or that nobody knows."""
        if client.decrease_low is None or client.decrease_high is None:
            return "unknown"
        power = Decimal(1).scaleb(self._exponent)
        low, high = (Decimal(end) / power for end in (client.decrease_low, client.decrease_high))
        return self._with_power(" to ".join(number_ends(low, high, self._decimals)))

    def _with_power(self, text: str) -> str:
        if self._exponent == 0:
            return text
        return f"{f'({text})' if ' to ' in text else text} {power_of_ten(self._exponent)}"


def _scale(ranges: Sequence[Range]) -> tuple[int, int]:
    """Return with how many decimals values are written, and the power of ten behind them, 0 if there is none."""
    largest = max(abs(amount) for each in ranges for amount in each if amount is not None)
    if largest == 0:
        return _LEAST_DIGITS, 0
    magnitude = math.floor(math.log10(largest))
    gap = _smallest_gap(ranges)
    # Ends that are rounded outwards come closer by less than two units of the last decimal.
    wanted = 0 if gap is None else magnitude + 1 + math.ceil(-math.log10(gap / 2))
    n_digits = min(_MOST_DIGITS, max(_LEAST_DIGITS, wanted))
    decimals = n_digits - 1 - magnitude
    return (n_digits - 1, magnitude) if decimals > _MOST_DECIMALS_OF_VALUES else (max(0, decimals), 0)


def _smallest_gap(ranges: Sequence[Range]) -> float | None:
    """Return the smallest distance from one value with its error to the next; None if all overlap."""
    known = sorted((low, high) for _, low, high in ranges if low is not None and high is not None)
    reaches = accumulate((high for _, high in known), max)
    return min((low - reach for (low, _), reach in zip(known[1:], reaches, strict=False) if low > reach), default=None)


def share_text(client: ClientSummary) -> str:
    """Return a client's share with as many decimals as its error allows, at most two."""
    if client.share is None:
        return "no share"
    if 0 < abs(client.share) < 0.5 * 10 ** -(MOST_DECIMALS + 2):
        least = f"less than {10**-MOST_DECIMALS:g}{SPACE}%"
        return least if client.share > 0 else f"negative, {least}"
    return percent(client.share, _decimals(client))


def interval_text(client: ClientSummary, summary: Summary) -> str:
    """Return between which shares a client's lies, or that nobody knows.

    Where the errors of some are not known, it is the share among the others, and need not hold the share of all.
    """
    if client.share is None:
        return "no share"
    if client.share_low is None or client.share_high is None:
        return "unknown"
    if not summary.unknown and (distance := _distance(client)):
        return f"± less than {distance}{SPACE}%"
    low, high = percent_ends(client.share_low, client.share_high, _decimals(client))
    return f"{low} to {high}{SPACE}%"


def between_text(client: ClientSummary, among: str = "") -> str:
    """Return the interval of a share as a sentence has it in brackets; nothing if the share as written is exact.

    `among` is what the interval is of where that is not all clients; it need not hold the share of all then.
    """
    if client.share_low is None or client.share_high is None or share_text(client).startswith(("less", "negative")):
        return ""
    decimals = _decimals(client)
    if not among and (distance := _distance(client)):
        return "" if distance == f"{10**-decimals:g}" else f" (give or take {distance}{SPACE}%)"
    low, high = percent_ends(client.share_low, client.share_high, decimals)
    return f" ({among}between {low} and {high}{SPACE}%)"


def _distance(client: ClientSummary) -> str | None:
    """Return how far, in per cent, all of a narrow interval is from the share as it is written; None for a wide one.

    That is one or two units of the last decimal: the ends, with as many decimals, would look no different from it.
    """
    if client.share is None or client.share_low is None or client.share_high is None:
        return None
    decimals = _decimals(client)
    written = round(100 * client.share, decimals)
    furthest = max(written - 100 * client.share_low, 100 * client.share_high - written)
    for units in (1, 2) if decimals == MOST_DECIMALS else (1,):
        if furthest < 0.999 * units * 10**-decimals:  # less the rounding of this itself
            return f"{units * 10**-decimals:g}"
    return None


def _decimals(client: ClientSummary) -> int:
    if client.share_low is None or client.share_high is None:
        return 1
    half = 50 * (client.share_high - client.share_low)
    return MOST_DECIMALS if half <= 0 else min(MOST_DECIMALS, max(1, math.ceil(-math.log10(half))))


def place_text(client: ClientSummary, summary: Summary) -> str:
    """Return a client's place, or the places that its error leaves open."""
    best, worst = client.best_place, client.worst_place
    if client.error is None and len(summary.clients) > 1:
        return "open"
    return f"{best}" if best == worst else f"{best}\N{EN DASH}{worst}"


def relative_error(client: ClientSummary) -> str:
    """Return how large an error is, compared with the value."""
    if client.error is None or client.value == 0:
        return "unknown" if client.error is None else "no value"
    ratio = client.error / abs(client.value)
    return f"less than 0.01{SPACE}%" if 0 < ratio < 5e-5 else percent(ratio)
