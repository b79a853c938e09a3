"""Who may join: which certificate each client has, and whether it is still valid."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from time import monotonic
from typing import NamedTuple

from verfedsv.errors import InputError, RefusedError
from verfedsv.names import check_names
from verfedsv.network.certificates import Certificate, parse_certificates, shown_time
from verfedsv.network.requests import check_name
from verfedsv.network.revocations import Revocations, read_revocations
from verfedsv.network.validity import check_certificate, roots_of
from verfedsv.texts import listed

_SHORT = re.compile(r"[0-9a-f]{4}(-[0-9a-f]{4}){7}")
_LONG = re.compile(r"(sha256:)?([0-9a-f]{64}|[0-9a-f]{2}(:[0-9a-f]{2}){31})")


@dataclass(frozen=True)
class Allowed:
    """The common name or the fingerprints of each client that may join, by the client's name; see `of`."""

    common_names: Mapping[str, str]
    pins: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, clients: Sequence[str] | Mapping[str, str | Sequence[str]]) -> Allowed:
        """Return who may join, as a configuration says it.

        Each client has the common name of its certificate (in a list of clients, its own name) or fingerprints: of
        keys, as verfedsv keys show prints them, or the SHA-256 of certificates, as openssl does. There may be several,
        for the time in which a client changes to a new key. A text that looks like a fingerprint is one.

        >>> Allowed.of({"telco": "Telco Ltd", "bank": "6668-7aad-f862-bd77-6c8f-c18b-8e9f-8e20"}).common_names
        {'telco': 'Telco Ltd'}
        """
        if isinstance(clients, str):
            raise InputError(f"a list of clients is needed, or a mapping; received {clients!a}")
        entries = clients if isinstance(clients, Mapping) else {name: name for name in clients}
        try:
            check_names(list(clients))
        except ValueError as error:
            raise InputError(str(error)) from None
        common_names: dict[str, str] = {}
        pins: dict[str, frozenset[str]] = {}
        for client, value in entries.items():
            texts = [value] if isinstance(value, str) else list(value)
            found = [_as_pin(text) for text in texts]
            if texts and all(found):
                pins[client] = frozenset(filter(None, found))
            elif len(texts) == 1:
                common_names[client] = check_name(texts[0])
            else:
                raise InputError(
                    f"client {client!r} needs one common name of its certificate, or one or more fingerprints, not "
                    f"both; received {str(texts)[:200]!a}"
                )
        _refuse_shared(common_names, pins)
        return cls(common_names, pins)

    def find(self, certificate: Certificate) -> str:
        """Return the client that a certificate is for; raise RefusedError if there is none, or not only one."""
        prints = {certificate.fingerprint, certificate.sha256}
        clients = [client for client, name in self.common_names.items() if name == certificate.name]
        clients += [client for client, pins in self.pins.items() if pins & prints]
        if not clients:
            raise RefusedError(
                f"the certificate of {certificate.shown}, with the key {certificate.fingerprint}, is not listed among "
                "those who may join",
                "not listed",
            )
        if len(clients) > 1:
            raise RefusedError(
                f"the certificate of {certificate.shown} is listed for {listed(clients)}; one organisation is one "
                "client",
                "not listed",
            )
        return clients[0]


_KNOWN_FOR = 10.0
"""Seconds for which an accepted certificate is not checked again, unless it expires before, or there is another file of
revocations."""

_MOST_KNOWN = 1000


class _Known(NamedTuple):
    """A certificate that was accepted: whose it is, by which revocation list, and until when that is relied on."""

    client: str
    mark: tuple[int, ...]
    until: float


