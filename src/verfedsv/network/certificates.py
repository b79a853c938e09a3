"""What a certificate says, and when it is valid."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, TypeVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from verfedsv.errors import InputError, RefusedError
from verfedsv.names import is_readable
from verfedsv.network.pem import blocks_of, read_blocks
from verfedsv.network.tls_keys import KEY_ERRORS, fingerprint
from verfedsv.texts import LONGEST_NAME, printable, shortened

Use = Literal["client", "server"]

USAGES: dict[Use, x509.ObjectIdentifier] = {
    "client": ExtendedKeyUsageOID.CLIENT_AUTH,
    "server": ExtendedKeyUsageOID.SERVER_AUTH,
}

LONGEST_COMMON_NAME = 64
"""In bytes of UTF-8. X.509 allows as many characters, the cryptography library as many bytes."""

PARSE_ERRORS = *KEY_ERRORS, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, x509.InvalidVersion
"""What the library raises, at once or when a field is first used, for what is not a valid certificate."""

_E = TypeVar("_E", bound=x509.ExtensionType)


@dataclass(frozen=True)
class Certificate:
    """What a certificate says, without a judgement.

    `name` is the common name, or "" if there is not exactly one that is printable; `authority` says whether it may sign
    others. `fingerprint` is of the key, `sha256` of the whole certificate, as openssl x509 -fingerprint prints it.
    """

    name: str
    hosts: tuple[str, ...]
    uses: tuple[Use, ...]
    authority: bool
    serial: int
    start: datetime
    end: datetime
    fingerprint: str
    sha256: str
    parsed: x509.Certificate = field(repr=False, compare=False)

    @classmethod
    def of(cls, certificate: x509.Certificate) -> Certificate:
        """Return what a certificate says; raise one of `PARSE_ERRORS` if a field cannot be read."""
        extensions = certificate.extensions
        constraints = extension(extensions, x509.BasicConstraints)
        return cls(
            name=common_name(certificate.subject),
            hosts=hosts_in(extensions),
            uses=_uses_of(extensions),
            authority=constraints is not None and constraints.ca,
            serial=certificate.serial_number,
            start=certificate.not_valid_before_utc,
            end=certificate.not_valid_after_utc,
            fingerprint=fingerprint(certificate.public_key()),
            sha256=hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest(),
            parsed=certificate,
        )

    @property
    def shown(self) -> str:
        """The name in quotes or, without one, the subject, to be displayed."""
        subject = printable(self.parsed.subject.rfc4514_string()) or "an empty name"
        return repr(shortened(self.name, LONGEST_NAME)) if self.name else shortened(subject, LONGEST_NAME)

    def to_pem(self) -> bytes:
        """Return the certificate in PEM."""
        return self.parsed.public_bytes(Encoding.PEM)


def parse_certificates(pem: bytes) -> list[Certificate]:
    """Return the certificates in a text, at least one; raise RefusedError if there is none or one is damaged."""
    blocks = [block.content for block in blocks_of(pem) if block.kind == "certificate"]
    try:
        found = [Certificate.of(x509.load_pem_x509_certificate(block)) for block in blocks]
    except PARSE_ERRORS:
        raise RefusedError("a certificate cannot be read: it is damaged") from None
    if not found:
        raise RefusedError("there is no certificate in PEM")
    return found


def read_certificates(path: Path) -> list[Certificate]:
    """Return the certificates in a file, at least one; raise InputError if there is none or one is damaged."""
    pem = b"".join(read_blocks(path, "certificate"))
    try:
        return parse_certificates(pem)
    except RefusedError:
        raise InputError(f"a certificate in {path} cannot be read: it is damaged") from None


def peer_name(pem: bytes) -> str:
    """Return the name of whom a certificate is for: its common name. Raise RefusedError if it has none to rely on."""
    certificate = parse_certificates(pem)[0]
    if not certificate.name:
        raise RefusedError(f"the certificate of {certificate.shown} has not one printable common name")
    return certificate.name


def check_dates(certificate: Certificate, now: datetime | None = None) -> None:
    """Raise RefusedError if a certificate is not valid yet, or no longer."""
    now = now or datetime.now(UTC)
    if now < certificate.start:
        raise RefusedError(
            f"the certificate of {certificate.shown} is not valid before {shown_time(certificate.start)}, and it is "
            f"{shown_time(now)} here: check the clocks of both machines",
            "not yet valid",
        )
    if now > certificate.end:
        raise RefusedError(
            f"the certificate of {certificate.shown} expired at {shown_time(certificate.end)}, and it is "
            f"{shown_time(now)} here: it has to be renewed",
            "expired",
        )


def shown_time(moment: datetime) -> str:
    """Return a time as it is displayed.

    >>> shown_time(datetime(2026, 3, 1, 14, 5, tzinfo=UTC))
    '2026-03-01 14:05 UTC'
    """
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M UTC")


def common_name(subject: x509.Name) -> str:
    """Return the common name of a subject, or "" if it has none, several, or one that is not printable."""
    names = [attribute.value for attribute in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
    name = names[0] if len(names) == 1 else ""
    return name if isinstance(name, str) and is_readable(name) else ""


def hosts_in(extensions: x509.Extensions) -> tuple[str, ...]:
    """Return the DNS names and IP addresses that a certificate or a request is for."""
    found = extension(extensions, x509.SubjectAlternativeName)
    names = () if found is None else found
    return tuple(str(name.value) for name in names if isinstance(name, x509.DNSName | x509.IPAddress))


def _uses_of(extensions: x509.Extensions) -> tuple[Use, ...]:
    """Return the uses that a certificate allows. As in TLS, one that does not say allows all."""
    key_usage = extension(extensions, x509.KeyUsage)
    if key_usage is not None and not key_usage.digital_signature:
        return ()
    extended = extension(extensions, x509.ExtendedKeyUsage)
    return tuple(use for use, usage in USAGES.items() if extended is None or usage in extended)


def extension(extensions: x509.Extensions, kind: type[_E]) -> _E | None:
    """Return the extension of a kind, or None."""
    try:
        return extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None
