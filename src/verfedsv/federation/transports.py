"""Transports carry messages between the server side and the client sides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from verfedsv.errors import InputError
from verfedsv.federation.clients import Client
from verfedsv.federation.messages import Answer, Request


class Transport(Protocol):
    """Carries requests of the server to clients and their answers back; see tests/federation/conformance.py.

    May lose, repeat and delay messages. Those to one client must arrive in the order in which they were sent. An answer
    must come from the client that it names: the server cannot tell.
    """

    def exchange(self, requests: Sequence[Request], timeout: float | None = None) -> Iterable[Answer]:
        """Deliver requests, each to the client that it names, and return the answers that came in time, in any order.

        Without a `timeout`, in seconds, as long as it takes. A request that was lost, or whose answer was, has none.
        Raises InputError if there is no such client. May be called by several threads, for different clients.
        """


class InProcess:
    """Hands messages to clients of this process, as they are. Always answers."""

    def __init__(self, clients: Iterable[Client]) -> None:
        self.clients = {client.name: client for client in clients}

    def exchange(self, requests: Sequence[Request], timeout: float | None = None) -> list[Answer]:  # noqa: ARG002
        try:
            clients = [self.clients[request.client] for request in requests]
        except KeyError as error:
            raise InputError(f"unknown client {error}; the clients are {', '.join(self.clients)}") from None
        return [client.answer(request) for client, request in zip(clients, requests, strict=True)]
