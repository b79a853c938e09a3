"""Who is let in: whose certificate a caller has, and whether its first message fits."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Iterator
from contextlib import AbstractContextManager
from typing import Any

import grpc

from verfedsv._version import __version__
from verfedsv.errors import InputError, RefusedError
from verfedsv.network.messages import PROTOCOL, Hello
from verfedsv.network.wire import Assembly, answer_from_bytes, next_message
from verfedsv.texts import shortened

HELLO_BYTES = 1 << 14
"""Limit of the first message of a client."""

_PATIENCE = 30.0
"""Seconds that a client has for its first message."""

_MOST_GREETING = 8
"""Connections of a client that may be without a first message."""

_MOST_CALLS = 4
"""Connections of a client that have said who they are: the present one, and such as are not known to be gone."""


class Refused(Exception):  # noqa: N818  # not an error of the server's
    """A connection is refused, with the code that gRPC has for it.

    The reason is for the log; `told` is what the caller is told, the reason if it is None.
    """

    def __init__(self, code: grpc.StatusCode, reason: str, told: str | None = None) -> None:
        super().__init__(reason)
        self.code, self.told = code, reason if told is None else told


class Reception:
    """Asks callers who they are; see `Hub` for `admit` and `accept`.

    `live` returns the token of the process in which a client is connected, None if it is not.
    """

    def __init__(
        self,
        clients: Collection[str],
        admit: Callable[[bytes | None], str | None],
        accept: Callable[[Hello], None],
        live: Callable[[str], str | None],
    ) -> None:
        self._clients, self._admit, self._accept, self._live = clients, admit, accept, live
        self._greeting: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()

    def identify(self, certificate: bytes | None) -> str:
        """Return who is calling, by the certificate; an empty name without TLS."""
        try:
            return self._admit(certificate) or ""
        except InputError as error:
            code = grpc.StatusCode.PERMISSION_DENIED
            if isinstance(error, RefusedError) and error.reason == "no revocation list":
                code = grpc.StatusCode.UNAVAILABLE  # which the server's operator has to mend, and the client may wait
            told = str(error)
            if isinstance(error, RefusedError) and error.reason in ("no revocation list", "unreadable"):
                told = "the server cannot read its list of those who were revoked: its operator has to mend that"
            raise Refused(code, str(error), told) from None  # the reason may name files of the server

    async def greet(self, name: str, incoming: AsyncIterator[bytes]) -> Hello:
        """Return the first message; raise Refused unless the client may take part."""
        most = _MOST_GREETING if name else _MOST_GREETING * len(self._clients)  # of this client, if it is known
        with _one_more(self._greeting, name, most, "have not said anything yet"):
            hello = await self._read(name, incoming)
        stated = shortened(hello.name, 80)
        if hello.protocol != PROTOCOL:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"protocol version {hello.protocol} of verfedsv {shortened(hello.version, 40)} is not that of this "
                f"server, {PROTOCOL} of verfedsv {__version__}: install the same version",
            )
        if name and hello.name != name:
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"{name!r} by its certificate says that it is {stated!r}")
        if hello.name not in self._clients:
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"{stated!r} is not a client of this consortium")
        hello.client = hello.name
        if hello.purpose != "check":
            self.check_free(hello)
            self._check_place(hello)
        return hello

    def one_more_call(self, name: str) -> AbstractContextManager[None]:
        """Count a connection until it ends; raise Refused if a client has too many.

        gRPC cannot end a call whose client takes nothing that is written to it.
        """
        return _one_more(self._calls, name, _MOST_CALLS, "of this client are open")

    async def _read(self, name: str, incoming: AsyncIterator[bytes]) -> Hello:
        try:
            content = await asyncio.wait_for(next_message(incoming, Assembly(HELLO_BYTES)), _PATIENCE)
        except TimeoutError:
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, f"no message in {_PATIENCE:g} seconds") from None
        except InputError as error:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        with contextlib.suppress(InputError):
            hello: Any = answer_from_bytes(content or b"", name)
            if isinstance(hello, Hello):
                return hello
        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Hello")

    def check_free(self, hello: Hello) -> None:
        """Raise Refused if another process of the client is connected."""
        if self._live(hello.name) not in (None, hello.session):
            reason = f"{hello.name!r} is connected already, from another process"
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, reason)

    def _check_place(self, hello: Hello) -> None:
        """Raise Refused if the client cannot take part."""
        try:
            self._accept(hello)
        except InputError as error:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None


@contextlib.contextmanager
def _one_more(counts: Counter[str], name: str, most: int, what: str) -> Iterator[None]:
    """Count a connection while it lasts; raise Refused if there are too many."""
    if counts[name] >= most:
        raise Refused(grpc.StatusCode.UNAVAILABLE, f"{most} connections {what}")
    counts[name] += 1
    try:
        yield
    finally:
        counts[name] -= 1
