import threading

import grpc
import pytest

from tests.network.wiring import hello_of
from verfedsv.errors import InputError, RefusedError, UnreachableError
from verfedsv.network.consortium import make_keys
from verfedsv.network.hub import Hub
from verfedsv.network.joining import Joining
from verfedsv.network.link import Link
from verfedsv.network.wire import METHOD, frames, to_bytes


@pytest.fixture
def keys(tmp_path):
    """Certificates of a server on 127.0.0.1 and of telco, and those of another consortium."""
    make_keys(tmp_path / "ours", ("telco",))
    make_keys(tmp_path / "others", ("telco",))
    return tmp_path


@pytest.fixture
def port(keys):
    """The port of a server."""
    hub, own = Hub(["telco"], lambda _: "telco"), keys / "ours"
    pair = (own / "server.key").read_bytes(), (own / "server.crt").read_bytes()
    secured = grpc.ssl_server_credentials([pair], (own / "ca.crt").read_bytes(), require_client_auth=True)
    yield hub.start("0.0.0.0:0", secured)
    hub.stop(grace=0)


def dial(address, keys, authority="ours", party="ours"):
    paths = keys / authority / "ca.crt", keys / party / "telco.key", keys / party / "telco.crt"
    credentials = grpc.ssl_channel_credentials(*(path.read_bytes() for path in paths))
    Link(address, credentials, lambda: hello_of("telco"), lambda message: message, patience=0).run()


def test_certificates_that_do_not_fit(keys, port):
    """Another authority or another host ends it at once; that the server hung up is said, and tried again."""
    with pytest.raises(RefusedError, match="not signed by the authority given"):
        dial(f"127.0.0.1:{port}", keys, "others", "others")
    with pytest.raises(RefusedError, match="is for another host name than the one dialled"):
        dial(f"127.0.0.2:{port}", keys)
    with pytest.raises(UnreachableError, match="it does not accept your certificate"):
        dial(f"127.0.0.1:{port}", keys, "ours", "others")


def test_nobody_is_there(keys):
    """A closed port and a host that does not exist."""
    with pytest.raises(UnreachableError, match="nothing answers there"):
        dial("127.0.0.1:1", keys)
    with pytest.raises(UnreachableError, match="no host of this name is known here"):
        dial("no-such-host.invalid:8443", keys)


@pytest.mark.parametrize(
    "address",
    ["bank.example", "bank.example:", ":8443", "bank.example:http", "bank.example:99999", "bank.example:0"],
)
def test_addresses_that_are_none(address, tmp_path):
    """A port above 65535 would be another one."""
    with pytest.raises(InputError, match=r"HOST:PORT, such as .*; ports are from 1 to 65535"):
        Joining(address, tmp_path, "id")
    with pytest.raises(InputError, match="without a scheme such as https://"):
        Joining(f"http://{address}", tmp_path, "id")


def test_a_second_connection_of_a_client_is_explained():
    """In the words of the server, which contain the word "connected"."""
    hub = Hub(["telco"], lambda _: "telco")
    port = hub.start("127.0.0.1:0", None)
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:

        def say_hello():
            yield from frames(to_bytes(hello_of("telco")))
            is_done.wait(60)

        is_done = threading.Event()
        call = channel.stream_stream(METHOD, None, None)(say_hello())
        next(call)
        second = Link(
            f"127.0.0.1:{port}",
            None,
            lambda: hello_of("telco", session="another"),
            lambda message: message,
            patience=0,
        )
        with pytest.raises(UnreachableError, match="'telco' is connected already"):
            second.run()
        is_done.set()
        call.cancel()
    hub.stop(grace=0)


class Lost(grpc.RpcError):
    """What gRPC says if the server dies, and if it does not accept a certificate."""

    def code(self):
        return grpc.StatusCode.UNAVAILABLE

    def details(self):
        return "Socket closed"


@pytest.mark.parametrize(("is_welcome", "says"), [(True, "the connection was lost"), (False, "it hung up at once")])
def test_a_lost_connection_is_not_a_refused_one(is_welcome, says):
    """Before the server's first message, the certificate may be the reason; after it, that cannot be."""
    events = []
    link = Link("127.0.0.1:1", None, lambda: hello_of("telco"), print, patience=0, on_event=events.append)

    async def attend():
        link._is_welcome = is_welcome
        raise Lost

    link._attend = attend
    with pytest.raises(UnreachableError, match=says):
        link.run()
    assert events[0].startswith(says)
