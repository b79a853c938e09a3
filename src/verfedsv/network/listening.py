"""The server's port, and the event loop of gRPC, which runs in a thread of its own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import grpc
from grpc import aio

from verfedsv.errors import InputError
from verfedsv.network.events import Event
from verfedsv.network.handshakes import Handshakes
from verfedsv.network.loops import network_loop
from verfedsv.network.wire import METHOD, SERVER_OPTIONS
from verfedsv.texts import count, shortened

_CONNECTIONS_EACH, _OTHER_CONNECTIONS = 8, 128
"""Connections that are accepted for each client, and beside these: files of the run need descriptors too."""

_REPORT = 5.0
"""Seconds between two looks whether connections came to nothing."""

Attend = Callable[[AsyncIterator[bytes], Any], Awaitable[None]]

_Result = TypeVar("_Result")


class Listener:
    """Takes calls on a port, and lets `attend` serve each: with the messages that come in, and gRPC's context."""

    def __init__(self, attend: Attend, n_clients: int, on_event: Callable[[Event], None]) -> None:
        self._attend, self._n_clients, self._on_event = attend, n_clients, on_event
        self.loop = network_loop()
        self._server: aio.Server | None = None
        self._handshakes: Handshakes | None = None

    def await_here(self, work: Coroutine[Any, Any, _Result]) -> _Result:
        """Let the event loop do some work, and return what comes out."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result()

    async def start(self, address: str, credentials: Handshakes | grpc.ServerCredentials | None) -> int:
        """Listen on HOST:PORT, and return the port; raise InputError if that is not possible."""
        most = _CONNECTIONS_EACH * self._n_clients + _OTHER_CONNECTIONS
        self._server = aio.server(options=(*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most)))
        self._server.add_generic_rpc_handlers((_OneMethod(self._begin, self._on_event),))
        if isinstance(credentials, Handshakes):
            self._handshakes, credentials = credentials, credentials.credentials
            self._watcher = asyncio.ensure_future(self._tell_of_strangers(self._handshakes))
        try:
            if credentials is None:
                port = self._server.add_insecure_port(address)
            else:
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError:
            port = 0
        if not port:
            raise InputError(f"cannot listen on {address}: another program does, or the address is not this machine's")
        await self._server.start()
        return int(port)

    async def stop(self, grace: float) -> None:
        """Close the port, and after so many seconds all connections."""
        if self._handshakes is not None:
            self._watcher.cancel()
        if self._server is not None:
            await self._server.stop(grace)

    async def _begin(self, incoming: AsyncIterator[bytes], context: Any) -> None:
        if self._handshakes is not None:
            self._handshakes.call()
        await self._attend(incoming, context)

    async def _tell_of_strangers(self, handshakes: Handshakes) -> None:
        """Tell from time to time how many connections did not get through TLS; who they were, gRPC does not say."""
        while True:
            await asyncio.sleep(_REPORT)
            if n_ended := handshakes.ended():
                what = "without a certificate of this consortium, or said nothing"
                self._on_event(Event("refused", "", f"{count(n_ended, 'connection')} ended {what}"))


class _OneMethod(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # only its stubs are generic
    """The only method of the server; calls of others are told."""

    def __init__(self, attend: Any, on_event: Callable[[Event], None]) -> None:
        self._handler, self._on_event = grpc.stream_stream_rpc_method_handler(attend), on_event

    def service(self, call: Any) -> Any:
        """Return the handler of a call, None if there is no such method."""
        if call.method == METHOD:
            return self._handler
        self._on_event(Event("refused", "", f"a call of {shortened(call.method, 80)!r}: there is only {METHOD}"))
        return None


def certificate_of(context: Any) -> bytes | None:
    """Return the certificate of a caller and those that came with it, in PEM; None without TLS."""
    shown = context.auth_context()
    return b"".join([*shown.get("x509_pem_cert", []), *shown.get("x509_pem_cert_chain", [])]) or None
