"""A server with mutual TLS, and clients that send it whatever they are told to."""

import threading
import time
from queue import SimpleQueue

import grpc

from tests.network.parties import approved, authority_of, key_pem, make, revoked_list
from tests.network.wiring import hello_of
from verfedsv.files import write_whole
from verfedsv.network import consortium_pb2 as pb
from verfedsv.network.admission import Allowed, Checker
from verfedsv.network.credentials import read_credentials
from verfedsv.network.handshakes import Handshakes
from verfedsv.network.hub import Hub, largest_answer
from verfedsv.network.link import Link
from verfedsv.network.messages import End
from verfedsv.network.wire import CLIENT_OPTIONS, METHOD, Assembly, frames, request_from_bytes, to_bytes


class Caller:
    """A stream to a server, for raw frames. Without credentials, it is without TLS."""

    def __init__(self, port, credentials=None, method=METHOD):
        options = [*CLIENT_OPTIONS, ("grpc.max_send_message_length", -1)]
        address = f"127.0.0.1:{port}"
        self.channel = (
            grpc.secure_channel(address, credentials, options)
            if credentials
            else grpc.insecure_channel(address, options)
        )
        self._method, self._outbox = method, SimpleQueue()
        self.dial()

    def dial(self):
        """Begin a stream; one before it is over."""
        self._outbox.put(None)
        self._outbox, self._assembly = SimpleQueue(), Assembly(1 << 30)
        self.call = self.channel.stream_stream(self._method)(iter(self._outbox.get, None), timeout=10)

    def send(self, *messages):
        """Send messages; bytes are sent as a gRPC message of their own."""
        for message in messages:
            for frame in [message] if isinstance(message, bytes) else frames(to_bytes(message)):
                self._outbox.put(frame)

    def receive(self):
        """Return the next message of the server."""
        for frame in self.call:
            if (content := self._assembly.add(frame)) is not None:
                return request_from_bytes(content, "")
        return None

    def end(self):
        """Wait until the server ends the call; return how: the name of a status, and what it says."""
        try:
            while self.receive() is not None:
                pass
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", ""

    def close(self):
        self._outbox.put(None)
        self.channel.close()


def framed(content, *, more=False):
    """Return bytes as one frame."""
    return pb.Frame(part=content, more=more).SerializeToString()


class Guarded:
    """A hub with mutual TLS, the authority of its clients, and its log."""

    def __init__(self, folder, clients=("telco", "shop"), *, late=0.3, **options):
        self.folder, self.events, self._callers = folder, [], []
        folder.mkdir(parents=True, exist_ok=True)
        self.authority, self.signer = authority_of(folder / "ca")
        self.root = self.authority.certificate.to_pem()
        paths = approved(self.authority, folder, "server", ["localhost", "127.0.0.1"])
        own = read_credentials(*paths, folder / "ca" / "ca.crt", "server")
        self.checker = Checker(own.authorities, Allowed.of(list(clients)), folder / "ca" / "revoked.crl")
        self.hub = Hub(
            clients,
            lambda peer: self.checker.check(peer or b""),
            limit=lambda request: largest_answer(request, {}, 100),
            on_event=self.events.append,
            **options,
        )
        self.handshakes = Handshakes(own.private_key, own.chain, own.authorities, late=late)
        self.port = self.hub.start("127.0.0.1:0", self.handshakes)

    def credentials(self, name="telco", **options):
        """Return what gRPC needs of a client with a new certificate of the authority."""
        return self.credentials_of(make(name, issuer=self.signer, **options))

    def credentials_of(self, party):
        """Return what gRPC needs of a `Party`; None is one without a certificate."""
        key, chain = (key_pem(party.key), party.pem) if party else (None, None)
        return grpc.ssl_channel_credentials(self.root, key, chain)

    def call(self, credentials=None, **options):
        """Return a stream with some credentials, by default those of telco."""
        self._callers.append(Caller(self.port, credentials or self.credentials(), **options))
        return self._callers[-1]

    def join(self, name="telco", **fields):
        """Return a stream of a client that was welcomed."""
        caller = self.call(self.credentials(name))
        caller.send(hello_of(name, **fields))
        assert type(caller.receive()).__name__ == "Welcome"
        return caller

    def attend(self, name, answer, **fields):
        """Return the thread of a client that answers until the end."""
        link = Link(
            f"127.0.0.1:{self.port}", self.credentials(name), lambda: hello_of(name, **fields), answer, patience=30
        )
        thread = threading.Thread(target=link.run, daemon=True)
        thread.start()
        return thread

    def revoke(self, party):
        """Revoke the certificate of a `Party`."""
        self._n_lists = getattr(self, "_n_lists", 1000) + 1
        content = revoked_list(self.signer, [party.certificate.serial_number], number=self._n_lists)
        write_whole(self.folder / "ca" / "revoked.crl", content)

    def texts(self, kind="refused"):
        """Return what was logged."""
        return [event.text for event in self.events if event.kind == kind]

    def logged(self, text, kind="refused", timeout=10):
        """Wait until a text is logged; return by whom it says it was."""
        end = time.monotonic() + timeout
        while time.monotonic() < end:
            for event in [*self.events]:
                if event.kind == kind and text in event.text:
                    return event.client
            time.sleep(0.01)
        raise AssertionError(f"{text!r} was not logged: {self.events}")

    def close(self):
        for caller in self._callers:
            caller.close()
        self.hub.stop(End("", 0, 0, "over", is_finished=True), grace=1)
