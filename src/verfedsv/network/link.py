"""The client's end of its connection to the server: it dials, answers what it is asked, and dials again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import grpc
from grpc import aio

from verfedsv.errors import RefusedError, UnreachableError
from verfedsv.federation.messages import Answer, Message, Refusal
from verfedsv.network.loops import Caller
from verfedsv.network.messages import End, Hello, Welcome
from verfedsv.network.wire import CLIENT_OPTIONS, METHOD, Assembly, frames, request_from_bytes, to_bytes

LARGEST_REQUEST = 1 << 30
"""Limit of a message of the server in bytes; a client trusts it with the training."""

_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_BUSY = 60.0
"""Seconds for which a server may say that a client is connected already: it may not know yet that it hung up."""

_FINAL = {
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}


class Link:
    """Answers the server's messages over any number of connections, one after the other.

    `hello` makes the first message of each connection, `answer` answers a request. Without a connection for `patience`
    seconds, None for no limit, it gives up. `on_event` is told what happens, in words.
    """

    def __init__(
        self,
        address: str,
        credentials: grpc.ChannelCredentials | None,
        hello: Callable[[], Hello],
        answer: Callable[[Any], Answer],
        *,
        patience: float | None = None,
        on_event: Callable[[str], None] = lambda text: None,  # noqa: ARG005
        on_welcome: Callable[[Welcome], None] = lambda welcome: None,  # noqa: ARG005
    ) -> None:
        self._address, self._credentials = address, credentials
        self._hello, self._answer = hello, answer
        self._patience, self._on_event, self._on_welcome = patience, on_event, on_welcome
        self._last_contact = time.monotonic()
        self._is_welcome = False
        self._caller = Caller()

    def run(self) -> End:
        """Answer until the server says that it is over; return its last message.

        Raises RefusedError or UnreachableError. Ctrl-C ends it with KeyboardInterrupt.

        Answers are computed in the thread that calls it.
        """
        return self._caller.run(self._run())

    async def _run(self) -> End:
        self._last_contact, said, pause = time.monotonic(), "", _PAUSE
        while True:
            self._is_welcome = False
            try:
                end = await self._attend()
            except grpc.RpcError as error:
                self._check(error)
                why = explain(error, was_connected=self._is_welcome)
            else:
                if end is not None:
                    return end
                why = "the server closed the connection"
            if self._is_welcome:
                pause = _PAUSE
            if why != said or self._is_welcome:
                self._on_event(f"{why}; trying again")
                said = why
            if self._patience is not None and time.monotonic() - self._last_contact > self._patience:
                raise UnreachableError(f"{self._address}: no connection for {self._patience:g} seconds: {why}")
            await asyncio.sleep(pause * random.uniform(0.5, 1))  # noqa: S311  # so that not all come back at once
            pause = min(1.5 * pause, _LONGEST_PAUSE)

    def _check(self, error: Any) -> None:
        """Raise RefusedError if there is no use in trying again."""
        details = error.details() or ""
        is_taken = error.code() is grpc.StatusCode.ALREADY_EXISTS
        if is_taken and time.monotonic() - self._last_contact < _BUSY:
            return
        if is_taken or error.code() in _FINAL:
            raise RefusedError(f"{self._address} refuses this client: {details}")
        if _is_about_certificates(details):
            raise RefusedError(f"{self._address}: {explain(error)}")

    async def _attend(self) -> End | None:
        """Serve one connection; return the server's last message, None if it hung up without one."""
        hello = self._hello()
        async with self._dial() as channel:
            call: Any = channel.stream_stream(METHOD, None, None)()  # type: ignore[call-arg]  # the stubs demand messages
            assembly = Assembly(LARGEST_REQUEST)
            await _write(call, hello)
            while (frame := await call.read()) is not aio.EOF:  # type: ignore[attr-defined]
                content = assembly.add(frame)
                if content is None:
                    continue
                self._last_contact = time.monotonic()
                message: Message = request_from_bytes(content, hello.name)
                match message:
                    case Welcome():
                        self._is_welcome = True
                        self._on_welcome(message)
                    case End():
                        return message
                    case _:
                        await _write(call, await self._caller.compute(partial(self._answer, message)))
            return None

    def _dial(self) -> aio.Channel:
        if self._credentials is None:
            return aio.insecure_channel(self._address, CLIENT_OPTIONS)
        return aio.secure_channel(self._address, self._credentials, CLIENT_OPTIONS)


async def _write(call: Any, message: Message) -> None:
    """Send a message; what ended the call is found out when it is read from."""
    try:
        for frame in frames(to_bytes(message)):
            await call.write(frame)
    except asyncio.InvalidStateError:
        return


def refuse(message: Message, error: Exception) -> Refusal:
    """Return the answer to a message that cannot be carried out."""
    return Refusal(message.client, message.round, message.sequence, str(error))


def _is_about_certificates(details: str) -> bool:
    return any(text in details for text in ("CERTIFICATE", "Peer name", "Hostname Verification", "certificate"))


NOBODY = "nothing answers there"
OTHER_HOST = "the server's certificate is for another host name than the one dialled"

_REASONS = (
    (
        "CERTIFICATE_VERIFY_FAILED",
        "the server's certificate is not signed by the authority given (--ca), or has expired",
    ),
    ("Hostname Verification", OTHER_HOST),
    ("Peer name", OTHER_HOST),
    ("WRONG_VERSION_NUMBER", "something answers there, but without TLS"),
    ("resolving", "no host of this name is known here; check the spelling"),
    ("lookup failed", "no host of this name is known here; check the spelling"),
    ("Socket closed", "it hung up at once: either it does not accept your certificate, or it is no server of verfedsv"),
    ("Connection reset", "the connection was lost"),
    ("connect", NOBODY),
)
"""What gRPC says in its details if there is no connection, and what that means."""


def explain(error: Any, *, was_connected: bool = False) -> str:
    """Return in words why a connection failed, or ended if the server had welcomed the client."""
    details = str(error.details() or error.code().name)
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        for text, meaning in _REASONS:
            if text in details:
                return "the connection was lost" if was_connected else meaning
    return details.partition("\n")[0][:200]
