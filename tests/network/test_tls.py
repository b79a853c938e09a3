"""Mutual TLS of a real gRPC server and clients with these files: who gets through, and which side refuses the others.

What gRPC refuses ends as UNAVAILABLE, for the client without a reason; what it does not know of, the checker refuses.
"""

from concurrent.futures import ThreadPoolExecutor

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.network.parties import CLIENT, DAY, NOW, SERVER, approved, authority_of, key_pem, make
from verfedsv import InputError
from verfedsv.errors import RefusedError
from verfedsv.network.admission import Allowed, Checker
from verfedsv.network.credentials import Credentials, read_credentials
from verfedsv.network.requests import new_request, read_request

grpc = pytest.importorskip("grpc")

OPTIONS = [("grpc.use_local_subchannel_pool", 1)]
"""Otherwise channels to one port could share a connection."""


class Answering(grpc.GenericRpcHandler):
    """Answers every call with the name of the client, or with the reason to refuse it."""

    def __init__(self, checker):
        self.checker = checker

    def service(self, _):
        return grpc.unary_unary_rpc_method_handler(self.answer)

    def answer(self, _, context):
        shown = context.auth_context()
        peer = b"".join([*shown["x509_pem_cert"], *shown.get("x509_pem_cert_chain", [])])
        try:
            return self.checker.check(peer).encode()
        except RefusedError as error:
            context.abort(grpc.StatusCode.UNAUTHENTICATED, error.reason)


