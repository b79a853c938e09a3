"""What is in a PEM file, as plain data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from verfedsv.network import tls_keys
from verfedsv.network.certificates import Certificate, common_name, read_certificates
from verfedsv.network.pem import kinds_in
from verfedsv.network.requests import Request, read_request
from verfedsv.network.revocations import parse_lists
from verfedsv.network.tls_keys import Passphrase, read_any_key
from verfedsv.settlement import keys as statement_keys


def describe_file(path: Path, passphrase: Passphrase) -> list[dict[str, Any]]:
    """Return what is in a file with keys, certificates, a signing request or revocation lists, one object for each.

    Of several kinds, that which comes first in this order is described. Times are in ISO 8601, in UTC.
    """
    kinds = kinds_in(path)
    if "certificate" in kinds:
        return [describe_certificate(each) for each in read_certificates(path)]
    if "signing request" in kinds:
        return [describe_request(read_request(path))]
    if "revocation list" in kinds:
        return [
            {
                "kind": "revocation list",
                "authority": common_name(each.issuer),
                "number": each.number,
                "revoked": [f"{serial:x}" for serial in each.serials()],
            }
            for each in parse_lists(path)
        ]
    if "private key" in kinds:
        return [_describe_key(path, passphrase)]
    key = statement_keys.read_public_key(path)
    return [{"kind": "public key for statements", "fingerprint": statement_keys.fingerprint(key)}]


def describe_certificate(certificate: Certificate) -> dict[str, Any]:
    """Return what a certificate says."""
    return {
        "kind": "certificate",
        "name": certificate.name,
        "for": ["authority"] if certificate.authority else list(certificate.uses),
        "hosts": list(certificate.hosts),
        "from": certificate.start.isoformat(),
        "until": certificate.end.isoformat(),
        "serial": f"{certificate.serial:x}",
        "fingerprint": certificate.fingerprint,
        "sha256": certificate.sha256,
    }


def describe_request(request: Request) -> dict[str, Any]:
    """Return what a signing request asks for."""
    return {
        "kind": "signing request",
        "name": request.name,
        "for": [request.use],
        "hosts": list(request.hosts),
        "fingerprint": request.fingerprint,
    }


def _describe_key(path: Path, passphrase: Passphrase) -> dict[str, Any]:
    key = read_any_key(path, passphrase)
    if isinstance(key, Ed25519PrivateKey):
        public = statement_keys.raw(key.public_key())
        return {"kind": "private key for statements", "fingerprint": statement_keys.fingerprint(public)}
    tls_keys.check_kind(key.public_key(), str(path))
    return {"kind": "private key for TLS", "fingerprint": tls_keys.fingerprint(key.public_key())}
