"""The page's server, on the standard library: one page for a few people needs no more.

A browser polls the state every second, and gets it if it has changed (ETag): some 200 bytes a second otherwise, and no
connection to keep open or restore.
"""

from __future__ import annotations

import hashlib
import ipaddress
import socket
import threading
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

from verfedsv.errors import InputError
from verfedsv.watch.follower import Ended, Follower
from verfedsv.watch.state import State, with_values

_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
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
_POLL = 0.2
"""Seconds within which the server notices that it was stopped."""


class Document(NamedTuple):
    """The answer to a path; `tag` identifies its content."""

    kind: str
    content: bytes

    @property
    def tag(self) -> str:
        return f'"{hashlib.sha256(self.content).hexdigest()[:16]}"'


class Watch:
    """A page that follows the run in `folder`, at `address`; port 0 is any free one.

    `run` serves until `stop` is called, or an exception such as KeyboardInterrupt. One thread reads the folder for all
    browsers.
    """

    def __init__(
        self, folder: Path, host: str = "127.0.0.1", port: int = 0, every: float = 2.0, *, trust_head: bool = False
    ) -> None:
        check_place(folder)
        listening = _bind(host, port)
        name, number = listening.getsockname()[:2]
        listened = ipaddress.ip_address(name.split("%")[0])
        self.address = f"http://{_in_address(_own_address(listened) if listened.is_unspecified else name)}:{number}/"
        self.is_local = listened.is_loopback
        self.documents = {
            "/": _static("html", "text/html"),
            "/watch.js": _static("js", "text/javascript"),
            "/watch.css": _static("css", "text/css"),
            "/favicon.ico": Document("image/x-icon", b""),
        }
        self._name = folder.resolve().name
        self._publish(with_values(State(self._name, "waiting", f"Looking into {folder}.")))
        self._every = every
        self._stopped = threading.Event()
        self._follower = Follower(folder, self._publish, self._stopped.is_set, every, trust_head=trust_head)
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)
        self._server = _Server(listening, self.documents, Hosts.of(host, name))

    def run(self) -> None:
        """Serve until stopped; wait up to a second for the reading thread to end."""
        self._thread.start()
        try:
            while not self._stopped.is_set():
                self._server.handle_request()
        finally:
            self.stop()
            self._server.server_close()
        self._thread.join(timeout=1.0)

    def stop(self) -> None:
        """Stop serving and following; any thread may call this."""
        self._stopped.set()

    def _publish(self, state: State) -> None:
        self.documents["/state.json"] = Document("application/json", state.to_json().encode())

    def _follow(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follower.poll()
            except Ended:
                return
            except Exception as error:  # the page reports it rather than stand still
                problem = f"cannot follow the run: {type(error).__name__}: {error}"
                self._publish(with_values(State(self._name, "waiting", "Something is wrong.", (problem,))))
            self._stopped.wait(self._every)


class _Server(ThreadingHTTPServer):
    """Serves documents, which may be replaced meanwhile, to requests with a known host name."""

    timeout = _POLL
    block_on_close = False

    def __init__(self, listening: socket.socket, documents: dict[str, Document], hosts: Hosts) -> None:
        super().__init__(("", 0), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket, self.documents, self.hosts = listening, documents, hosts

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore browsers that disconnect before they have their answer."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 60
    server: _Server

    def do_GET(self) -> None:  # its name in http.server
        """Answer a request, if its host is one of the server's names.

        Otherwise a page elsewhere could make its own name point here and read the state (DNS rebinding). Addresses
        cannot be redirected so.
        """
        if not self.server.hosts.allow(self.headers.get("Host", "")):
            self._answer(HTTPStatus.BAD_REQUEST, Document("text/plain", b"unknown host name"))
            return
        found = self.server.documents.get(self.path.partition("?")[0])
        if found is None:
            self._answer(HTTPStatus.NOT_FOUND, Document("text/plain", b"there is no such page"))
        elif self.headers.get("If-None-Match") == found.tag:
            self._answer(HTTPStatus.NOT_MODIFIED, Document(found.kind, b""), found.tag)
        else:
            self._answer(HTTPStatus.OK, found, found.tag)

    def log_message(self, *_: Any) -> None:
        """Log nothing: the terminal is for the address of the page."""

    def _answer(self, status: HTTPStatus, document: Document, tag: str | None = None) -> None:
        self.send_response_only(status)
        for name, content in _HEADERS.items():
            self.send_header(name, content)
        self.send_header("Content-Type", f"{document.kind}; charset=utf-8")
        if status != HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(document.content)))
        if tag is not None:
            self.send_header("ETag", tag)
        self.end_headers()
        self.wfile.write(document.content)


def _static(suffix: str, kind: str) -> Document:
    content = (files("verfedsv.watch") / "page" / f"watch.{suffix}").read_bytes()
    if suffix == "css":
        content = (files("verfedsv.report") / "templates" / "report.css").read_bytes() + content
    return Document(kind, content)


def check_place(folder: Path) -> None:
    """Raise InputError if a folder neither holds a run nor could hold one later."""
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; name the folder of a run")
    if not folder.exists() and not folder.absolute().parent.is_dir():
        raise InputError(f"there is no folder {folder.absolute().parent} in which a run {folder.name} could begin")


@dataclass(frozen=True)
class Hosts:
    """The host names that a server answers to, and whether it answers to any address, as it listens on all."""

    names: frozenset[str]
    any_address: bool

    @classmethod
    def of(cls, host: str, address: str) -> Hosts:
        """Return the names of a server that was told to listen on a host, and does on an address."""
        names = {*_LOOPBACK, _in_address(host), _in_address(address)}
        listens_everywhere = ipaddress.ip_address(address.split("%")[0]).is_unspecified
        if listens_everywhere:
            names.add(socket.gethostname())
        return cls(frozenset(name.lower() for name in names), listens_everywhere)

    def allow(self, header: str) -> bool:
        """Return whether a request with this Host header is answered.

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
    """Return an address of the same version at which others reach this machine, or else the loopback address."""
    family, outside, loopback = (
        (socket.AF_INET, "192.0.2.1", "127.0.0.1") if listened.version == 4 else (socket.AF_INET6, "2001:db8::1", "::1")
    )
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((outside, 9))  # sends nothing, but finds the route
            return str(probe.getsockname()[0])
    except OSError:
        return loopback


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _bind(host: str, port: int) -> socket.socket:
    """Return a listening socket; raise InputError if that fails."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host}, port {port}: {error.strerror}; choose another --host or --port"
        ) from None
    except (OverflowError, UnicodeError):
        raise InputError(f"cannot listen on {host!r}, port {port}: that is not an address") from None
