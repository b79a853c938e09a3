"""Texts of others, as they may be shown."""

from __future__ import annotations

LONGEST_NAME = 60
"""Of a client or a run where it is shown, in letters, so that no page grows with names. JSON has them in full."""


def printable(text: str) -> str:
    r"""Return a text in one line, without anything that is not a letter to be seen: no terminal or page obeys it.

    >>> printable("\x1b[31mred"), printable("one\ntwo")
    ('�[31mred', 'one�two')
    """
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text)


def shortened(text: str, most: int) -> str:
    """Return a text that is printable, and cut at its end if it is longer than that.

    >>> shortened("hospital of the north", 12)
    'hospital of…'
    """
    shown = printable(text[: most + 1])
    return shown if len(shown) <= most else f"{shown[: most - 1]}…"
