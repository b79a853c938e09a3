"""What an authority signs: its own certificate, those of parties, and revocation lists."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from verfedsv.errors import InputError
from verfedsv.network.certificates import USAGES, Certificate
from verfedsv.network.requests import Request, general_name, subject_of
from verfedsv.network.tls_keys import TlsKey

MOST_DAYS = 36_500

_BEFORE = timedelta(hours=1)
"""How long before it was signed a certificate is valid, as clocks differ."""


def sign_authority(name: str, key: TlsKey, days: int, now: datetime) -> Certificate:
    """Return the certificate of an authority, signed with its own key, which can only sign parties and lists."""
    subject = subject_of(name)
    usage = _key_usage(key_cert_sign=True, crl_sign=True)
    builder = (
        x509.CertificateBuilder(subject, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(_whole_seconds(now) - _BEFORE)
        .not_valid_after(_end_after(days, now))
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    return Certificate.of(builder.sign(key, SHA256()))


def sign_party(request: Request, authority: Certificate, key: TlsKey, days: int, now: datetime) -> Certificate:
    """Return the certificate of a party, which ends with that of the authority at the latest."""
    public_key = request.parsed.public_key()
    builder = (
        x509.CertificateBuilder(
            authority.parsed.subject, subject_of(request.name), public_key, x509.random_serial_number()
        )
        .not_valid_before(max(_whole_seconds(now) - _BEFORE, authority.start))
        .not_valid_after(min(_end_after(days, now), authority.end))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([USAGES[request.use]]), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
        .add_extension(_identifier_of(authority), critical=False)
    )
    if request.hosts:
        hosts = x509.SubjectAlternativeName(map(general_name, request.hosts))
        builder = builder.add_extension(hosts, critical=False)
    return Certificate.of(builder.sign(key, SHA256()))


def sign_revocations(
    revoked: Iterable[x509.RevokedCertificate], number: int, authority: Certificate, key: TlsKey, now: datetime
) -> bytes:
    """Return a revocation list in PEM, which is valid until a newer one takes its place."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(authority.parsed.subject)
        .last_update(max(_whole_seconds(now) - _BEFORE, authority.start))
        .next_update(authority.end)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(_identifier_of(authority), critical=False)
    )
    for each in revoked:
        builder = builder.add_revoked_certificate(each)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


def revoked_now(serial: int, now: datetime) -> x509.RevokedCertificate:
    """Return the entry of a revocation list for a certificate."""
    return x509.RevokedCertificateBuilder(serial, _whole_seconds(now)).build()


def _end_after(days: int, now: datetime) -> datetime:
    if not 1 <= days <= MOST_DAYS:
        raise InputError(f"a certificate can be valid for 1 to {MOST_DAYS:,} days; received {days}")
    return _whole_seconds(now) + timedelta(days=days)


def _whole_seconds(moment: datetime) -> datetime:
    return moment.replace(microsecond=0)


def _identifier_of(authority: Certificate) -> x509.AuthorityKeyIdentifier:
    public_key: Any = authority.parsed.public_key()  # of a kind that can sign, as that of any authority
    return x509.AuthorityKeyIdentifier.from_issuer_public_key(public_key)


def _key_usage(**allowed: bool) -> x509.KeyUsage:
    names = (
        *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
        *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
    )
    return x509.KeyUsage(**(dict.fromkeys(names, False) | allowed))
