import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat

from tests.network.parties import DAY, NOBODY, NOW, SERVER, approved, authority_of, damaged, key_pem, make
from verfedsv import InputError
from verfedsv.network.credentials import read_credentials
from verfedsv.settlement.keys import new_keys

ROOT = make("Root", is_authority=True)


@pytest.fixture
def root(tmp_path):
    """Return the path of the certificate of an authority."""
    return ROOT.write(tmp_path, "ca")[0]


def test_files_of_this_package_are_credentials(tmp_path):
    """Of a client and of a server; the key is not displayed."""
    authority, _ = authority_of(tmp_path / "ca")
    root = tmp_path / "ca" / "ca.crt"
    for name, use, hosts in (("telco", "client", ()), ("server", "server", ("localhost",))):
        certificate, key = approved(authority, tmp_path, name, hosts)
        found = read_credentials(certificate, key, root, use)
        assert (found.name, found.certificate.hosts) == (name, hosts)
        assert (found.chain, found.authorities) == (certificate.read_bytes(), root.read_bytes())
        assert found.private_key == key.read_bytes()
        assert "PRIVATE" not in repr(found)


def test_an_encrypted_key_is_decrypted(tmp_path, root, monkeypatch):
    """With the passphrase that is passed, or that of the environment: gRPC cannot."""
    telco = make("telco", issuer=ROOT, key=rsa.generate_private_key(65537, 2048))
    certificate, key = telco.write(tmp_path, "telco")
    form = PrivateFormat.TraditionalOpenSSL
    key.write_bytes(telco.key.private_bytes(Encoding.PEM, form, BestAvailableEncryption(b"secret")))
    found = read_credentials(certificate, key, root, "client", passphrase=lambda _: b"secret")
    assert found.private_key == key_pem(telco.key)
    monkeypatch.setenv("VERFEDSV_PASSPHRASE", "secret")
    assert read_credentials(certificate, key, root, "client") == found


def test_certificates_in_between_may_come_in_any_order(tmp_path, root):
    """And in one file with the key; gRPC wants that of the party first."""
    middle = make("Middle", issuer=ROOT, is_authority=True)
    telco = make("telco", issuer=middle)
    path = tmp_path / "all.pem"
    path.write_bytes(middle.pem + key_pem(telco.key) + telco.pem)
    path.chmod(0o600)
    assert read_credentials(path, path, root, "client").chain == telco.pem + middle.pem


@pytest.mark.parametrize(
    ("party", "message"),
    [
        (make("telco", issuer=ROOT, end=NOW - DAY / 24), r"telco\.crt: the certificate of 'telco' expired at"),
        (make("telco", issuer=ROOT, start=NOW + DAY / 24), r"telco\.crt: .* is not valid before"),
        (make("telco", issuer=make("Root", is_authority=True)), r"telco\.crt: .* is not signed by 'Root'"),
        (make("telco", issuer=ROOT, usages=[SERVER]), r"telco\.crt: .* is for a server, not for a client"),
        (make("telco", issuer=ROOT, is_authority=True), r"telco\.crt: .* is an authority's"),
        (make("telco", issuer=ROOT, key=rsa.generate_private_key(65537, 1024)), r"telco\.key is an RSA key of 1024"),  # noqa: S505
    ],
    ids=["expired", "not yet valid", "another authority", "wrong usage", "an authority", "a weak key"],
)
def test_what_tls_would_refuse_without_a_reason_is_refused_with_one(tmp_path, root, party, message):
    """The message names the file."""
    with pytest.raises(InputError, match=message):
        read_credentials(*party.write(tmp_path, "telco"), root, "client")


def test_files_that_were_mixed_up_are_named(tmp_path, root):
    """The key of another, a certificate for a key, a key for a certificate, and a party for an authority."""
    telco, bank = (make(name, issuer=ROOT) for name in ("telco", "bank"))
    (certificate, key), (other, _) = telco.write(tmp_path, "telco"), bank.write(tmp_path, "bank")
    for files, message in (
        (
            (other, key, root),
            rf"telco\.key \({telco.says.fingerprint}\) does not belong to .*bank\.crt, .* key {bank.says.fingerprint}",
        ),
        ((certificate, certificate, root), r"telco\.crt is a certificate; what is needed here is a private key"),
        ((key, key, root), r"telco\.key is a private key; what is needed here is a certificate"),
        ((certificate, key, key), r"telco\.key is a private key; what is needed here is a certificate"),
        ((certificate, key, other), r"bank\.crt has the certificate of 'bank', which is not that of an authority"),
        ((certificate, tmp_path / "none", root), r"cannot read the private key .*none: No such file"),
        ((certificate, new_keys(tmp_path / "statements")[0], root), "Ed25519 key: that is for signing statements"),
    ):
        with pytest.raises(InputError, match=message):
            read_credentials(*files, "client", passphrase=NOBODY)


def test_damaged_files_are_named(tmp_path, root):
    """Each of the two with certificates."""
    certificate, key = make("telco", issuer=ROOT).write(tmp_path, "telco")
    for path in (certificate, root):
        whole = path.read_bytes()
        path.write_bytes(damaged(whole))
        with pytest.raises(InputError, match=rf"a certificate in .*{path.name} cannot be read: it is damaged"):
            read_credentials(certificate, key, root, "client")
        path.write_bytes(whole)


def test_a_key_that_others_can_read_is_refused(tmp_path, root):
    """Before anything is sent."""
    certificate, key = make("telco", issuer=ROOT).write(tmp_path, "telco")
    key.chmod(0o640)
    with pytest.raises(InputError, match=r"others on this machine can read the private key .*telco\.key \(mode 640\)"):
        read_credentials(certificate, key, root, "client")
