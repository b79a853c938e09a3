"""Where the loss of a training went, in sentences, and whether anything should be paid for that."""

from __future__ import annotations

import math
from collections.abc import Iterator

from verfedsv.errors import InputError
from verfedsv.valuation.result import Books


def say_books(books: Books) -> str:
    """Return the loss at the start and at the end, and what clients and server changed, over the whole training.

    >>> say_books(Books(0.6931, 0.3012, 0.4919, -0.1))
    'loss 0.6931 at the start, 0.3012 at the end; the clients lowered it by 0.4919, the server raised it by 0.1000'
    """
    form = f".{balanced_decimals(books, 4)}f"
    parts = [f"the clients {_changed(books.clients, form)}"]
    if books.server:
        parts.append(f"the server {_changed(books.server, form)}")
    if books.unaccounted:
        parts.append(f"the values leave {books.unaccounted:{form}} of the change unaccounted for")
    return f"loss {books.start:{form}} at the start, {books.end:{form}} at the end; {', '.join(parts)}"


def balanced_decimals(books: Books, n_digits: int) -> int:
    """Return with how many decimals books are written, so that what is written adds up, if that is possible.

    So many digits of the smallest number, but not more than seven of the largest; more where those do not balance.
    """
    sizes = [math.floor(math.log10(abs(amount))) for amount in books[:4] if amount] or [0]
    least = max(0, min(n_digits - 1 - min(sizes), 6 - max(sizes)))
    return next((n for n in range(least, least + 6) if is_balanced(books, n)), least + 3)


def is_balanced(books: Books, decimals: int) -> bool:
    """Return whether books add up if they are rounded to so many decimals."""
    rounded = Books(*(round(amount, decimals) for amount in books))
    return abs(remainder(rounded)) < 0.5 * 0.1**decimals


def remainder(books: Books) -> float:
    """Return what is left of the loss at the start: the numerical error."""
    return books.start - books.end - books.clients - books.server - books.unaccounted


def say_doubts(books: Books) -> Iterator[str]:
    """Yield sentences on why values may be nothing to pay by: the loss rose, or it was the server that changed it."""
    if books.loss_rose:
        yield f"The loss rose over the training, from {books.start:.4g} to {books.end:.4g}: the model became worse."
    if books.clients <= 1e-12 * abs(books.start):
        yield f"The clients together did not lower the loss: their values add up to {books.clients:.4g}."
    if abs(books.server) > abs(books.clients):
        yield (
            f"The server's own part changed the loss more than all clients together: it {_changed(books.server)}, the "
            f"clients {_changed(books.clients)}."
        )
    elif books.is_mostly_server:
        yield (
            "The server's own part moved the loss up and down more than all clients together, by "
            f"{books.server_moved:.4g} in all rounds, the clients by {books.clients_moved:.4g}: what their changes "
            "were worth depended on where it was."
        )


def refuse_doubtful(books: Books, what: str, *, accepted: bool) -> None:
    """Raise InputError, saying what is not done, if the loss rose or the clients did not lower it, unless accepted."""
    if not books.is_payable and not accepted:
        why = " ".join(say_doubts(books))
        raise InputError(f"not {what}: {why} To go on all the same, add --even-if-the-loss-rose")


def _changed(decrease: float, form: str = ".4g") -> str:
    return f"{'lowered' if decrease >= 0 else 'raised'} it by {abs(decrease):{form}}"
