"""The page's server: Starlette on uvicorn, states as server-sent events.

Events go one way and the browser reconnects by itself: a WebSocket would add a protocol, and asking every second would
move the same bytes when nothing has changed.
"""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from verfedsv.errors import InputError
from verfedsv.watch.feed import Feed
from verfedsv.watch.follower import Ended, Follower
from verfedsv.watch.state import Progress, State, build_state

RETRY_MS = 2000
"""After how long a browser that lost the connection tries again."""

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_JSON = "application/json; charset=utf-8"
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


class Watch:
    """A page that follows the run in `folder`, at `address`; port 0 is any free one.

    `run` serves until Ctrl-C or `stop`. One thread reads the folder for all who look at the page.
    """

    def __init__(self, folder: Path, host: str = "127.0.0.1", port: int = 0, every: float = 2.0) -> None:
        check_place(folder)
        self._socket = _bind(host, port)
        name, number = self._socket.getsockname()[:2]
        listened = ipaddress.ip_address(name.split("%")[0])
        self.address = f"http://{_in_address(_own_address(listened) if listened.is_unspecified else name)}:{number}/"
        self.is_local = listened.is_loopback
        self.feed = Feed(_begin(folder).to_json())
        self._every = every
        self._stopped = threading.Event()
        self._follower = Follower(folder, self._publish, self._stopped.is_set, every)
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)
        config = uvicorn.Config(
            make_app(self.feed, Hosts.of(host, name)),
            log_config=None,
            log_level="critical",
            access_log=False,
            lifespan="off",
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        self._server = _Server(config, self.stop)

    def run(self) -> bool:
        """Serve until stopped; return whether the thread that reads has ended too, which a long step can delay."""
        self._thread.start()
        try:
            self._server.run(sockets=[self._socket])
        finally:
            self.stop()
            self._socket.close()
        self._thread.join(timeout=1.0)
        return not self._thread.is_alive()

    def stop(self) -> None:
        """End serving and following, from any thread."""
        self._stopped.set()
        self._server.should_exit = True
        self.feed.close()

    def _publish(self, state: State) -> None:
        self.feed.publish(state.to_json())

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follower.look()
            except Ended:
                return
            except Exception as error:  # the page says so, rather than stand still
                self._publish(_failed(self._follower.folder, error))
            self._stopped.wait(self._every)


class _Server(uvicorn.Server):
    """One that tells open connections of its end, and ends with code 0 where uvicorn would raise the signal again."""

    def __init__(self, config: uvicorn.Config, stop: Callable[[], None]) -> None:
        super().__init__(config)
        self._stop = stop

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:  # noqa: ARG002
        self.force_exit = self.should_exit
        self._stop()


def make_app(feed: Feed, hosts: Hosts) -> Starlette:
    """Return the application: the page, its state, and the state as events."""

    async def state(_request: Request) -> Response:
        return Response(feed.newest, media_type=_JSON)

    async def events(_request: Request) -> Response:
        return StreamingResponse(_as_events(feed), media_type="text/event-stream")

    async def nothing(_request: Request) -> Response:
        return Response(status_code=204)

    return Starlette(
        routes=[
            Route("/", _static("watch.html", "text/html")),
            Route("/watch.js", _static("watch.js", "text/javascript")),
            Route("/watch.css", _static("watch.css", "text/css")),
            Route("/state.json", state),
            Route("/events", events),
            Route("/favicon.ico", nothing),
        ],
        middleware=[
            Middleware(_Headers),
            Middleware(_KnownHosts, hosts=hosts),
        ],
    )


async def _as_events(feed: Feed) -> AsyncIterator[str]:
    yield f"retry: {RETRY_MS}\n\n"
    async for item in feed.listen():
        # A comment now and then: a connection that is gone is noticed when something is sent.
        yield ": nothing new\n\n" if item is None else f"id: {item[0]}\ndata: {item[1]}\n\n"


def _static(name: str, kind: str) -> Callable[[Request], Awaitable[Response]]:
    content = (files("verfedsv.watch") / "page" / name).read_text(encoding="utf-8")
    if kind == "text/css":
        content = (files("verfedsv.report") / "templates" / "report.css").read_text(encoding="utf-8") + content

    async def get(_request: Request) -> Response:
        return Response(content, media_type=f"{kind}; charset=utf-8")

    return get


class _Headers:
    """Adds headers to all responses, refusals included."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, receive, send_more)


class _KnownHosts:
    """Refuses requests by other names: a page elsewhere whose name is made to point here could read the state.

    That is DNS rebinding, for which a name is needed; an address is only ever itself.
    """

    def __init__(self, app: ASGIApp, hosts: Hosts) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not self._hosts.allow(Headers(scope=scope).get("host", "")):
            await PlainTextResponse("this page is not known by that name", status_code=400)(scope, receive, send)
            return
        await self._app(scope, receive, send)


def check_place(folder: Path) -> None:
    """Raise InputError if a run can be neither in a folder nor come to be there."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name the folder of a run")
    if not folder.exists() and not folder.absolute().parent.is_dir():
        raise InputError(f"there is no folder {folder.absolute().parent} in which a run {folder.name} could begin")


