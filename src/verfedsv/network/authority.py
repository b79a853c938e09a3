"""A certificate authority in a folder: it approves signing requests, keeps a register of them, and revokes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from verfedsv.errors import InputError
from verfedsv.files import write_new, write_whole
from verfedsv.network.certificates import Certificate, check_dates, read_certificates, shown_time
from verfedsv.network.issuing import revoked_now, sign_authority, sign_party, sign_revocations
from verfedsv.network.pem import kinds_in
from verfedsv.network.register import REGISTER, Entry, open_register
from verfedsv.network.requests import Request, check_name
from verfedsv.network.revocations import REVOKED, Revocations, read_revocations
from verfedsv.network.tls_keys import Passphrase, TlsKey, fingerprint, new_key, read_key, write_key
from verfedsv.network.validity import is_issued
from verfedsv.texts import misleading

KEY_FILE, CERTIFICATE_FILE = "ca.key", "ca.crt"

DAYS, AUTHORITY_DAYS = 365, 3650
"""For how many days the certificates of parties and of authorities are valid by default."""

_MOST_LIVE = 2
"""Valid certificates of one party: the present one, and its successor while the party changes over."""


def new_authority(
    folder: Path,
    name: str | None = None,
    *,
    days: int = AUTHORITY_DAYS,
    passphrase: bytes | None = None,
    now: datetime | None = None,
) -> Authority:
    """Write a new authority to a folder, which is created if it is not there, and return it.

    The files are ca.key, which only its owner can read, ca.crt, an empty register and an empty revocation list.
    Existing files are never overwritten. By default the name has part of the key's fingerprint: no two authorities
    share it.
    """
    now = now or datetime.now(UTC)
    key = new_key()
    name = check_name(name or f"verfedsv CA {fingerprint(key.public_key())[:9]}")
    certificate = sign_authority(name, key, days, now)
    paths = [folder / each for each in (KEY_FILE, CERTIFICATE_FILE, REVOKED, REGISTER)]
    for path in paths:
        if path.exists():
            raise InputError(f"{path} exists, and an authority is never overwritten; choose another folder")
    contents = certificate.to_pem(), sign_revocations([], 1, certificate, key, now), b""
    folder.mkdir(exist_ok=True)
    write_key(paths[0], key, passphrase)
    written = paths[:1]
    try:
        for path, content in zip(paths[1:], contents, strict=True):
            write_new(path, content)
            written.append(path)
    except BaseException:
        for path in written:
            path.unlink()
        raise
    return Authority(folder, certificate)


@dataclass(frozen=True)
class Authority:
    """A folder with ca.key, ca.crt, approved.jsonl and revoked.crl."""

    folder: Path
    certificate: Certificate

    @classmethod
    def open(cls, folder: Path) -> Authority:
        """Return the authority in a folder; raise InputError if there is none."""
        path = folder / CERTIFICATE_FILE
        if not path.exists():
            raise InputError(
                f"there is no {path}; name the folder of the authority with --ca, or make one: verfedsv keys ca"
            )
        certificate = read_certificates(path)[0]
        if not certificate.authority:
            raise InputError(f"{path} is the certificate of a party, not of an authority")
        return cls(folder, certificate)

    def read_key(self, passphrase: Passphrase) -> TlsKey:
        """Return the private key of the authority."""
        path = self.folder / KEY_FILE
        key = read_key(path, passphrase)
        if fingerprint(key.public_key()) != self.certificate.fingerprint:
            raise InputError(f"{path} does not belong to {self.folder / CERTIFICATE_FILE}")
        return key

    def read_revocations(self, now: datetime | None = None) -> Revocations:
        """Return the revocation list; raise InputError if it is missing, as what was revoked would be valid again."""
        path = self.folder / REVOKED
        if not path.exists():
            raise InputError(f"there is no {path}, the revocation list; copy it back from the server or a backup")
        return read_revocations(path, [self.certificate], now)[self.certificate.sha256]

    def consider(self, request: Request, *, renew: bool = False, now: datetime | None = None) -> list[str]:
        """Return what the operator should know before approving a request; raise InputError if it has to be refused."""
        with open_register(self.folder) as register:
            return self._consider(register.entries, request, renew, now or datetime.now(UTC))

    def approve(
        self,
        request: Request,
        key: TlsKey,
        path: Path,
        *,
        days: int = DAYS,
        renew: bool = False,
        now: datetime | None = None,
    ) -> Certificate:
        """Sign a request, enter the certificate in the register, and write it to a new file.

        One party has one certificate. With `renew` it gets another, and both are valid until the first expires or is
        revoked, so that the party can change over whenever its training allows.
        """
        now = now or datetime.now(UTC)
        with open_register(self.folder) as register:
            self._consider(register.entries, request, renew, now)
            certificate = sign_party(request, self.certificate, key, days, now)
            with register.adding(Entry.of(certificate)):
                write_new(path, certificate.to_pem())
        return certificate

    def revoke(self, what: str, key: TlsKey, now: datetime | None = None) -> list[Entry]:
        """Put certificates on the revocation list, and return them.

        `what` is the name of a party, all of whose valid certificates are revoked, a serial number, or a file with a
        certificate.
        """
        now = now or datetime.now(UTC)
        with open_register(self.folder) as register:
            before = self.read_revocations(now)
            found = self._find(what, register.entries, before, now)
            revoked = [*before.parsed, *(revoked_now(int(entry.serial, 16), now) for entry in found)]
            content = sign_revocations(revoked, before.number + 1, self.certificate, key, now)
            write_whole(self.folder / REVOKED, content)
        return found

    def _consider(self, entries: Sequence[Entry], request: Request, renew: bool, now: datetime) -> list[str]:
        check_dates(self.certificate, now)
        revocations = self.read_revocations(now)
        for entry in entries:
            if entry.fingerprint == request.fingerprint and entry.name != request.name:
                raise InputError(
                    f"this key has a certificate for {entry.name!r}, and one organisation has one certificate; if "
                    f"{request.name!r} is another organisation, it has to make a key of its own"
                )
        own = [entry for entry in entries if entry.name == request.name]
        live = [entry for entry in own if entry.is_live(revocations, now)]
        if live and not renew:
            raise InputError(
                f"{request.name!r} has a certificate until {live[-1].end[:10]} (serial number {live[-1].serial}), and "
                "one organisation has one certificate; --renew makes another for the same organisation"
            )
        if renew and not own:
            raise InputError(f"{request.name!r} has no certificate that could be renewed; approve without --renew")
        if len(live) >= _MOST_LIVE:
            serials = " and ".join(entry.serial for entry in live)
            raise InputError(
                f"{request.name!r} has two valid certificates, with the serial numbers {serials}; first revoke the one "
                "that it no longer uses"
            )
        if live and live[0].use != request.use:
            raise InputError(
                f"the certificate of {request.name!r} is for a {live[0].use}, and this request is for a {request.use}; "
                "use another name"
            )
        names = list(dict.fromkeys(entry.name for entry in entries if entry.name != request.name))
        return [*_notes_on_renewal(request, own, live, revocations), *_notes_on_name(request.name, names)]

    def _find(self, what: str, entries: Sequence[Entry], revocations: Revocations, now: datetime) -> list[Entry]:
        """Return the entries of the certificates to revoke; raise InputError if there are none, or it is not clear."""
        serial = what.replace(":", "").lower().lstrip("0")
        named = [entry for entry in entries if entry.name == what]
        numbered = [entry for entry in entries if entry.serial == serial]
        path = Path(what)
        if "certificate" in kinds_in(path):
            certificate = read_certificates(path)[0]
            if certificate.authority or not is_issued(certificate, self.certificate):
                raise InputError(f"{path} was not signed by {self.certificate.shown}, which can revoke no other")
            numbered = [Entry.of(certificate)]
        if named and numbered and numbered[0] not in named:
            raise InputError(
                f"{what[:80]!a} is the name of one party, and stands for a certificate of another; use a serial number"
            )
        found = numbered or [entry for entry in named if entry.is_live(revocations, now)]
        if not found:
            known = "has no valid certificate" if named else "is neither a name nor a serial number in the register"
            raise InputError(f"{what[:80]!a} {known}; the certificates are listed in {self.folder / REGISTER}")
        for entry in numbered:
            if (moment := revocations.find(int(entry.serial, 16))) is not None:
                raise InputError(f"certificate {entry.serial} of {entry.name!r} was revoked at {shown_time(moment)}")
        return found


def _notes_on_renewal(
    request: Request, own: Sequence[Entry], live: Sequence[Entry], revocations: Revocations
) -> Iterator[str]:
    """Yield what to consider if a party already has or had a certificate."""
    same = [entry for entry in own if entry.fingerprint == request.fingerprint]
    if own:
        yield "The key is that of an earlier certificate." if same else "The key is new: compare its fingerprint."
    if any(revocations.find(int(entry.serial, 16)) for entry in same):
        yield "A certificate of this key was revoked: if the key was stolen, ask for a request with a new key."
    for entry in live:
        yield (
            f"The certificate {entry.serial} stays valid until {entry.end[:10]}: revoke it when {request.name!r} uses "
            "the new one."
        )


def _notes_on_name(name: str, others: Sequence[str]) -> Iterator[str]:
    """Yield what could be mistaken in a name, alone or beside others."""
    known = set(misleading(others))
    yield from (note for note in misleading([*others, name]) if note not in known)
