"""The server's end of all connections: who is there, and a transport of messages to them.

gRPC runs in an event loop in a thread of its own (`listening`); whoever exchanges messages waits for it in another
thread. Each client has a seat, which outlives its connections (`sessions`).
"""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import grpc

from verfedsv._version import __version__
from verfedsv.errors import InputError, MissingClientError
from verfedsv.federation import Client
from verfedsv.federation.messages import Answer, Done, Message, Refusal, Request
from verfedsv.network.events import Event, Sparing
from verfedsv.network.handshakes import Handshakes
from verfedsv.network.listening import Listener, certificate_of
from verfedsv.network.messages import PROTOCOL, Begin, End, Hello, Welcome
from verfedsv.network.reception import Reception, Refused
from verfedsv.network.seats import Inbox, Seat
from verfedsv.network.sessions import Session
from verfedsv.network.wire import Assembly, answer_from_bytes, frames, next_message, to_bytes
from verfedsv.texts import shortened

_ROOM = 1 << 18
"""Bytes that an answer may have besides embeddings, such as a part of an alignment: 4096 points."""

_LAST_WORDS = 5.0
"""Seconds that answers may still take once all is to stop."""

_CATCHING_UP = 120.0
"""Seconds that a client has for each message that it has missed."""

_STEP = 0.2
"""Seconds that a thread waits at a time, so that Ctrl-C reaches it."""


