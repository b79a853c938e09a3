from datetime import UTC, datetime

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.network.parties import CLIENT, DAY, SERVER, damaged, make, openssl
from verfedsv import InputError
from verfedsv.errors import RefusedError
from verfedsv.network.certificates import check_dates, parse_certificates, peer_name, read_certificates
from verfedsv.network.tls_keys import fingerprint


def test_a_certificate_says_who_and_for_what():
    """Name, hosts, uses, dates and the fingerprint of its key."""
    hosts = ("server.example", "10.0.0.5")
    party = make("Zürich 北京", usages=(CLIENT, SERVER), hosts=hosts)
    (found,) = parse_certificates(party.pem)
    assert (found.name, found.hosts, found.uses) == ("Zürich 北京", hosts, ("client", "server"))
    assert found.fingerprint == fingerprint(party.key.public_key())
    assert found.start < datetime.now(UTC) < found.end
    assert found.serial == party.certificate.serial_number
    assert not found.authority
    assert parse_certificates(found.to_pem()) == [found]
    assert peer_name(party.pem) == "Zürich 北京"


def test_the_sha256_is_that_of_openssl():
    """Which is what people have at hand for existing certificates."""
    party = make("telco")
    printed = openssl("x509", "-noout", "-fingerprint", "-sha256", content=party.pem).decode()
    assert printed.strip().partition("=")[2].replace(":", "").lower() == party.says.sha256


def test_uses_are_those_of_tls():
    """A certificate that does not say allows all; one whose key may not sign handshakes allows none."""
    assert make("telco", usages=()).says.uses == ("client", "server")
    assert make("telco", usages=(SERVER,)).says.uses == ("server",)
    assert make("telco", usages=[x509.ExtendedKeyUsageOID.CODE_SIGNING]).says.uses == ()
    names = ("content_commitment", "data_encipherment", "key_agreement", "key_cert_sign", "crl_sign", "encipher_only")
    others = dict.fromkeys((*names, "decipher_only", "digital_signature"), False)
    assert make("telco", usage=x509.KeyUsage(key_encipherment=True, **others)).says.uses == ()


@pytest.mark.parametrize("names", [(), ("telco", "bank"), ("tel\u200bco",), (" telco",), ("tel\nco",)], ids=ascii)
def test_a_doubtful_name_is_none(names):
    """None, two, and names that cannot be read: nobody is recognised by them, but they can be shown."""
    party = make(*names)
    assert party.says.name == ""
    assert party.says.shown.isprintable()
    with pytest.raises(RefusedError, match="has not one printable common name") as caught:
        peer_name(party.pem)
    assert caught.value.reason == "unreadable"


def test_what_is_no_certificate_is_refused(tmp_path):
    """Text, a damaged certificate, and a damaged one behind a good one."""
    pem = make("telco").pem
    bad = damaged(pem)
    for content, message in ((b"hello", "there is no certificate"), (bad, "is damaged"), (pem + bad, "is damaged")):
        with pytest.raises(RefusedError, match=message) as caught:
            peer_name(content)
        assert caught.value.reason == "unreadable"
    (tmp_path / "x.crt").write_bytes(bad)
    with pytest.raises(InputError, match=r"a certificate in .*x\.crt cannot be read: it is damaged"):
        read_certificates(tmp_path / "x.crt")


def test_all_certificates_of_a_file_are_read(tmp_path):
    """In their order."""
    parties = [make(name) for name in ("one", "two")]
    (tmp_path / "x.crt").write_bytes(b"".join(each.pem for each in parties))
    assert [each.name for each in read_certificates(tmp_path / "x.crt")] == ["one", "two"]


def test_dates_are_exact():
    """A certificate is valid from its first to its last second, and the message has both times."""
    start, end = datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC)
    says = make("telco", start=start, end=end).says
    second = DAY / 86400
    check_dates(says, start)
    check_dates(says, end)
    with pytest.raises(RefusedError, match="before 2026-01-01 00:00 UTC, and it is 2025-12-31 23:59 UTC") as early:
        check_dates(says, start - second)
    with pytest.raises(RefusedError, match="'telco' expired at 2026-02-01 00:00 UTC") as late:
        check_dates(says, end + second)
    assert (early.value.reason, late.value.reason) == ("not yet valid", "expired")


def test_a_certificate_is_written_as_it_was_read():
    """Byte for byte, so that signatures hold."""
    party = make("telco")
    assert party.says.to_pem() == party.certificate.public_bytes(Encoding.PEM)
