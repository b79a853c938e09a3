"""Text from others, made safe to display and checked for misleading names; and numbers as text."""

from __future__ import annotations

import math
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from decimal import ROUND_CEILING, Decimal, localcontext

MINUS = "\N{MINUS SIGN}"

LONGEST_NAME = 60
"""Characters that are displayed of the name of a client or run. JSON has all."""


def printable(text: str) -> str:
    r"""Return a text on one line with unprintable characters replaced, so that no terminal or page interprets them.

    >>> printable("\x1b[31mred"), printable("one\ntwo")
    ('�[31mred', 'one�two')
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def shortened(text: str, most: int) -> str:
    """Return a text in at most `most` printable characters.

    >>> shortened("hospital of the north", 12)
    'hospital of…'
    """
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed.

    >>> count(1, "client"), count(48842, "sample")
    ('1 client', '48,842 samples')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def grouped(digits: str) -> str:
    """Return digits in groups of four, which two people can compare on the phone.

    >>> grouped("66687aadf862")
    '6668-7aad-f862'
    """
    return "-".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def spreadsheet_text(text: str) -> str:
    r"""Return a text that a spreadsheet does not evaluate: an apostrophe precedes what begins like a formula.

    Control characters are replaced, as they could hide what comes first. Where cells are separated by semicolons, what
    follows one can be a formula too. Spreadsheets take full-width and small signs for the usual ones.

    >>> spreadsheet_text('=HYPERLINK("x")'), spreadsheet_text("telco"), spreadsheet_text("\t=1")
    ('\'=HYPERLINK("x")', 'telco', "'�=1")
    >>> spreadsheet_text("a;=1")
    "a;'=1"
    """
    return _CELL.sub(lambda found: _as_text(*found.groups()), printable(text))


_CELL = re.compile("(^|[;\uff1b\ufe54\u037e])([ \N{REPLACEMENT CHARACTER}]*)(?=([^ \N{REPLACEMENT CHARACTER}]))")
"""What a cell begins with, at the beginning and after semicolons of any width: its first character that is no space."""


def _as_text(separator: str, spaces: str, first: str) -> str:
    """Return what comes before the first character of a cell, with an apostrophe if formulas begin with it."""
    is_formula = unicodedata.normalize("NFKC", first)[:1] in tuple("=+-@")
    if not is_formula:
        return separator + spaces
    return f"{separator}{spaces}'" if separator else f"'{spaces}"


def listed(names: Sequence[str], most: int = 12) -> str:
    """Return names as an enumeration: all, or the first `most` if there are more than three others.

    >>> listed(["bank", "shop", "telco"]), listed(list("abcdefgh"), 2)
    ('bank, shop and telco', 'a, b and 6 more')
    """
    n_shown = len(names) if len(names) <= most + 3 else most
    more = [f"{len(names) - n_shown} more"] if n_shown < len(names) else []
    *first, last = [*names[:n_shown], *more]
    return f"{', '.join(first)} and {last}" if first else last


def quoted(names: Sequence[str]) -> str:
    """Return up to five names in quotes, shortened, as a list in words."""
    return listed([repr(shortened(name, LONGEST_NAME)) for name in names], 5)


def misleading(names: Sequence[str]) -> Iterator[str]:
    r"""Yield sentences on names that look alike, mix alphabets or have invisible characters.

    >>> list(misleading(["bank", "Bank"]))
    ["'bank' and 'Bank' look alike: make sure who is who."]
    >>> list(misleading(["bank", "Zürich", "\u5317\u4eac", "client 1", "client 2"]))
    []
    """
    for name in names:
        if name != " ".join(name.split()) or any(map(is_unseen, name)):
            yield f"{name[:LONGEST_NAME]!a} has unusual spaces or invisible characters: make sure who that is."
        elif len(scripts := _scripts(name)) > 1:
            mixed = " and ".join(script.capitalize() for script in scripts)
            yield f"{name[:LONGEST_NAME]!a} mixes {mixed} letters that look alike: make sure who that is."
    seen: dict[str, str] = {}
    for name in names:
        keys = {_skeleton(name.translate(_LIKE_L_OR_O)), _skeleton(name)}
        if other := next((seen[key] for key in sorted(keys) if key in seen), None):
            yield f"{other[:LONGEST_NAME]!a} and {name[:LONGEST_NAME]!a} look alike: make sure who is who."
        for key in keys:
            seen.setdefault(key, name)


_LIKE_L_OR_O = str.maketrans("I1|0", "lllO")
_LIKE_LATIN = str.maketrans("аеорсухіјѕһԁԛԝвкмнтαβγεηικνορτυχ", "aeopcyxijshdqwbkmhtabyenikvoptux")
"""Small Cyrillic and Greek letters, and the Latin ones that look like them or their capitals."""

_BLANK = "\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0"
"""Printable characters that are blank."""


def doubtful_classes(classes: Sequence[str], counts: Sequence[int], remedy: str) -> Iterator[str]:
    """Yield sentences on classes that may be mistakes, as few samples have them or they differ only in case.

    >>> next(doubtful_classes(["no", "yes", "yess"], [50, 50, 1], "correct it"))
    'labels: few of 101 samples have yess (1), which makes 3 classes. If it is a mistake, correct it'
    """
    total = sum(counts)
    most = min(_RARE, _PART_OF_MEAN * total / len(counts))
    rare = sorted((n, m) for m, n in enumerate(counts) if n < most)
    if rare:
        more = f" and {len(rare) - 5:,} more classes" if len(rare) > 5 else ""
        shown = ", ".join(with_count(classes[m], n) for n, m in rare[:5])
        makes = f"which makes {len(classes):,} classes. If it is a mistake, {remedy}"
        yield f"labels: few of {total:,} samples have {shown}{more}, {makes}"
    folded = Counter(name.casefold() for name in classes)
    alike = [repr(shortened(name, LONGEST_NAME)) for name in classes if folded[name.casefold()] > 1]
    if alike:
        yield f"labels: {', '.join(alike[:6])} differ in capitals only, and are different classes"


_RARE, _PART_OF_MEAN = 10, 0.1
"""A class with fewer samples than this, and than this fraction of the mean, may be a mistake."""


def with_count(name: str, n_samples: int) -> str:
    """Return the name of a class with its number of samples."""
    return f"{shortened(name, LONGEST_NAME)} ({n_samples:,})"


def _skeleton(name: str) -> str:
    """Return a key that names share if they look alike."""
    folded = unicodedata.normalize("NFKD", name).casefold().translate(_LIKE_LATIN)
    kept = (letter for letter in folded if not (letter.isspace() or unicodedata.combining(letter)))
    return "".join(letter for letter in kept if not is_unseen(letter))


def is_unseen(letter: str) -> bool:
    """Return whether a character is invisible and not a space: a control, format or filler character."""
    is_selector = "\ufe00" <= letter <= "\ufe0f" or "\U000e0100" <= letter <= "\U000e01ef"
    return letter in _BLANK or is_selector or not (letter.isprintable() or letter.isspace())


def _scripts(name: str) -> list[str]:
    """Return the scripts of a name, of those that share shapes of letters."""
    found = {unicodedata.name(letter, "").partition(" ")[0] for letter in name if letter.isalpha()}
    return sorted(found & {"LATIN", "CYRILLIC", "GREEK"})


def number(amount: float, decimals: int) -> str:
    """Return a number with that many decimals; zero, also after rounding, has no sign."""
    text = f"{abs(amount):,.{decimals}f}"
    return f"{MINUS}{text}" if amount < 0 and float(text.replace(",", "")) else text


def digits(amount: float | None, n_digits: int = 3) -> str:
    """Return a number with that many digits, trailing zeros included, or "unknown".

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
    """Return a power of ten to follow a number.

    >>> power_of_ten(-9)
    '× 10⁻⁹'
    """
    return f"\N{MULTIPLICATION SIGN} 10{str(exponent).translate(_RAISED)}"


_RAISED = str.maketrans("0123456789-", "⁰¹²³⁴⁵⁶⁷⁸⁹⁻")


def error_text(error: float | None) -> str:
    """Return an error with two digits, rounded up, or "unknown".

    >>> error_text(0.01444), error_text(0.03), error_text(496.0), error_text(6.1e-6), error_text(None)
    ('0.015', '0.030', '500', '6.1 × 10⁻⁶', 'unknown')
    """
    if not error or not math.isfinite(error):
        return digits(error)
    return digits(rounded_up(error, 1 - Decimal(error).adjusted()), 2)


def rounded_up(error: float, decimals: int) -> float:
    """Return an error rounded up to that many decimals, unless it exceeds a shorter number by less than 1e-12 of it.

    >>> rounded_up(0.0561, 2), rounded_up(3 * 0.1, 1), rounded_up(410.0, -2)
    (0.06, 0.3, 500.0)
    """
    with localcontext(prec=400):  # enough for all digits of any float
        least = Decimal(error) * (1 - Decimal("1e-12"))
        return float(least.quantize(Decimal(1).scaleb(-decimals), ROUND_CEILING))