class Checker:
    """Says which client a certificate is for: as it connects, and from time to time while it is connected.

    gRPC checks, while it connects: that the peer has the private key of its certificate, that an authority signed it,
    its dates, its extended key usage and, at the client, that the server's certificate is for its host. It knows no
    revocation lists and no names, takes the certificate of an authority for a client's, and keeps a connection when its
    certificate expires. Here all is checked but one thing, that the peer has the key. So a certificate must come from
    TLS: `x509_pem_cert` of `context.auth_context()`, followed by `x509_pem_cert_chain` if that is there.
    """

    def __init__(self, authorities: bytes, allowed: Allowed, revoked: Path | None = None) -> None:
        self._authorities = parse_certificates(authorities)
        self._allowed = allowed
        self._revoked = revoked
        self._newest: dict[str, int] = {}
        self._known: dict[bytes, _Known] = {}
        if allowed.common_names and len(roots := roots_of(self._authorities)) > 1:
            raise InputError(
                f"there are {len(roots)} authorities, {listed([each.shown for each in roots])}, and each could sign "
                f"any name: list fingerprints, not the common names of {listed([*allowed.common_names])}"
            )
        if revoked is not None:
            self._newest = _numbers_of(read_revocations(revoked, self._authorities))

    def check(self, peer: bytes, now: datetime | None = None) -> str:
        """Return the name of the client with this certificate, in PEM; raise RefusedError if it may not join.

        A certificate that was accepted in the last 10 seconds, with the same file of revocations, and has not expired
        since, is not checked again:
        3 microseconds instead of 500, so that it can be asked at each message.
        """
        mark = self._mark()
        known = self._known.get(peer)
        if now is None and known is not None and known.mark == mark and monotonic() < known.until:
            return known.client
        client, end = self._check(peer, now)
        if now is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            left = (end - datetime.now(UTC)).total_seconds()
            self._known[peer] = _Known(client, mark, monotonic() + min(_KNOWN_FOR, left))
        return client

    def _mark(self) -> tuple[int, ...]:
        """Return what changes if another file of revocations is put in the place of the present one."""
        if self._revoked is None:
            return ()
        try:
            found = self._revoked.stat()
        except OSError:
            return ()
        return found.st_mtime_ns, found.st_size, found.st_ino

    def _check(self, peer: bytes, now: datetime | None) -> tuple[str, datetime]:
        """Return whose certificate it is, and when it or one that it rests on expires."""
        certificate, *others = parse_certificates(peer)
        path = check_certificate(certificate, others, self._authorities, "client", now)
        if self._revoked is not None:
            self._refuse_revoked(path, self._read_revoked(self._revoked, now))
        return self._allowed.find(certificate), min(each.end for each in path)

    def _read_revoked(self, path: Path, now: datetime | None) -> dict[str, Revocations]:
        """Return the revocation lists by their authority; raise RefusedError if they cannot be relied on."""
        try:
            lists = read_revocations(path, self._authorities, now)
        except InputError as error:
            raise RefusedError(str(error), "no revocation list") from None
        for issuer, number in self._newest.items():
            present = lists.get(issuer)
            if present is None or present.number < number:
                raise RefusedError(
                    f"{path} is older than the list that was there before (number {number}); copy that back",
                    "no revocation list",
                )
        self._newest = _numbers_of(lists)
        return lists

    def _refuse_revoked(self, path: Sequence[Certificate], lists: Mapping[str, Revocations]) -> None:
        for certificate, issuer in pairwise(path):
            revocations = lists.get(issuer.sha256)
            if revocations is None:
                if certificate is path[0]:
                    raise RefusedError(
                        f"{self._revoked} has no revocation list of {issuer.shown}, which signed the certificate of "
                        f"{certificate.shown}",
                        "no revocation list",
                    )
            elif (moment := revocations.find(certificate.serial)) is not None:
                raise RefusedError(
                    f"the certificate of {certificate.shown} was revoked at {shown_time(moment)}", "revoked"
                )


def _numbers_of(lists: Mapping[str, Revocations]) -> dict[str, int]:
    return {issuer: each.number for issuer, each in lists.items()}


def _as_pin(text: str) -> str | None:
    """Return a fingerprint as `Certificate` has it, or None if a text is not one."""
    lower = text.lower()
    if _SHORT.fullmatch(lower):
        return lower
    return lower.removeprefix("sha256:").replace(":", "") if _LONG.fullmatch(lower) else None


def _refuse_shared(common_names: Mapping[str, str], pins: Mapping[str, frozenset[str]]) -> None:
    """Raise InputError if two clients have the same certificate: one organisation is one client."""
    seen: dict[str, str] = {}
    for client, marks in {**{name: [mark] for name, mark in common_names.items()}, **pins}.items():
        for mark in marks:
            if other := seen.get(mark):
                raise InputError(f"clients {other!r} and {client!r} have the same certificate: {mark!a}")
            seen[mark] = client
