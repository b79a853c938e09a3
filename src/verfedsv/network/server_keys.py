"""Which certificates a server has, by its configuration, and whom it lets in."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from verfedsv.addresses import check_address
from verfedsv.errors import InputError
from verfedsv.network.admission import Allowed, Checker
from verfedsv.network.credentials import read_credentials
from verfedsv.network.handshakes import Handshakes
from verfedsv.network.tls_keys import Passphrase
from verfedsv.runs.config import ClientSection, ServerSection


def listening_at(section: ServerSection, address: str | None, keys: Path | None) -> ServerSection:
    """Return the section with another address, or the certificates in a folder, if they are given.

    Raises InputError if it is none that a server can listen at.
    """
    update: dict[str, Any] = {}
    if address is not None:
        try:
            update["address"] = check_address(address)
        except ValueError as error:
            raise InputError(f"--address {error}; received {address!r}") from None
    if keys is not None:
        update |= {"certificate": keys / "server.crt", "key": keys / "server.key", "authority": keys / "ca.crt"}
        revoked = keys / "revoked.crl"
        update["revoked"] = revoked if revoked.exists() else None
    return section.model_copy(update=update)


def admission_of(
    section: ServerSection, clients: Iterable[ClientSection], passphrase: Passphrase | None
) -> tuple[Callable[[bytes | None], str | None], Handshakes]:
    """Return who may join (see `Hub`), and what TLS needs; raise InputError if something is missing."""
    paths = {"certificate": section.certificate, "key": section.key, "authority": section.authority}
    if missing := [name for name, path in paths.items() if path is None]:
        raise InputError(f"[server] needs {', '.join(missing)}: paths of PEM files; verfedsv keys makes them")
    certificate, key, authority = (path or Path() for path in paths.values())
    own = read_credentials(certificate, key, authority, "server", passphrase=passphrase)
    allowed = {client.name: client.certificate or client.name for client in clients if not client.file}
    checker = Checker(own.authorities, Allowed.of(allowed), section.revoked)
    return (lambda peer: checker.check(peer or b"")), Handshakes(own.private_key, own.chain, own.authorities)