class Hub:
    """Carries messages to clients that dial in; a `Transport`.

    `admit` returns the name of a client from its certificate in PEM, None without TLS; it raises InputError with the
    reason if the client may not join. `clients` are the names of those that may, and `local` those that live in this
    process. `accept` is asked about each Hello, and raises InputError if the client cannot take part. `limit` returns
    how many bytes the answer to a request may have. `about` and `training` are for Welcome. `on_event` is told who
    comes, goes and is refused.
    """

    def __init__(
        self,
        clients: Iterable[str],
        admit: Callable[[bytes | None], str | None],
        *,
        local: Iterable[Client] = (),
        accept: Callable[[Hello], None] = lambda hello: None,  # noqa: ARG005
        limit: Callable[[Request], int] = lambda request: 1 << 26,  # noqa: ARG005
        about: str = "",
        training: str = "",
        on_event: Callable[[Event], None] = lambda event: None,  # noqa: ARG005
    ) -> None:
        self.local = {client.name: client for client in local}
        self.clients = tuple(name for name in clients if name not in self.local)
        self.limit, self._about, self._training = limit, about, training
        self._on_event = Sparing(on_event, (*self.clients, *self.local))
        self._reception = Reception(self.clients, admit, accept, self._live)
        self._listener = Listener(self._attend, len(self.clients), self._on_event)
        self._seats = {name: Seat() for name in self.clients}
        self._changed = threading.Condition()
        self._end: End | None = None
        self.should_stop: Callable[[], bool] = lambda: False
        """Told to stop, nobody waits long for a client that is not there."""

    # Starting and stopping

    def start(self, address: str, credentials: Handshakes | grpc.ServerCredentials | None) -> int:
        """Listen on HOST:PORT, and return the port; raise InputError if that is not possible."""
        return self._listener.await_here(self._listener.start(address, credentials))

    def stop(self, end: End | None = None, grace: float = 5.0) -> None:
        """Tell all clients the `end`, wait until they have hung up, and close all connections."""
        self._listener.await_here(self._stop(end, grace))

    async def _stop(self, end: End | None, grace: float) -> None:
        self._end = end
        for seat in self._seats.values():
            if seat.session is not None:
                seat.session.end()
        await self._listener.stop(grace)

    # Who is there

    def connected(self) -> dict[str, Hello]:
        """Return the first message of each client that is connected."""
        sessions = ((name, seat.session) for name, seat in self._seats.items())
        return {name: session.hello for name, session in sessions if session is not None}

    def wait_for_all(self, names: Iterable[str], timeout: float | None, should_stop: Callable[[], bool]) -> set[str]:
        """Wait until these clients are connected; return those that are not, after a time or if told to stop."""
        wanted = {*names} - {*self.local}
        end = None if timeout is None else time.monotonic() + timeout
        with self._changed:
            while missing := wanted - {*self.connected()}:
                if should_stop() or (end is not None and time.monotonic() > end):
                    return missing
                self._changed.wait(_STEP)
        return set()

    def is_there(self, name: str) -> bool:
        """Return whether a client is connected, or in this process."""
        return name in self.local or self._seats[name].session is not None

    def reached(self, name: str) -> int:
        """Return the number of the last message that a client answered and had to journal, 0 before one."""
        return self._seats[name].reached

    def write_off(self, name: str) -> bool:
        """Wait no longer for a client until it connects again; return whether that is new."""
        seat = self._seats[name]
        is_new, seat.is_written_off = not seat.is_written_off, True
        return is_new

    def catch_up_later(self, name: str, request: Any) -> None:
        """Let a client that is away carry out a request when it is back, before any other; nobody waits for it."""
        self._seats[name].missed.append(request)
        self.write_off(name)

    def has_missed(self, name: str) -> bool:
        """Return whether a client has something to catch up with."""
        return bool(self._seats[name].missed)

    def disconnect(self, name: str, reason: str, end: End | None = None) -> None:
        """Close the connection of a client, after an `end` if there is one; it may come back."""
        self._listener.await_here(self._disconnect(name, reason, end))

    async def _disconnect(self, name: str, reason: str, end: End | None) -> None:
        session = self._seats[name].session
        if session is not None:
            session.end(reason, end)

    # Exchanging messages

    def exchange(self, requests: Sequence[Request], timeout: float | None = None) -> list[Answer]:
        """Ask clients, and wait for the answers of all, for at most that many seconds.

        A client that is not connected is asked when it comes back; one that is written off is not waited for until
        then. A request that was sent already, with the same number, is not sent again unless its connection broke.
        """
        remote = [request for request in requests if request.client not in self.local]
        for request in remote:
            if request.client not in self._seats:
                names = ", ".join((*self.clients, *self.local))
                raise InputError(f"unknown client {request.client!r}; the clients are {names}")
        contents, inbox = [(request, to_bytes(request)) for request in remote], Inbox(len(remote))
        self._listener.loop.call_soon_threadsafe(self._post, contents, inbox)
        answers = [self.local[each.client].answer(each) for each in requests if each.client in self.local]
        self._wait(inbox, {request.client for request in remote}, timeout)
        return [*answers, *inbox.answers]

    def _wait(self, inbox: Inbox, clients: set[str], timeout: float | None) -> None:
        """Wait until all of these have answered that are expected to; raise KeyboardInterrupt if told to stop."""
        end, is_stopping = math.inf if timeout is None else time.monotonic() + timeout, False
        while any(self._is_expected(name) for name in clients - {answer.client for answer in inbox.answers}):
            if inbox.wait(min(_STEP, end - time.monotonic())):
                return
            if self.should_stop() and not is_stopping:
                is_stopping, end = True, min(end, time.monotonic() + _LAST_WORDS)
            if time.monotonic() >= end:
                if is_stopping and threading.current_thread() is threading.main_thread():
                    raise KeyboardInterrupt
                return

    def _is_expected(self, name: str) -> bool:
        seat = self._seats[name]
        return seat.session is not None or not seat.is_written_off

    def _post(self, contents: Sequence[tuple[Request, bytes]], inbox: Inbox) -> None:
        for request, content in contents:
            seat = self._seats[request.client]
            seat.waiting = inbox
            if isinstance(request, Begin):
                seat.reached = 0
            # Sequence numbers alone do not tell: alignment and training have their own.
            is_repeated = seat.content == content
            if is_repeated and seat.answer is not None:
                inbox.put(seat.answer)
            elif not is_repeated:
                seat.request, seat.content, seat.answer = request, content, None
                self._ask(seat)

    def _ask(self, seat: Seat) -> None:
        if seat.session is not None and seat.request is not None:
            seat.session.ask(seat.content, seat.request.sequence, self.limit(seat.request))

    # A connection

    async def _attend(self, incoming: AsyncIterator[bytes], context: Any) -> None:
        """Serve a connection, from its first message to its end."""
        name = ""
        try:
            certificate = certificate_of(context)
            name = self._reception.identify(certificate)
            hello = await self._reception.greet(name, incoming)
            with self._reception.one_more_call(hello.name):
                await _write(context, self._welcome(hello.name))
                if hello.purpose != "check":
                    await self._catch_up(hello, incoming, context)
                    await self._serve(hello, certificate, incoming, context)
        except Refused as refused:
            self._on_event(Event("refused", name or str(context.peer()), str(refused)))
            await context.abort(refused.code, refused.told)

    async def _catch_up(self, hello: Hello, incoming: AsyncIterator[bytes], context: Any) -> None:
        """Let a client that was away do what it has missed; raise Refused if it cannot."""
        missed = self._seats[hello.name].missed
        while missed:
            request = missed[0]
            await _write(context, request)
            try:
                content = await asyncio.wait_for(next_message(incoming, Assembly(self.limit(request))), _CATCHING_UP)
                answer: Any = answer_from_bytes(content or b"", hello.name)
            except (InputError, TimeoutError) as error:
                raise Refused(grpc.StatusCode.INVALID_ARGUMENT, f"no answer to what it has missed: {error}") from None
            if not isinstance(answer, Done) or answer.sequence != request.sequence:
                why = shortened(answer.reason, 1000) if isinstance(answer, Refusal) else "another answer"
                raise Refused(grpc.StatusCode.FAILED_PRECONDITION, f"it cannot catch up with the training: {why}")
            missed.pop(0)
        self._reception.check_free(hello)  # another process of it may be here by now

    async def _serve(
        self, hello: Hello, certificate: bytes | None, incoming: AsyncIterator[bytes], context: Any
    ) -> None:
        """Carry messages until the client hangs up, another connection of it takes over, or all is over."""
        name, seat = hello.name, self._seats[hello.name]
        session = Session(hello, partial(self._reception.identify, certificate), self._take)
        if seat.session is not None:
            seat.session.end("it connected again")
        seat.session, seat.is_written_off = session, False
        if seat.answer is None:
            self._ask(seat)
        self._on_event(Event("joined", name, f"from {context.peer()}"))
        self._notify()
        try:
            await session.carry(incoming, context)
        finally:
            if seat.session is session:
                seat.session = None
                self._on_event(Event("left", name, session.why))
                self._notify()
            await session.finish(self._end)

    def _take(self, session: Session, answer: Answer) -> None:
        """Take an answer, unless it comes too late."""
        name, seat = session.hello.name, self._seats[session.hello.name]
        if seat.session is not session or not seat.awaits(answer):
            self._on_event(Event("ignored", name, f"its answer to message {answer.sequence} came too late"))
            return
        seat.take(answer)

    def _welcome(self, name: str) -> Welcome:
        return Welcome(name, 0, 0, PROTOCOL, __version__, name, time.time(), self._about, self._training)

    def _live(self, name: str) -> str | None:
        session = self._seats[name].session
        return None if session is None else session.hello.session

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


async def _write(context: Any, message: Message) -> None:
    for frame in frames(to_bytes(message)):
        await context.write(frame)


def ask_one(hub: Hub, message: Any, timeout: float) -> Any:
    """Return the answer to a message; raise InputError if it is a refusal, MissingClientError if there is none."""
    for answer in hub.exchange([message], timeout):
        if isinstance(answer, Refusal):
            raise InputError(f"{message.client!r} refuses: {shortened(answer.reason, 1000)}")
        return answer
    raise MissingClientError(f"{message.client!r} did not answer within {timeout:g} seconds")


def largest_answer(request: Message, widths: Mapping[str, int], n_samples: int) -> int:
    """Return how many bytes an answer may have: embeddings in double precision, and room for the rest."""
    samples = getattr(request, "samples", ())
    n_rows = n_samples if samples is None else len(samples)
    return _ROOM + 8 * n_rows * widths.get(request.client, 1)
