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
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import grpc
from grpc import aio

from verfedsv._version import __version__
from verfedsv.errors import InputError, MissingClientError, RefusedError
from verfedsv.federation import Client
from verfedsv.federation.messages import Answer, Embed, Gradients, Message, Refusal, Request, Restore, Save
from verfedsv.network.events import Event, Sparing
from verfedsv.network.handshakes import Handshakes
from verfedsv.network.messages import PROTOCOL, Begin, End, Hello, Welcome
from verfedsv.network.wire import LARGEST_FRAME, METHOD, SERVER_OPTIONS, Assembly, answer_from_bytes, frames, to_bytes
from verfedsv.texts import count, shortened

HELLO_BYTES = 1 << 14
"""Limit of the first message of a client."""

_PATIENCE = 30.0
"""Seconds that a client has for its first message."""

_RECHECK = 5.0
"""Seconds after which the certificates of all that are connected are checked again."""

_MOST_GREETING = 8
"""Connections of a client that may be without a first message."""

_MOST_OWED = 4
"""Messages that a client may leave unanswered; then it is hung up on, and begins again with the last."""

_CONNECTIONS_EACH, _OTHER_CONNECTIONS = 8, 128
"""Connections that are accepted for each client, and beside these: files of the run need descriptors too."""

_ROOM = 1 << 18
"""Bytes that an answer may have besides embeddings, such as a part of an alignment: 4096 points."""

_LAST_WORDS = 5.0
"""Seconds that a client has to take what is being written when its connection is to end."""

_JOURNALED = Embed | Gradients | Save | Restore

_STEP = 0.2
"""Seconds that a thread waits at a time, so that Ctrl-C reaches it."""


class Refused(Exception):  # noqa: N818  # not an error of the server's
    """A connection is refused, with the code that gRPC has for it.

    The reason is for the log; `told` is what the caller is told, the reason if it is None.
    """

    def __init__(self, code: grpc.StatusCode, reason: str, told: str | None = None) -> None:
        super().__init__(reason)
        self.code, self.told = code, reason if told is None else told


@dataclass(eq=False)
class _Session:
    """A live connection of a client."""

    token: str
    certificate: bytes | None
    outbox: asyncio.Queue[bytes | None] = field(default_factory=asyncio.Queue)  # None: hang up
    owed: dict[int, int] = field(default_factory=dict)  # largest size of each answer, by its sequence number
    is_owed: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    why: str = "its connection ended"
    refused: Refused | None = None
    last_message: End | None = None

    def end(self, why: str) -> None:
        """Hang up."""
        self.why = why
        self.is_over.set()


