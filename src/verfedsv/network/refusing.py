"""What a client refuses, and what the server is told of it: a reason only if it shows nothing of the client's files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from verfedsv.errors import InputError, VerfedsvError
from verfedsv.federation.messages import Message, Refusal

CANNOT = (VerfedsvError, ValueError, TypeError, OverflowError, MemoryError)
"""What carrying out a message may raise: the server's messages are not trusted, and files may have anything in them."""

WITHHELD = "its columns or files cannot be used; its owner has the reason"
"""What the server is told if the reason may have cells, names of columns or paths in it."""


class TellableError(InputError):
    """A message cannot be carried out, and the reason has no cell, no name of a column and no path of the client."""


@contextmanager
def telling() -> Iterator[None]:
    """Let the server be told the reason of an error within: what is done there has no access to columns or paths."""
    try:
        yield
    except InputError as error:
        raise TellableError(str(error)) from error


def refuse(message: Message, error: Exception, log: Callable[[str], None]) -> Refusal:
    """Return the refusal of a message; the reason is logged, and the server is told it only if it is tellable."""
    reason = str(error) if isinstance(error, VerfedsvError) else f"{type(error).__name__}: {error}"
    log(f"refused {type(message).__name__}: {reason}")
    told = reason if isinstance(error, TellableError) else WITHHELD
    return Refusal(message.client, message.round, message.sequence, told)