@dataclass(frozen=True)
class Hosts:
    """By which names a server may be called, and whether by any address, as one that listens at all of them."""

    names: frozenset[str]
    any_address: bool

    @classmethod
    def of(cls, host: str, address: str) -> Hosts:
        """Return the names of a server that was told to listen at a host, and does at an address."""
        names = {*_LOOPBACK, _in_address(host), _in_address(address)}
        listens_everywhere = ipaddress.ip_address(address.split("%")[0]).is_unspecified
        if listens_everywhere:
            names.add(socket.gethostname())
        return cls(frozenset(name.lower() for name in names), listens_everywhere)

    def allow(self, header: str) -> bool:
        """Return whether a request may call the server so.

        >>> here = Hosts.of("localhost", "127.0.0.1")
        >>> [here.allow(header) for header in ("localhost:8000", "[::1]", "192.0.2.2", "evil.example")]
        [True, True, False, False]
        >>> everywhere = Hosts.of("0.0.0.0", "0.0.0.0")
        >>> [everywhere.allow(header) for header in ("192.0.2.2:8000", "[2001:db8::1]", "evil.example", "1.2.3.4.evil")]
        [True, True, False, False]
        """
        name = header.lower()
        name = f"{name.partition(']')[0]}]" if name.startswith("[") else name.partition(":")[0]
        return name in self.names or (self.any_address and _is_address(name))


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.removeprefix("[").removesuffix("]"))
    except ValueError:
        return False
    return True


def _own_address(listened: ipaddress.IPv4Address | ipaddress.IPv6Address) -> str:
    """Return an address at which others reach this machine, if it has one, of the same version."""
    family, outside, loopback = (
        (socket.AF_INET, "192.0.2.1", "127.0.0.1") if listened.version == 4 else (socket.AF_INET6, "2001:db8::1", "::1")
    )
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 9))  # which sends nothing, but finds the way there
            return str(probe.getsockname()[0])
    except OSError:
        return loopback


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bind(host: str, port: int) -> socket.socket:
    """Return a socket that listens; raise InputError if there can be none."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(place[:2], family=family)
    except OSError as error:
        raise InputError(
            f"cannot listen at {host}, port {port}: {error.strerror}; choose another --host or --port"
        ) from None
    except (OverflowError, UnicodeError):
        raise InputError(f"cannot listen at {host!r}, port {port}: that is no address") from None


def _begin(folder: Path) -> State:
    return build_state(Progress(folder.resolve().name, "waiting", f"Looking into {folder}."), None, {})


def _failed(folder: Path, error: Exception) -> State:
    problem = f"cannot follow the run: {type(error).__name__}: {error}"
    return build_state(Progress(folder.resolve().name, "waiting", "Something is wrong.", (problem,)), None, {})