class _Inbox:
    """The answers to one exchange, by client: one that answers twice does not stand for another.

    Who waits for them is woken once, by the last. Woken by each, it would take the interpreter's lock from the event
    loop four times for four clients: 3.05 instead of 2.78 ms for an iteration of theirs.
    """

    def __init__(self, n_expected: int) -> None:
        self._answers: dict[str, Answer] = {}
        self._n_expected, self._is_full = n_expected, threading.Event()

    @property
    def answers(self) -> list[Answer]:
        return [*self._answers.values()]

    def put(self, answer: Answer) -> None:
        self._answers.setdefault(answer.client, answer)
        if len(self._answers) >= self._n_expected:
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
    reached: int = 0  # the number of the last answered message that the client had to journal
    is_written_off: bool = False


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
        self._admit, self._on_event = admit, Sparing(on_event, (*self.clients, *self.local))
        self._greeting: Counter[str] = Counter()
        self._handshakes: Handshakes | None = None
        self._seats = {name: _Seat() for name in self.clients}
        self._loop = _network_loop()
        self._server: aio.Server | None = None
        self._changed = threading.Condition()
        self._end: End | None = None
        self.should_stop: Callable[[], bool] = lambda: False
        """Told to stop, nobody waits long for a client that is not there."""

    # Starting and stopping

    def start(self, address: str, credentials: Handshakes | grpc.ServerCredentials | None) -> int:
        """Listen on HOST:PORT, and return the port; raise InputError if that is not possible."""
        return asyncio.run_coroutine_threadsafe(self._listen(address, credentials), self._loop).result()

    async def _listen(self, address: str, credentials: Handshakes | grpc.ServerCredentials | None) -> int:
        most = _CONNECTIONS_EACH * len(self.clients) + _OTHER_CONNECTIONS
        self._server = aio.server(options=(*SERVER_OPTIONS, ("grpc.max_allowed_incoming_connections", most)))
        self._server.add_generic_rpc_handlers((_OneMethod(self._attend, self._on_event),))
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

    def stop(self, end: End | None = None, grace: float = 5.0) -> None:
        """Tell all clients the `end`, wait until they have hung up, and close all connections."""
        asyncio.run_coroutine_threadsafe(self._stop(end, grace), self._loop).result()

    async def _stop(self, end: End | None, grace: float) -> None:
        self._end = end
        for seat in self._seats.values():
            if seat.session is not None:
                seat.session.is_over.set()
        if self._handshakes is not None:
            self._watcher.cancel()
        if self._server is not None:
            await self._server.stop(grace)

    async def _tell_of_strangers(self, handshakes: Handshakes) -> None:
        """Tell from time to time how many connections did not get through TLS; who they were, gRPC does not say."""
        while True:
            await asyncio.sleep(_RECHECK)
            if n_ended := handshakes.ended():
                what = "without a certificate of this consortium, or said nothing; stderr has gRPC's reasons"
                self._on_event(Event("refused", "", f"{count(n_ended, 'connection')} ended {what}"))

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

    def disconnect(self, name: str, reason: str, end: End | None = None) -> None:
        """Close the connection of a client, after an `end` if there is one; it may come back."""
        asyncio.run_coroutine_threadsafe(self._disconnect(name, reason, end), self._loop).result()

    async def _disconnect(self, name: str, reason: str, end: End | None) -> None:
        seat = self._seats[name]
        if seat.session is not None:
            seat.session.last_message = end
            seat.session.end(reason)

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
        contents, inbox = [(request, to_bytes(request)) for request in remote], _Inbox(len(remote))
        self._loop.call_soon_threadsafe(self._post, contents, inbox)
        answers = [self.local[each.client].answer(each) for each in requests if each.client in self.local]
        self._wait(inbox, {request.client for request in remote}, timeout)
        return [*answers, *inbox.answers]

    def _wait(self, inbox: _Inbox, clients: set[str], timeout: float | None) -> None:
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

    def _post(self, contents: Sequence[tuple[Request, bytes]], inbox: _Inbox) -> None:
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
                if seat.session is not None:
                    self._send(seat.session, seat)

    def _send(self, session: _Session, seat: _Seat) -> None:
        if seat.request is None or not self._check_again(session):
            return
        if len(session.owed) >= _MOST_OWED:
            session.end(f"it left {_MOST_OWED} messages unanswered")
            return
        session.owed[seat.request.sequence] = self.limit(seat.request)
        session.outbox.put_nowait(seat.content)
        session.is_owed.set()

    # A connection

    async def _attend(self, incoming: AsyncIterator[bytes], context: Any) -> None:
        """Serve a connection, from its first message to its end."""
        name = ""
        if self._handshakes is not None:
            self._handshakes.call()
        try:
            certificate = _certificate_of(context)
            name = self._identify(certificate)
            with self._one_more_greeting(name):
                hello = await self._greet(name, incoming)
            if hello.purpose == "check":
                for frame in frames(to_bytes(self._welcome(hello.name))):
                    await context.write(frame)
            else:
                await self._serve(_Session(hello.session, certificate), hello, incoming, context)
        except Refused as refused:
            self._on_event(Event("refused", name or str(context.peer()), str(refused)))
            await context.abort(refused.code, refused.told)

    def _identify(self, certificate: bytes | None) -> str:
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

    def _check_again(self, session: _Session) -> bool:
        """Return whether the certificate of a connection is still accepted; otherwise end the connection."""
        try:
            self._identify(session.certificate)
        except Refused as refused:
            session.refused = refused
            session.end("its certificate is no longer accepted")
            return False
        return True

    @contextlib.contextmanager
    def _one_more_greeting(self, name: str) -> Iterator[None]:
        """Count a connection without a first message; raise Refused if there are too many, of this client if known."""
        most = _MOST_GREETING if name else _MOST_GREETING * len(self.clients)
        if self._greeting[name] >= most:
            raise Refused(grpc.StatusCode.UNAVAILABLE, f"{most} connections have not said anything yet")
        self._greeting[name] += 1
        try:
            yield
        finally:
            self._greeting[name] -= 1

    async def _greet(self, name: str, incoming: AsyncIterator[bytes]) -> Hello:
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
        return hello

    def _welcome(self, name: str) -> Welcome:
        return Welcome(name, 0, 0, PROTOCOL, __version__, name, time.time(), self.about)

    def _check_free(self, hello: Hello, stated: str) -> None:
        """Raise Refused if another process of the client is connected, or it cannot take part."""
        live = self._seats[hello.name].session
        if live is not None and live.token != hello.session:
            raise Refused(grpc.StatusCode.ALREADY_EXISTS, f"{stated!r} is connected already, from another process")
        try:
            self.accept(hello)
        except InputError as error:
            raise Refused(grpc.StatusCode.FAILED_PRECONDITION, str(error)) from None

    async def _serve(self, session: _Session, hello: Hello, incoming: AsyncIterator[bytes], context: Any) -> None:
        """Carry messages until the client hangs up, another connection of it takes over, or all is over."""
        name, seat = hello.name, self._seats[hello.name]
        if seat.session is not None:
            seat.session.end("it connected again")
        seat.session, seat.hello, seat.is_written_off = session, hello, False
        session.outbox.put_nowait(to_bytes(self._welcome(name)))
        if seat.answer is None:
            self._send(session, seat)
        self._on_event(Event("joined", name, f"from {context.peer()}"))
        self._notify()
        writing = asyncio.ensure_future(self._write(session, context))
        tasks = [
            asyncio.ensure_future(self._listen_to(name, seat, session, incoming)),
            asyncio.ensure_future(session.is_over.wait()),
            asyncio.ensure_future(self._keep_checking(session)),
        ]
        try:
            done, _ = await asyncio.wait([writing, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            if seat.session is session:
                seat.session = None
                self._on_event(Event("left", name, session.why))
                self._notify()
            await _finish(session, writing, session.last_message or self._end)
        _raise_first(done - {writing})  # a write fails if the client is gone, which is no error
        if session.refused is not None:
            raise session.refused

    @staticmethod
    async def _write(session: _Session, context: Any) -> None:
        while (content := await session.outbox.get()) is not None:
            for frame in frames(content):
                await context.write(frame)

    async def _keep_checking(self, session: _Session) -> None:
        while self._check_again(session):
            await asyncio.sleep(_RECHECK)

    async def _listen_to(self, name: str, seat: _Seat, session: _Session, incoming: AsyncIterator[bytes]) -> None:
        """Take the answers that are owed; raise InputError for anything else."""
        while True:
            while not session.owed:
                session.is_owed.clear()
                await session.is_owed.wait()
            content = await _read(incoming, Assembly(max(session.owed.values())))
            if content is None:
                session.why = f"its stream ended, or had a frame of more than {2 * LARGEST_FRAME:,} bytes"
                return
            answer: Any = answer_from_bytes(content, name)
            if answer.sequence not in session.owed or isinstance(answer, Hello):
                raise InputError(f"an answer to message {answer.sequence}, which nobody asked")
            del session.owed[answer.sequence]
            is_current = seat.request is not None and answer.sequence == seat.request.sequence
            if not is_current or seat.answer is not None or seat.session is not session:
                self._on_event(Event("ignored", name, f"its answer to message {answer.sequence} came too late"))
                continue
            seat.answer = answer
            if isinstance(seat.request, _JOURNALED) and not isinstance(answer, Refusal):
                seat.reached = answer.sequence
            if seat.waiting is not None:
                seat.waiting.put(answer)

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()


def _raise_first(done: Iterable[asyncio.Task[Any]]) -> None:
    """Raise what ended a connection; Refused if it was a message that cannot be read."""
    for task in done:
        error = task.exception()
        if isinstance(error, InputError):
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if error is not None:
            raise error


async def _finish(session: _Session, writing: asyncio.Task[None], end: End | None) -> None:
    """Write the last message, if there is one, instead of those that wait.

    A write that has begun is not cancelled, unless it takes long: gRPC could not tell the client any more how the call
    ended, and the client would wait for ever.
    """
    while not session.outbox.empty():
        session.outbox.get_nowait()
    if end is not None:
        session.outbox.put_nowait(to_bytes(end))
    session.outbox.put_nowait(None)
    await asyncio.wait([writing], timeout=_LAST_WORDS)
    if not writing.cancel() and not writing.cancelled():
        writing.exception()  # or asyncio would log it


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


def _certificate_of(context: Any) -> bytes | None:
    """Return the certificate of a caller and those that came with it, in PEM; None without TLS."""
    shown = context.auth_context()
    return b"".join([*shown.get("x509_pem_cert", []), *shown.get("x509_pem_cert_chain", [])]) or None


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
