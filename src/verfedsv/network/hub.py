"""The server's end of all connections: who is there, and a transport of messages to them.

gRPC runs in an event loop in a thread of its own; whoever exchanges messages waits for it in another thread. Each
client has a seat. Its stream carries a request, then the answer to it, and nothing is read from it while no answer is
owed: a client that sends more than it was asked for fills the buffers of its own connection, and nobody else's.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import grpc
from grpc import aio

from verfedsv._version import __version__
from verfedsv.errors import InputError
from verfedsv.federation import Client
from verfedsv.federation.messages import Answer, Message, Request
from verfedsv.network.messages import PROTOCOL, End, Hello, Welcome
from verfedsv.network.wire import METHOD, OPTIONS, Assembly, answer_from_bytes, frames, to_bytes
from verfedsv.texts import shortened

HELLO_BYTES = 1 << 14
"""Limit of the first message of a client."""

_PATIENCE = 30.0
"""Seconds that a client has for its first message."""

_STEP = 0.2
"""Seconds that a thread waits at a time, so that Ctrl-C reaches it."""


class Refused(Exception):  # noqa: N818  # not an error of the server's
    """A connection is refused, with the code that gRPC has for it."""

    def __init__(self, code: grpc.StatusCode, reason: str) -> None:
        super().__init__(reason)
        self.code = code


@dataclass(frozen=True)
class Event:
    """Something that happened on the network: `kind` is joined, left, refused or ignored."""

    kind: str
    client: str
    text: str


@dataclass(eq=False)
class _Session:
    """A live connection of a client."""

    token: str
    outbox: asyncio.Queue[tuple[Request, bytes]] = field(default_factory=asyncio.Queue)
    owed: dict[int, int] = field(default_factory=dict)  # largest size of each answer, by its sequence number
    is_owed: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)


class _Inbox:
    """The answers to one exchange. Who waits for them is woken once, by the last.

    Woken by each, it would take the interpreter's lock from the event loop four times for four clients: 3.05 instead of
    2.78 ms for an iteration of theirs.
    """

    def __init__(self, n_expected: int) -> None:
        self.answers: list[Answer] = []
        self._n_expected, self._is_full = n_expected, threading.Event()

    def put(self, answer: Answer) -> None:
        self.answers.append(answer)
        if len(self.answers) >= self._n_expected:
            self._is_full.set()

    def wait(self, timeout: float) -> bool:
        """Wait for at most so many seconds; return whether all answers are there."""
        return self._n_expected == 0 or self._is_full.wait(timeout)


@dataclass(eq=False)
class _Seat:
    """What the server knows of a client, connected or not; used in the event loop only."""

    session: _Session | None = None
    hello: Hello | None = None
    request: Request | None = None
    content: bytes = b""
    answer: Answer | None = None
    waiting: _Inbox | None = None


class Hub:
    """Carries messages to clients that dial in; a `Transport`.

    `admit` returns the name of a client from its certificate in PEM, None without TLS; it raises InputError with the
    reason if the client may not join. `clients` are the names of those that may, and `local` those that live in this
    process. `accept` is asked about each Hello, and raises InputError if the client cannot take part. `limit` returns
    how many bytes the answer to a request may have. `on_event` is told who comes, goes and is refused.
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
        on_event: Callable[[Event], None] = lambda event: None,  # noqa: ARG005
    ) -> None:
        self.local = {client.name: client for client in local}
        self.clients = tuple(name for name in clients if name not in self.local)
        self.limit, self.accept, self.about = limit, accept, about
        self._admit, self._on_event = admit, on_event
        self._seats = {name: _Seat() for name in self.clients}
        self._loop = _network_loop()
        self._server: aio.Server | None = None
        self._changed = threading.Condition()
        self._end: End | None = None

    # Starting and stopping

    def start(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        """Listen on HOST:PORT, and return the port; raise InputError if that is not possible."""
        return asyncio.run_coroutine_threadsafe(self._listen(address, credentials), self._loop).result()

    async def _listen(self, address: str, credentials: grpc.ServerCredentials | None) -> int:
        self._server = aio.server(options=OPTIONS)
        handler = grpc.stream_stream_rpc_method_handler(self._attend)
        service, _, method = METHOD[1:].partition("/")
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
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

    def stop(self, end: End | None = None, grace: float = 5.0) -> None:
        """Tell all clients the `end`, wait until they have hung up, and close all connections."""
        asyncio.run_coroutine_threadsafe(self._stop(end, grace), self._loop).result()

    async def _stop(self, end: End | None, grace: float) -> None:
        self._end = end
        for seat in self._seats.values():
            if seat.session is not None:
                seat.session.is_over.set()
        if self._server is not None:
            await self._server.stop(grace)

    # Who is there

    def connected(self) -> dict[str, Hello]:
        """Return the first message of each client that is connected."""
        seats = ((name, seat) for name, seat in self._seats.items() if seat.session is not None)
        return {name: seat.hello for name, seat in seats if seat.hello is not None}

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

    def disconnect(self, name: str, reason: str) -> None:
        """Close the connection of a client; it may come back."""
        asyncio.run_coroutine_threadsafe(self._disconnect(name, reason), self._loop).result()

    async def _disconnect(self, name: str, reason: str) -> None:
        seat = self._seats[name]
        if seat.session is not None:
            self._on_event(Event("left", name, reason))
            seat.session.is_over.set()

    # Exchanging messages

    def exchange(self, requests: Sequence[Request], timeout: float | None = None) -> list[Answer]:
        """Ask clients, and wait for the answers of all, for at most that many seconds.

        A client that is not connected is asked when it comes back. A request that was sent already, with the same
        number, is not sent again unless its connection broke.
        """
        remote = [request for request in requests if request.client not in self.local]
        for request in remote:
            if request.client not in self._seats:
                names = ", ".join((*self.clients, *self.local))
                raise InputError(f"unknown client {request.client!r}; the clients are {names}")
        contents, inbox = [(request, to_bytes(request)) for request in remote], _Inbox(len(remote))
        self._loop.call_soon_threadsafe(self._post, contents, inbox)
        answers = [self.local[each.client].answer(each) for each in requests if each.client in self.local]
        end = math.inf if timeout is None else time.monotonic() + timeout
        while not inbox.wait(min(_STEP, end - time.monotonic())) and time.monotonic() < end:
            continue
        return [*answers, *inbox.answers]

    def _post(self, contents: Sequence[tuple[Request, bytes]], inbox: _Inbox) -> None:
        for request, content in contents:
            seat = self._seats[request.client]
            seat.waiting = inbox
            # Sequence numbers alone do not tell: alignment and training have their own.
            is_repeated = seat.content == content
            if is_repeated and seat.answer is not None:
                inbox.put(seat.answer)
            elif not is_repeated:
                seat.request, seat.content, seat.answer = request, content, None
                if seat.session is not None:
                    self._send(seat.session, seat)

    def _send(self, session: _Session, seat: _Seat) -> None:
        if seat.request is not None:
            session.owed[seat.request.sequence] = self.limit(seat.request)
            session.outbox.put_nowait((seat.request, seat.content))
            session.is_owed.set()

    # A connection

    async def _attend(self, incoming: AsyncIterator[bytes], context: Any) -> None:
        """Serve a connection, from its first message to its end."""
        name = ""
        try:
            name = self._identify(context)
            hello = await self._greet(name, incoming, context)
            if hello.purpose != "check":
                await self._serve(name, hello, incoming, context)
        except Refused as refused:
            self._on_event(Event("refused", name or str(context.peer()), str(refused)))
            await context.abort(refused.code, str(refused))

    def _identify(self, context: Any) -> str:
        """Return who is calling, by the certificate; an empty name without TLS."""
        certificates = context.auth_context().get("x509_pem_cert", [])
        try:
            return self._admit(certificates[0] if certificates else None) or ""
        except InputError as error:
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, str(error)) from None

    async def _greet(self, name: str, incoming: AsyncIterator[bytes], context: Any) -> Hello:
        """Return the first message; raise Refused unless the client may take part."""
        try:
            content = await asyncio.wait_for(_read(incoming, Assembly(HELLO_BYTES)), _PATIENCE)
        except TimeoutError:
            raise Refused(grpc.StatusCode.DEADLINE_EXCEEDED, f"no message in {_PATIENCE:g} seconds") from None
        except InputError as error:
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error)) from None
        hello = None
        with contextlib.suppress(InputError):
            hello = answer_from_bytes(content or b"", name)
        if not isinstance(hello, Hello):
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be Hello")
        stated = shortened(hello.name, 80)
        if hello.protocol != PROTOCOL:
            raise Refused(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"protocol version {hello.protocol} of verfedsv {shortened(hello.version, 40)} is not that of this "
                f"server, {PROTOCOL} of verfedsv {__version__}: install the same version",
            )
        if name and hello.name != name:
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"{name!r} by its certificate says that it is {stated!r}")
        if hello.name not in self._seats:
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, f"{stated!r} is not a client of this consortium")
        hello.client = hello.name
        if hello.purpose != "check":
            self._check_free(hello, stated)
        welcome = Welcome(hello.name, 0, 0, PROTOCOL, __version__, hello.name, time.time(), self.about)
        for frame in frames(to_bytes(welcome)):
            await context.write(frame)
        return hello

    def _check_free(self, hello: Hello, stated: str) -> None:
        """Raise Refused if another process of the client is connected, or it cannot take part."""
        live = self._seats[hello.name].session
        if live is not None and live.token != hello.session:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"{stated!r} is connected already")
        try:
            self.accept(hello)
        except InputError as error:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None

    async def _serve(self, name: str, hello: Hello, incoming: AsyncIterator[bytes], context: Any) -> None:
        """Carry messages until the client hangs up, another connection of it takes over, or all is over."""
        name, seat, session = hello.name, self._seats[hello.name], _Session(hello.session)
        if seat.session is not None:
            seat.session.is_over.set()
        seat.session, seat.hello = session, hello
        if seat.answer is None:
            self._send(session, seat)
        self._on_event(Event("joined", name, f"from {context.peer()}"))
        self._notify()
        tasks = [
            asyncio.ensure_future(self._write(session, context)),
            asyncio.ensure_future(self._listen_to(name, seat, session, incoming)),
            asyncio.ensure_future(session.is_over.wait()),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                if (error := task.exception()) is not None:
                    if isinstance(error, InputError):
                        raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error))
                    raise error
            if self._end is not None:
                for frame in frames(to_bytes(self._end)):
                    await context.write(frame)
        finally:
            for task in tasks:
                task.cancel()
            if seat.session is session:
                seat.session = None
                self._on_event(Event("left", name, "its connection ended"))
                self._notify()

    @staticmethod
    async def _write(session: _Session, context: Any) -> None:
        while True:
            _, content = await session.outbox.get()
            for frame in frames(content):
                await context.write(frame)

    async def _listen_to(self, name: str, seat: _Seat, session: _Session, incoming: AsyncIterator[bytes]) -> None:
        """Take the answers that are owed; raise InputError for anything else."""
        while True:
            while not session.owed:
                session.is_owed.clear()
                await session.is_owed.wait()
            content = await _read(incoming, Assembly(max(session.owed.values())))
            if content is None:
                return
            answer: Any = answer_from_bytes(content, name)
            if answer.sequence not in session.owed or isinstance(answer, Hello):
                raise InputError(f"an answer to message {answer.sequence}, which nobody asked")
            del session.owed[answer.sequence]
            if seat.request is None or answer.sequence != seat.request.sequence:
                self._on_event(Event("ignored", name, f"its answer to message {answer.sequence} came too late"))
                continue
            seat.answer = answer
            if seat.waiting is not None:
                seat.waiting.put(answer)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


@cache
def _network_loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of this process, which runs in a thread of its own: gRPC supports only one."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="network", daemon=True).start()
    return loop


async def _read(incoming: AsyncIterator[bytes], assembly: Assembly) -> bytes | None:
    """Return the next message, None if the client hung up; raise InputError if it cannot be read."""
    async for frame in incoming:
        if (whole := assembly.add(frame)) is not None:
            return whole
    return None


def largest_answer(request: Message, widths: Mapping[str, int], n_samples: int) -> int:
    """Return how many bytes an answer may have: embeddings in double precision, and room for the rest."""
    samples = getattr(request, "samples", ())
    n_rows = n_samples if samples is None else len(samples)
    return (1 << 16) + 8 * n_rows * widths.get(request.client, 1)
