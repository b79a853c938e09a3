import os
import stat

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from tests.network.parties import NOBODY, damaged, openssl, subject
from verfedsv import InputError
from verfedsv.network.requests import new_request, read_request
from verfedsv.network.tls_keys import fingerprint, new_key, read_key


def write(path, *names, key=None, hosts=()):
    """Write a request that this package would not make."""
    key = key or new_key()
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject(*names))
    if hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    path.write_bytes(builder.sign(key, SHA256()).public_bytes(Encoding.PEM))
    return path


def test_a_client_asks_by_its_name(tmp_path):
    """Two files are written: a key that stays, readable by its owner alone, and the request."""
    key, path = new_request(tmp_path / "telco", "Telco Zürich")
    assert (key.name, path.name) == ("telco.key", "telco.csr")
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert b"PRIVATE" not in path.read_bytes()
    request = read_request(path)
    assert (request.name, request.hosts, request.use) == ("Telco Zürich", (), "client")
    assert request.fingerprint == fingerprint(read_key(key, NOBODY).public_key())


def test_a_server_asks_for_its_hosts(tmp_path):
    """DNS names and addresses; openssl reads them too."""
    _, path = new_request(tmp_path / "s", "server", ["Server.example", "10.0.0.5", "::1", "localhost"])
    request = read_request(path)
    assert (request.hosts, request.use) == (("server.example", "10.0.0.5", "::1", "localhost"), "server")
    printed = openssl("req", "-noout", "-text", "-verify", "-in", path).decode()
    assert "DNS:server.example, IP Address:10.0.0.5, IP Address:0:0:0:0:0:0:0:1, DNS:localhost" in printed


def test_a_renewal_can_keep_the_key(tmp_path):
    """Then only the request is new."""
    key, first = new_request(tmp_path / "telco", "telco")
    (second,) = new_request(tmp_path / "telco-2", "telco", key=read_key(key, NOBODY))
    assert read_request(second) == read_request(first)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["telco-2.csr", "telco.csr", "telco.key"]


@pytest.mark.parametrize("ending", [".key", ".csr"])
def test_nothing_is_overwritten(tmp_path, ending):
    """If one of the files exists, the other is not written either."""
    (tmp_path / f"telco{ending}").write_text("mine")
    with pytest.raises(InputError, match=rf"telco{ending} exists, and is never overwritten; name other files with -o"):
        new_request(tmp_path / "telco", "telco")
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [(f"telco{ending}", "mine")]


def test_both_files_are_written_or_none(tmp_path, monkeypatch):
    """If the disk is full before the request is written, the key is removed."""
    write = os.fdopen

    def full_disk(descriptor, mode):
        if len(list(tmp_path.iterdir())) == 2:
            os.close(descriptor)
            raise OSError(28, "No space left on device")
        return write(descriptor, mode)

    monkeypatch.setattr(os, "fdopen", full_disk)
    with pytest.raises(InputError, match=r"cannot write .*telco.csr: No space left"):
        new_request(tmp_path / "telco", "telco")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "a name must be printable"),
        (" telco", "a name must be printable"),
        ("tel\nco", r"a name must be printable.*received 'tel\\nco'"),
        ("tel\u200bco", "a name must be printable"),
        ("x" * 65, "can have 64 bytes in UTF-8; 'x.*' has 65"),
        ("北" * 22, "can have 64 bytes in UTF-8; .* has 66"),
    ],
)
def test_names_that_cannot_be_read_or_are_too_long_are_refused(tmp_path, name, message):
    """As the transcript refuses them, and X.509."""
    with pytest.raises(InputError, match=message):
        new_request(tmp_path / "telco", name)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["x" * 64, "北" * 21, "a b", "../../etc"])
def test_other_names_are_taken(tmp_path, name):
    """Also such as no file could have."""
    assert read_request(new_request(tmp_path / "telco", name)[-1]).name == name


@pytest.mark.parametrize(
    "host", ["", "*.example", "-a.example", "a..b", "ü.example", "300.1.1.1", "1.2", "a b", "x" * 64]
)
def test_hosts_that_are_neither_names_nor_addresses_are_refused(tmp_path, host):
    """A wildcard would be valid for servers of others."""
    with pytest.raises(InputError, match="a host must be a DNS name such as"):
        new_request(tmp_path / "server", "server", [host])


def test_requests_of_openssl_are_read(tmp_path):
    """Of the subject only the common name counts."""
    key = tmp_path / "x.key"
    openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", key)
    openssl("req", "-new", "-key", key, "-subj", "/C=CH/O=Telco Ltd/CN=telco", "-out", tmp_path / "x.csr")
    assert (read_request(tmp_path / "x.csr").name, read_request(tmp_path / "x.csr").use) == ("telco", "client")


def test_a_request_has_to_be_signed_with_its_own_key(tmp_path):
    """Otherwise somebody could ask for a certificate of a key that is another's."""
    path = write(tmp_path / "x.csr", "telco")
    der = bytearray(x509.load_pem_x509_csr(path.read_bytes()).public_bytes(Encoding.DER))
    der[der.index(b"telco")] ^= 1
    path.write_bytes(openssl("req", "-inform", "DER", content=bytes(der)))
    with pytest.raises(InputError, match="is not signed with its own key: it was changed"):
        read_request(path)


@pytest.mark.parametrize(
    ("names", "options", "message"),
    [
        ((), {}, "must have one common name"),
        (("telco", "bank"), {}, "must have one common name"),
        (("tel\u200bco",), {}, "must have one common name, of printable characters"),
        (("telco",), {"hosts": [x509.DNSName("*.example")]}, "a host must be a DNS name"),
        (("telco",), {"hosts": [x509.RFC822Name("a@b.example")]}, "neither DNS names nor IP addresses; leave them out"),
        (("telco",), {"key": Ed25519PrivateKey.generate()}, "Ed25519 key: that is for signing statements"),
    ],
)
def test_requests_that_cannot_be_granted_are_refused(tmp_path, names, options, message):
    """Before the operator is asked."""
    is_ed25519 = "key" in options
    path = tmp_path / "x.csr"
    if is_ed25519:
        builder = x509.CertificateSigningRequestBuilder().subject_name(subject(*names))
        path.write_bytes(builder.sign(options["key"], None).public_bytes(Encoding.PEM))
    else:
        write(path, *names, **options)
    with pytest.raises(InputError, match=message):
        read_request(path)


def test_a_damaged_request_is_refused(tmp_path):
    """With the name of the file."""
    path = write(tmp_path / "x.csr", "telco")
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(InputError, match=r"x\.csr is not a signing request that can be read"):
        read_request(path)
