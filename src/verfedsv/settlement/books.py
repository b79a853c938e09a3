"""Where the loss of a training went, in sentences, and whether anything should be paid for that."""

from __future__ import annotations

import math

from verfedsv.errors import InputError
from verfedsv.texts import number
from verfedsv.valuation import Valuation
from verfedsv.valuation.result import Books
from verfedsv.valuation.verdict import judge


def describe_books(books: Books) -> str:
    """Return the loss at the start and at the end, and what clients and server changed, over the whole training.

    >>> describe_books(Books(0.6931, 0.3012, 0.4919, -0.1))
    'loss 0.6931 at the start, 0.3012 at the end; the clients lowered it by 0.4919, the server raised it by 0.1000'
    """
    decimals = balanced_decimals(books, 4)
    parts = [f"the clients {_changed(books.clients, decimals)}"]
    if books.server:
        parts.append(f"the server {_changed(books.server, decimals)}")
    if books.unaccounted:
        parts.append(f"the values leave {number(books.unaccounted, decimals)} of the change unaccounted for")
    start, end = number(books.start, decimals), number(books.end, decimals)
    return f"loss {start} at the start, {end} at the end; {', '.join(parts)}"


def balanced_decimals(books: Books, n_digits: int) -> int:
    """Return the number of decimals with which the rounded books add up, if possible.

    At least `n_digits` digits of the smallest number, at most seven of the largest; more if those do not balance.
    """
    sizes = [math.floor(math.log10(abs(amount))) for amount in books[:4] if amount] or [0]
    least = max(0, min(n_digits - 1 - min(sizes), 6 - max(sizes)))
    return next((n for n in range(least, least + 6) if is_balanced(books, n)), least + 3)


def is_balanced(books: Books, decimals: int) -> bool:
    """Return whether books add up after rounding to that many decimals."""
    rounded = Books(*(round(amount, decimals) for amount in books))
    return abs(rounded.remainder) < 0.5 * 0.1**decimals


def why_rejected(valuation: Valuation) -> str:
    """Return in sentences that the loss rose, or that the clients did not lower it; nothing if neither is so."""
    return " ".join(judge(valuation).texts("alarm"))


def refuse_rejected(valuation: Valuation, what: str, *, accepted: bool) -> None:
    """Raise InputError, saying what is not done, if the loss rose or the clients did not lower it, unless accepted."""
    why = why_rejected(valuation)
    if why and not accepted:
        raise InputError(f"not {what}: {why} To continue anyway, add --even-if-the-loss-rose")


def _changed(decrease: float, decimals: int) -> str:
    return f"{'lowered' if decrease >= 0 else 'raised'} it by {number(abs(decrease), decimals)}"
