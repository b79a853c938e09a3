"""Numbers as people read them."""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal, localcontext

MINUS, SPACE = "\N{MINUS SIGN}", "\N{NO-BREAK SPACE}"
MOST_DECIMALS = 2
"""Of per cents."""

_TIMES = "\N{MULTIPLICATION SIGN}"
_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def percent(fraction: float, decimals: int = MOST_DECIMALS) -> str:
    r"""Return a fraction in per cent.

    >>> percent(0.312, 1), percent(-0.5, 0)
    ('31.2\xa0%', '−50\xa0%')
    """
    return f"{number(100 * fraction, decimals)}{SPACE}%"


def percent_ends(low: float, high: float, decimals: int) -> tuple[str, str]:
    """Return the ends of an interval in per cent, rounded outwards: what is written holds all that was meant.

    >>> percent_ends(0.74629, 0.75371, 1), percent_ends(-0.00001, 0.5, 2)
    (('74.6', '75.4'), ('−0.01', '50.00'))
    """
    return number_ends(100 * Decimal(low), 100 * Decimal(high), decimals)


def number_ends(low: Decimal, high: Decimal, decimals: int) -> tuple[str, str]:
    """Return the ends of an interval with that many decimals, rounded outwards."""
    step = Decimal(1).scaleb(-decimals)
    with localcontext(prec=400):  # enough for all digits of any float
        lower, upper = low.quantize(step, ROUND_FLOOR), high.quantize(step, ROUND_CEILING)
    return number(float(lower), decimals), number(float(upper), decimals)


def maybe_percent(fraction: float | None) -> str:
    """Return a fraction in per cent, and a word for one that is unknown."""
    return "unknown" if fraction is None else percent(fraction)


def number(amount: float, decimals: int) -> str:
    """Return a number with that many decimals; what rounds to zero has no sign."""
    text = f"{abs(amount):,.{decimals}f}"
    return f"{MINUS}{text}" if amount < 0 and float(text.replace(",", "")) else text


def digits(amount: float | None, n_digits: int = 3) -> str:
    """Return a number with so many digits, zeros at the end included, and a word for what is unknown.

    >>> digits(0.00012345), digits(0.53), digits(-1.5e-9), digits(math.nan), digits(0.0)
    ('0.000123', '0.530', '−1.50 × 10⁻⁹', 'unknown', '0')
    """
    if amount is None or not math.isfinite(amount):
        return "unknown"
    if amount == 0:
        return "0"
    if 1e-4 <= abs(amount) < 1e6:
        text = f"{abs(amount):#.{n_digits}g}".rstrip(".")
        # Six digits before the point need no exponent.
        text = f"{abs(amount):,.0f}" if "e" in text else text
    else:
        mantissa, exponent = f"{abs(amount):.{n_digits - 1}e}".split("e")
        text = f"{mantissa} {power_of_ten(int(exponent))}"
    return f"{MINUS}{text}" if amount < 0 else text


def power_of_ten(exponent: int) -> str:
    """Return a power of ten, as it stands after a number.

    >>> power_of_ten(-9)
    '× 10⁻⁹'
    """
    return f"{_TIMES} 10{str(exponent).translate(_RAISED)}"


def size(n_bytes: int) -> str:
    """Return a number of bytes for people.

    >>> size(7_814_640), size(812)
    ('7.8 MB', '812 bytes')
    """
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if n_bytes >= scale:
            return f"{n_bytes / scale:,.1f} {unit}"
    return f"{n_bytes} bytes"