def serve(party, checker=None):
    """Return a server on a free port of this machine, and the port; it asks clients for certificates."""
    server = grpc.server(ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers((Answering(checker),))
    mutual = grpc.ssl_server_credentials(
        [(party.private_key, party.chain)], root_certificates=party.authorities, require_client_auth=True
    )
    port = server.add_secure_port("127.0.0.1:0", mutual)
    server.start()
    return server, port


def call(port, party, host="127.0.0.1"):
    """Return what a server answers a client, or the status with which the call ends."""
    mutual = grpc.ssl_channel_credentials(party.authorities, party.private_key, party.chain)
    with grpc.secure_channel(f"{host}:{port}", mutual, OPTIONS) as channel:
        try:
            return channel.unary_unary("/verfedsv/name")(b"", timeout=10).decode()
        except grpc.RpcError as error:
            is_refused = error.code() is grpc.StatusCode.UNAUTHENTICATED
            return f"checker: {error.details()}" if is_refused else error.code().name


class Consortium:
    """An authority, and a server that runs."""

    def __init__(self, folder):
        self.folder = folder
        self.authority, self.signer = authority_of(folder / "ca")
        self.root = self.authority.certificate.to_pem()
        server = self.party("server", "server", ["localhost", "127.0.0.1"])
        checker = Checker(server.authorities, Allowed.of(["telco", "bank"]), folder / "ca" / "revoked.crl")
        self.server, self.port = serve(server, checker)

    def party(self, name, use="client", hosts=()):
        """Return the credentials of a new party."""
        return read_credentials(*approved(self.authority, self.folder, name, hosts), self.folder / "ca" / "ca.crt", use)

    def unchecked(self, party):
        """Return credentials that nobody checked, of a `Party`, or without a certificate."""
        key, chain = (key_pem(party.key), party.pem) if party else (None, None)
        return Credentials(None, chain, key, self.root)

    def call(self, party, **options):
        """Return what the server answers a `Party`."""
        return call(self.port, self.unchecked(party), **options)

    def make(self, name, **options):
        """Return a `Party` with a certificate that the authority would not make."""
        return make(name, issuer=self.signer, **options)


@pytest.fixture(scope="module")
def consortium(tmp_path_factory):
    """Return a consortium whose server runs."""
    found = Consortium(tmp_path_factory.mktemp("tls"))
    yield found
    found.server.stop(None).wait()


def test_a_client_with_its_certificate_is_known_by_its_name(consortium):
    """At each of the server's hosts; a certificate with another name is of a party that was not invited."""
    bank = consortium.party("bank")
    assert [call(consortium.port, bank, host=host) for host in ("127.0.0.1", "localhost")] == ["bank", "bank"]
    assert call(consortium.port, consortium.party("shop")) == "checker: not listed"


def test_without_a_certificate_of_this_authority_there_is_no_connection(consortium):
    """None, one of another authority of that name, and one that is signed with its own key: gRPC refuses them."""
    impostor = make(consortium.authority.certificate.name, is_authority=True)
    assert consortium.call(None) == "UNAVAILABLE"
    assert consortium.call(make("telco", issuer=impostor)) == "UNAVAILABLE"
    assert consortium.call(make("telco")) == "UNAVAILABLE"
    assert consortium.call(consortium.make("telco")) == "telco"


def test_a_certificate_at_another_time_is_refused(consortium):
    """By gRPC, as it connects: one that has expired, and one that is not yet valid."""
    assert consortium.call(consortium.make("telco", end=NOW - DAY / 24)) == "UNAVAILABLE"
    assert consortium.call(consortium.make("telco", start=NOW + DAY / 24)) == "UNAVAILABLE"


def test_the_certificate_of_a_server_is_no_clients(consortium):
    """By its extended key usage; one that has none is for both."""
    assert consortium.call(consortium.make("telco", usages=[SERVER])) == "UNAVAILABLE"
    assert consortium.call(consortium.make("telco", usages=[])) == "telco"


def test_the_certificate_of_an_authority_is_no_clients(consortium):
    """One of this package may only sign certificates; others gRPC accepts, and the checker refuses."""
    assert consortium.call(consortium.signer) == "UNAVAILABLE"
    assert consortium.call(consortium.make("telco", is_authority=True)) == "checker: wrong usage"


def test_a_certificate_of_a_client_cannot_serve(consortium):
    """Not even at a host that is in it: gRPC looks at the extended key usage, at the client too."""
    client = consortium.unchecked(consortium.make("bank"))
    for usages, expected in (([CLIENT], "UNAVAILABLE"), ([SERVER], "bank")):
        served = consortium.make("telco", usages=usages, hosts=["127.0.0.1"])
        server, port = serve(consortium.unchecked(served), Checker(consortium.root, Allowed.of(["bank"])))
        assert call(port, client) == expected
        server.stop(None).wait()


def test_a_server_at_another_host_is_refused(consortium):
    """By its clients: the certificate says where a server is."""
    served = consortium.party("elsewhere", "server", ["server.example"])
    server, port = serve(served, Checker(consortium.root, Allowed.of(["bank"])))
    assert call(port, consortium.unchecked(consortium.make("bank"))) == "UNAVAILABLE"
    server.stop(None).wait()


def test_a_revoked_certificate_is_refused_without_a_restart(consortium):
    """By the checker, as gRPC knows no revocation lists; the next certificate of that name is accepted."""
    telco = consortium.party("telco")
    assert call(consortium.port, telco) == "telco"
    consortium.authority.revoke("telco", consortium.authority.read_key(None))
    assert call(consortium.port, telco) == "checker: revoked"
    key, request = new_request(consortium.folder / "telco-2", "telco")
    certificate = consortium.folder / "telco-2.crt"
    consortium.authority.approve(read_request(request), consortium.authority.read_key(None), certificate)
    renewed = read_credentials(certificate, key, consortium.folder / "ca" / "ca.crt", "client")
    assert call(consortium.port, renewed) == "telco"
    assert call(consortium.port, telco) == "checker: revoked"


def test_certificates_in_between_reach_the_checker():
    """As the client sent them, after its own certificate."""
    middle = make("Middle", issuer=(root := make("Root", is_authority=True)), is_authority=True)
    server = make("server", issuer=root, usages=[SERVER], hosts=["127.0.0.1"])
    served, port = serve(
        Credentials(None, server.pem, key_pem(server.key), root.pem), Checker(root.pem, Allowed.of(["telco"]))
    )
    telco = make("telco", issuer=middle)
    assert call(port, Credentials(None, telco.pem + middle.pem, key_pem(telco.key), root.pem)) == "telco"
    served.stop(None).wait()


@pytest.mark.parametrize(
    ("key", "is_taken"),
    [
        (ec.generate_private_key(ec.SECP384R1()), True),
        (rsa.generate_private_key(65537, 2048), True),
        (ec.generate_private_key(ec.SECP521R1()), False),
        (Ed25519PrivateKey.generate(), False),
    ],
    ids=["P-384", "RSA", "P-521", "Ed25519"],
)
def test_the_kinds_of_keys_that_grpc_takes_are_those_that_are_read(consortium, tmp_path, key, is_taken):
    """The others end in a handshake without a reason, so that reading them is an error."""
    telco = consortium.make("telco", key=key)
    assert consortium.call(telco) == ("telco" if is_taken else "UNAVAILABLE")
    files = *telco.write(tmp_path, "telco"), consortium.folder / "ca" / "ca.crt"
    if is_taken:
        assert read_credentials(*files, "client").name == "telco"
    else:
        with pytest.raises(InputError, match=r"is a key on the curve secp521r1|is an Ed25519 key"):
            read_credentials(*files, "client")
