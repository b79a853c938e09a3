"""Numbers, shares and values as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext
from itertools import accumulate

from verfedsv.report.summary import ClientSummary, Summary
from verfedsv.texts import MINUS, number, power_of_ten, rounded_up

SPACE = "\N{NO-BREAK SPACE}"

_LEAST_DIGITS, _MOST_DIGITS, _MOST_DECIMALS = 4, 7, 8
"""Of the largest value or end of a range; more than the least are written if they separate two ranges."""

_Range = tuple[float, float | None, float | None]
"""A value, and the ends of its range; None if these are unknown."""


def limited(amount: float, decimals: int) -> str:
    r"""Return a number with that many decimals, or a bound if it would be rounded to zero.

    >>> limited(0.25, 2), limited(0.001, 2), limited(-0.001, 2), limited(0.0, 2)
    ('0.25', '<\xa00.01', '>\xa0−0.01', '0.00')
    """
    text = number(amount, decimals)
    if amount == 0 or any(letter in "123456789" for letter in text):
        return text
    least = f"{10**-decimals:.{decimals}f}"
    return f"<{SPACE}{least}" if amount > 0 else f">{SPACE}{MINUS}{least}"


def number_ends(low: Decimal, high: Decimal, decimals: int) -> str:
    """Return a range with that many decimals, its ends rounded outwards.

    >>> number_ends(Decimal("74.629"), Decimal("75.371"), 1)
    '74.6 to 75.4'
    """
    step = Decimal(1).scaleb(-decimals)
    with localcontext(prec=400):  # enough for all digits of any float
        lower, upper = low.quantize(step, ROUND_FLOOR), high.quantize(step, ROUND_CEILING)
    return f"{number(float(lower), decimals)} to {number(float(upper), decimals)}"


def percent(fraction: float | None, decimals: int = 2) -> str:
    r"""Return a fraction in per cent, or "unknown".

    >>> percent(0.312, 1), percent(-0.5, 0), percent(None)
    ('31.2\xa0%', '−50\xa0%', 'unknown')
    """
    return "unknown" if fraction is None else f"{number(100 * fraction, decimals)}{SPACE}%"


class Amounts:
    """Values over all rounds as texts, with the same decimals for all clients of a summary."""

    def __init__(self, summary: Summary) -> None:
        self._decimals, self._exponent = _scale(
            [(client.decrease, client.decrease_low, client.decrease_high) for client in summary.clients]
        )

    def value(self, decrease: float) -> str:
        """Return a value as text."""
        return self._with_power(limited(decrease / 10**self._exponent, self._decimals))

    def ends(self, client: ClientSummary) -> str:
        """Return the range of a client's value, or "unknown"."""
        if client.decrease_low is None or client.decrease_high is None:
            return "unknown"
        power = Decimal(1).scaleb(self._exponent)
        low, high = (Decimal(end) / power for end in (client.decrease_low, client.decrease_high))
        return self._with_power(number_ends(low, high, self._decimals))

    def _with_power(self, text: str) -> str:
        if self._exponent == 0:
            return text
        return f"{f'({text})' if ' to ' in text else text} {power_of_ten(self._exponent)}"


def _scale(ranges: Sequence[_Range]) -> tuple[int, int]:
    """Return the number of decimals of values, and the power of ten that follows them, 0 for none."""
    largest = max(abs(amount) for each in ranges for amount in each if amount is not None)
    if largest == 0:
        return _LEAST_DIGITS, 0
    magnitude = math.floor(math.log10(largest))
    gap = _smallest_gap(ranges)
    # Ends that are rounded outwards come closer by less than two units of the last decimal.
    needed = 0 if gap is None else magnitude + 1 + math.ceil(-math.log10(gap / 2))
    n_digits = min(_MOST_DIGITS, max(_LEAST_DIGITS, needed))
    decimals = n_digits - 1 - magnitude
    return (n_digits - 1, magnitude) if decimals > _MOST_DECIMALS else (max(0, decimals), 0)


def _smallest_gap(ranges: Sequence[_Range]) -> float | None:
    """Return the smallest gap between two ranges that do not overlap; None if all do."""
    known = sorted((low, high) for _, low, high in ranges if low is not None and high is not None)
    reaches = accumulate((high for _, high in known), max)
    return min((low - reach for (low, _), reach in zip(known[1:], reaches, strict=False) if low > reach), default=None)


def share_text(client: ClientSummary) -> str:
    """Return a client's share."""
    return "no share" if client.share is None else f"{limited(100 * client.share, 2)}{SPACE}%"


def share_range(client: ClientSummary) -> str:
    """Return the range of a client's share, or "unknown".

    Where the errors of some clients are unknown, it is of the share among the others, and need not contain `share`.
    """
    if client.share_low is None or client.share_high is None:
        return "unknown"
    return f"{number_ends(100 * Decimal(client.share_low), 100 * Decimal(client.share_high), 2)}{SPACE}%"


def place_text(client: ClientSummary, summary: Summary) -> str:
    """Return a client's place, or the places that its error leaves open."""
    if client.error is None and len(summary.clients) > 1:
        return "open"
    best, worst = client.best_place, client.worst_place
    return f"{best}" if best == worst else f"{best}\N{EN DASH}{worst}"


def relative_error(client: ClientSummary) -> str:
    """Return a client's error as a fraction of its value."""
    if client.error is None:
        return "unknown"
    if client.value == 0:
        return "no value"
    return error_percent(client.error / abs(client.value))


def error_percent(error: float) -> str:
    r"""Return an error in per cent, rounded up: with two decimals, from 100 per cent on with none.

    >>> error_percent(0.056), error_percent(0.05601), error_percent(2.6e-5), error_percent(0.0), error_percent(1.443)
    ('5.60\xa0%', '5.61\xa0%', '<\xa00.01\xa0%', '0.00\xa0%', '145\xa0%')
    """
    decimals, percentage = 2 if error < 1 else 0, 100 * error
    is_tiny = 0 < percentage < 10**-decimals
    return f"{f'<{SPACE}' if is_tiny else ''}{number(rounded_up(percentage, decimals), decimals)}{SPACE}%"
