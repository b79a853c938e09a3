"""Transports carry messages between the server side and the client sides."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from verfedsv.errors import AnswerError, DivergedError, InputError
from verfedsv.federation.clients import Client
from verfedsv.federation.messages import Answer, Request, check_kind


class Transport(Protocol):
    """Carries the server's requests to clients and their answers back; see tests/federation/conformance.py.

    It may lose, repeat and delay messages, but must deliver those to one client in order. It must make sure that an
    answer comes from the client that it names: the server cannot.
    """

    def exchange(self, requests: Sequence[Request], timeout: float | None = None) -> Iterable[Answer]:
        """Deliver each request to the client that it names; return the answers that came in time, in any order.

        `timeout` is in seconds; None means no limit. Lost requests and answers are left out. Raises InputError
        if there is no such client. May be called by several threads, for different clients.
        """


def raise_invalid(_: Request, error: InputError) -> None:
    """Raise the error that an invalid answer led to."""
    raise error


def ask(
    transport: Transport,
    requests: Sequence[Request],
    use: Callable[[Any], Any],
    on_invalid: Callable[[Request, InputError], None] = raise_invalid,
    timeout: float | None = None,
    n_tries: int = 3,
    on_missing: Callable[[Request], None] = lambda request: None,  # noqa: ARG005
) -> dict[str, Any]:
    """Return what `use` makes of the answers, by client, without those that are missing or invalid.

    A request without an answer after `timeout` seconds is sent again, `n_tries` times in all; then `on_missing` is
    called with it.
    """
    left, results = {request.client: request for request in requests}, {}
    for _ in range(n_tries):
        for answer in transport.exchange([*left.values()], timeout) if left else ():
            request = left.get(answer.client)
            if request is None or request.sequence != answer.sequence:
                continue  # a late answer to an earlier request
            del left[answer.client]
            try:
                check_kind(answer, request)
                results[answer.client] = use(answer)
            except (AnswerError, DivergedError) as error:
                on_invalid(request, error)
    for request in left.values():
        on_missing(request)
    return results


class InProcess:
    """Passes messages to clients in this process. Every request is answered."""

    def __init__(self, clients: Iterable[Client]) -> None:
        self.clients = {client.name: client for client in clients}

    def exchange(self, requests: Sequence[Request], timeout: float | None = None) -> list[Answer]:  # noqa: ARG002
        try:
            clients = [self.clients[request.client] for request in requests]
        except KeyError as error:
            raise InputError(f"unknown client {error}; the clients are {', '.join(self.clients)}") from None
        return [client.answer(request) for client, request in zip(clients, requests, strict=True)]
