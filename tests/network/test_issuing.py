from datetime import UTC, datetime, timedelta
from itertools import pairwise

import pytest
from cryptography import x509

from tests.network.parties import DAY, approved, authority_of, openssl
from verfedsv import InputError
from verfedsv.network.certificates import read_certificates
from verfedsv.network.revocations import REVOKED

NOW = datetime(2026, 5, 1, 12, 0, 0, 999, tzinfo=UTC)
HOUR = timedelta(hours=1)


def test_certificates_are_valid_for_a_time_that_clocks_can_differ_in(tmp_path):
    """From an hour before they are signed, for the days that were asked for, never longer than the authority."""
    authority, _ = authority_of(tmp_path / "ca", now=NOW, days=100)
    assert authority.certificate.start == NOW.replace(microsecond=0) - HOUR
    assert authority.certificate.end == NOW.replace(microsecond=0) + 100 * DAY
    later = NOW + 30 * DAY
    short, _ = approved(authority, tmp_path, "telco", days=9, now=later)
    (telco,) = read_certificates(short)
    assert (telco.start, telco.end) == tuple(later.replace(microsecond=0) + each for each in (-HOUR, 9 * DAY))
    (bank,) = read_certificates(approved(authority, tmp_path, "bank", now=later)[0])
    assert bank.end == authority.certificate.end


@pytest.mark.parametrize("days", [0, -1, 36_501])
def test_days_that_make_no_sense_are_refused(tmp_path, days):
    """Also for an authority; nothing is written."""
    authority, _ = authority_of(tmp_path / "ca")
    with pytest.raises(InputError, match=f"1 to 36,500 days; received {days}"):
        approved(authority, tmp_path, "telco", days=days)
    with pytest.raises(InputError, match=f"1 to 36,500 days; received {days}"):
        authority_of(tmp_path / "other", days=days)
    assert not (tmp_path / "telco.crt").exists()
    assert not (tmp_path / "other").exists()


def test_serial_numbers_are_random(tmp_path):
    """Of 64 bits and more, as openssl and browsers ask: nobody can foresee the next one."""
    authority, _ = authority_of(tmp_path / "ca")
    serials = [read_certificates(approved(authority, tmp_path, f"party{i}")[0])[0].serial for i in range(8)]
    assert min(serials) > 2**64
    assert len({b - a for a, b in pairwise(serials)}) == 7


def test_a_certificate_allows_only_what_its_owner_does(tmp_path):
    """A client's cannot serve, a server's is valid for its hosts, and no party's can sign others."""
    authority, _ = authority_of(tmp_path / "ca")
    (client,) = read_certificates(approved(authority, tmp_path, "telco")[0])
    (server,) = read_certificates(approved(authority, tmp_path, "server", ["server.example", "10.0.0.5"])[0])
    assert (client.uses, client.hosts) == (("client",), ())
    assert (server.uses, server.hosts) == (("server",), ("server.example", "10.0.0.5"))
    for each in (client, server):
        usage = each.parsed.extensions.get_extension_for_class(x509.KeyUsage)
        assert (usage.critical, usage.value.digital_signature, usage.value.key_cert_sign) == (True, True, False)
        assert not each.authority
    constraints = authority.certificate.parsed.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)


def test_openssl_agrees(tmp_path):
    """On chains, uses, hosts, text and revocation, by its own reading of the files."""
    authority, _ = authority_of(tmp_path / "ca", name="Consortium")
    client, _ = approved(authority, tmp_path, "Telco Zürich")
    server, _ = approved(authority, tmp_path, "server", ["server.example", "10.0.0.5"])
    root, revoked = tmp_path / "ca" / "ca.crt", tmp_path / "ca" / REVOKED
    check = ("verify", "-x509_strict", "-CAfile", root)
    openssl(*check, "-purpose", "sslclient", client)
    openssl(*check, "-purpose", "sslserver", "-verify_hostname", "server.example", "-verify_ip", "10.0.0.5", server)
    openssl(*check, "-purpose", "sslserver", client, succeeds=False)
    openssl(*check, "-purpose", "sslclient", server, succeeds=False)
    openssl(*check, "-verify_hostname", "other.example", server, succeeds=False)
    text = openssl("x509", "-noout", "-text", "-nameopt", "utf8", "-in", client).decode()
    for line in ("Issuer: CN=Consortium", "Subject: CN=Telco Zürich", "ASN1 OID: prime256v1", "CA:FALSE"):
        assert line in text
    assert "TLS Web Client Authentication" in text
    assert "TLS Web Server Authentication" not in text
    crl = (*check, "-crl_check", "-CRLfile", revoked)
    openssl(*crl, client, server)
    authority.revoke("Telco Zürich", authority.read_key(None))
    openssl(*crl, client, succeeds=False)
    openssl(*crl, server)
    printed = openssl("crl", "-noout", "-text", "-in", revoked).decode()
    assert f"{read_certificates(client)[0].serial:X}" in printed.replace(":", "")
    assert "X509v3 CRL Number: \n                2" in printed
