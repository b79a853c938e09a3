"""Revocation lists: which certificates are no longer valid although they have not expired."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cryptography import x509

from verfedsv.errors import InputError
from verfedsv.network.certificates import PARSE_ERRORS, Certificate, shown_time
from verfedsv.network.pem import read_blocks
from verfedsv.network.tls_keys import KEY_ERRORS

REVOKED = "revoked.crl"

_HARMLESS = {x509.CRLNumber, x509.AuthorityKeyIdentifier, x509.IssuerAlternativeName, x509.FreshestCRL}
"""Extensions that leave a list complete. Others may restrict it to some certificates, or to what has changed."""


@dataclass(frozen=True)
class Revocations:
    """A list of an authority. `number` counts its editions, and is 0 without one; `end` is when a newer one is due."""

    issuer: x509.Name
    number: int
    end: datetime | None
    complete: bool
    parsed: x509.CertificateRevocationList = field(repr=False, compare=False)

    def find(self, serial: int) -> datetime | None:
        """Return when a certificate was revoked, or None if it is not on the list."""
        found = self.parsed.get_revoked_certificate_by_serial_number(serial)
        return None if found is None else found.revocation_date_utc

    def serials(self) -> list[int]:
        """Return the serial numbers of all certificates on the list."""
        return [each.serial_number for each in self.parsed]

    def is_signed_by(self, authority: Certificate) -> bool:
        """Return whether a list is of an authority."""
        public_key: Any = authority.parsed.public_key()  # of a kind that can sign, or it is a TypeError
        try:
            return authority.parsed.subject == self.issuer and self.parsed.is_signature_valid(public_key)
        except KEY_ERRORS:
            return False


def parse_lists(path: Path) -> list[Revocations]:
    """Return the lists in a file, unchecked; raise InputError if there is none, or one is damaged."""
    try:
        return [_parse(x509.load_pem_x509_crl(block)) for block in read_blocks(path, "revocation list")]
    except InputError:
        raise
    except PARSE_ERRORS:
        raise InputError(f"{path} is not a revocation list that can be read; it may be damaged") from None


def read_revocations(
    path: Path, authorities: Sequence[Certificate], now: datetime | None = None
) -> dict[str, Revocations]:
    """Return the lists in a file by the SHA-256 of their authorities' certificates.

    Raise InputError unless each is complete, current, and signed by one of these authorities.
    """
    lists: dict[str, Revocations] = {}
    for each in parse_lists(path):
        issuer = next((authority for authority in authorities if each.is_signed_by(authority)), None)
        if issuer is None:
            raise InputError(f"{path} is not signed by {' or '.join(known.shown for known in authorities[:3])}")
        if each.end is not None and each.end < (now or datetime.now(UTC)):
            raise InputError(f"{path} was to be replaced by a newer list before {shown_time(each.end)}; ask for that")
        if not each.complete:
            raise InputError(f"{path} is not a complete list, as an extension restricts it; ask for one that is")
        lists[issuer.sha256] = each
    return lists


def _parse(content: x509.CertificateRevocationList) -> Revocations:
    extensions = {type(each.value): each.value for each in content.extensions}
    list(content)  # an entry that is damaged is to be found now
    number = extensions.get(x509.CRLNumber)
    return Revocations(
        issuer=content.issuer,
        number=number.crl_number if isinstance(number, x509.CRLNumber) else 0,
        end=content.next_update_utc,
        complete=extensions.keys() <= _HARMLESS,
        parsed=content,
    )
