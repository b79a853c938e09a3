"""Whether a certificate is valid for what a party is about to do with it."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature

from verfedsv.errors import RefusedError
from verfedsv.network.certificates import Certificate, Use, check_dates, extension
from verfedsv.network.tls_keys import KEY_ERRORS

_LONGEST_PATH = 8
"""Certificates from that of a party to that of an authority; most have two."""


def check_certificate(
    certificate: Certificate,
    others: Sequence[Certificate],
    authorities: Sequence[Certificate],
    use: Use,
    now: datetime | None = None,
) -> list[Certificate]:
    """Return the path from a certificate over some of `others` to an authority; raise RefusedError if it is not valid.

    TLS checks the same when parties connect, and more (limits that authorities have on lengths of paths and on names),
    except that it lets an authority's own certificate pass for a party's.
    """
    path = _find_path(certificate, others, authorities)
    for each in path:
        check_dates(each, now)
    if certificate.authority:
        raise RefusedError(
            f"the certificate of {certificate.shown} is an authority's; each party needs one of its own", "wrong usage"
        )
    if use not in certificate.uses:
        allowed = f"is for a {certificate.uses[0]}" if certificate.uses else "has other uses"
        raise RefusedError(
            f"the certificate of {certificate.shown} {allowed}, not for a {use} (extended key usage)", "wrong usage"
        )
    return path


def roots_of(authorities: Sequence[Certificate]) -> list[Certificate]:
    """Return the authorities that no other of them signed."""
    return [
        each for each in authorities if not any(is_issued(each, other) for other in authorities if other is not each)
    ]


def is_issued(certificate: Certificate, issuer: Certificate) -> bool:
    """Return whether an authority signed a certificate."""
    usage = extension(issuer.parsed.extensions, x509.KeyUsage)
    if not issuer.authority or (usage is not None and not usage.key_cert_sign):
        return False
    try:
        certificate.parsed.verify_directly_issued_by(issuer.parsed)
    except (*KEY_ERRORS, InvalidSignature):
        return False
    return True


def _find_path(
    certificate: Certificate, others: Sequence[Certificate], authorities: Sequence[Certificate]
) -> list[Certificate]:
    path = [certificate]
    while len(path) < _LONGEST_PATH:
        # From an authority on, only over authorities: one that is signed by another can be revoked by it.
        candidates = authorities if path[-1] in authorities else [*authorities, *others]
        issuer = next((each for each in candidates if each not in path and is_issued(path[-1], each)), None)
        if issuer is None:
            break
        path.append(issuer)
    if len(path) > 1 and path[-1] in authorities:
        return path
    known = " or ".join(each.shown for each in authorities[:3])
    raise RefusedError(f"the certificate of {certificate.shown} is not signed by {known}", "other authority")
