"""What a party shows of itself, and by whom it recognises others, read from PEM files and checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from verfedsv.errors import InputError, RefusedError
from verfedsv.network.certificates import Certificate, Use, read_certificates
from verfedsv.network.passphrases import passphrase_from
from verfedsv.network.tls_keys import Passphrase, as_pem, fingerprint, read_key
from verfedsv.network.validity import check_certificate


@dataclass(frozen=True)
class Credentials:
    """What gRPC needs of a party, in PEM: its certificate and those between it and the authority, key, authorities."""

    certificate: Certificate
    chain: bytes
    private_key: bytes = field(repr=False)
    authorities: bytes

    @property
    def name(self) -> str:
        """The common name of the certificate."""
        return self.certificate.name


def read_credentials(
    certificate: Path,
    key: Path,
    authority: Path,
    use: Use,
    *,
    passphrase: Passphrase | None = None,
    now: datetime | None = None,
) -> Credentials:
    """Return the credentials in PEM files; raise InputError, which names the file, if they could not be used for TLS.

    They may be of any authority. `certificate` may hold, in any order, certificates between the party's own and that of
    the authority, and `authority` those of several. Without `passphrase`, that of an encrypted key comes from the
    environment.
    """
    authorities = read_certificates(authority)
    for each in authorities:
        if not each.authority:
            raise InputError(f"{authority} has the certificate of {each.shown}, which is not that of an authority")
    found = read_certificates(certificate)
    private_key = read_key(key, passphrase or passphrase_from())
    own, others = _split(found, fingerprint(private_key.public_key()), certificate, key)
    try:
        check_certificate(own, others, authorities, use, now)
    except RefusedError as error:
        raise InputError(f"{certificate}: {error}") from None
    return Credentials(own, _joined([own, *others]), as_pem(private_key), _joined(authorities))


def _split(
    found: Sequence[Certificate], key_fingerprint: str, certificate: Path, key: Path
) -> tuple[Certificate, list[Certificate]]:
    """Return the certificate of a key, and the others."""
    own = next((each for each in found if each.fingerprint == key_fingerprint), None)
    if own is None:
        raise InputError(
            f"the key {key} ({key_fingerprint}) does not belong to the certificate {certificate}, which is for the key "
            f"{found[0].fingerprint}"
        )
    return own, [each for each in found if each is not own]


def _joined(certificates: Sequence[Certificate]) -> bytes:
    return b"".join(each.to_pem() for each in certificates)
