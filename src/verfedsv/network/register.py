"""The register of an authority: which certificates it has signed, one JSON object per line of approved.jsonl."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from pathlib import Path
from typing import IO

from verfedsv.errors import InputError
from verfedsv.network.certificates import Certificate
from verfedsv.network.revocations import Revocations
from verfedsv.untrusted import read_json

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

REGISTER = "approved.jsonl"


@dataclass(frozen=True)
class Entry:
    """A certificate that was signed. `serial` is in hexadecimal digits, `start` and `end` are times in ISO 8601."""

    name: str
    use: str
    hosts: tuple[str, ...]
    serial: str
    fingerprint: str
    sha256: str
    start: str
    end: str

    @classmethod
    def of(cls, certificate: Certificate) -> Entry:
        """Return the entry of a certificate."""
        return cls(
            name=certificate.name,
            use=certificate.uses[0],
            hosts=certificate.hosts,
            serial=f"{certificate.serial:x}",
            fingerprint=certificate.fingerprint,
            sha256=certificate.sha256,
            start=certificate.start.isoformat(),
            end=certificate.end.isoformat(),
        )

    def is_live(self, revocations: Revocations, now: datetime) -> bool:
        """Return whether the certificate is neither expired nor revoked."""
        return now <= datetime.fromisoformat(self.end) and revocations.find(int(self.serial, 16)) is None


class Register:
    """The entries of a register, open to append to; no other process can change it meanwhile."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        content = file.read()
        complete, _, _ = content.rpartition(b"\n")
        # What follows the last line break was interrupted before its certificate was written.
        self._size = len(complete) + 1 if complete else 0
        self._file = file
        self.entries: Sequence[Entry] = [
            _entry_in(line, f"line {number} of {path}") for number, line in enumerate(complete.splitlines(), 1)
        ]

    @contextmanager
    def adding(self, entry: Entry) -> Iterator[None]:
        """Add an entry; if the block, in which its certificate is written, fails, take it back."""
        self._file.seek(self._size)
        self._file.truncate()
        self._file.write(json.dumps(asdict(entry), ensure_ascii=True).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        try:
            yield
        except BaseException:
            self._file.truncate(self._size)
            raise


@contextmanager
def open_register(folder: Path) -> Iterator[Register]:
    """Open the register in the folder of an authority; wait while another process has it open."""
    path = folder / REGISTER
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        raise InputError(
            f"there is no {path}, the register of certificates, which is made with their authority; without it, one "
            "organisation could get two: restore it from a backup"
        ) from None
    with file:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield Register(path, file)


def _entry_in(line: bytes, what: str) -> Entry:
    content = read_json(line, what)
    names = {each.name for each in fields(Entry)}
    if not isinstance(content, dict) or content.keys() != names:
        raise InputError(f"{what} must be an object with {', '.join(sorted(names))}")
    hosts = content.pop("hosts")
    texts = [*content.values(), *(hosts if isinstance(hosts, list) else [None])]
    try:
        entry = Entry(hosts=tuple(hosts), **content)
        is_valid = all(isinstance(text, str) for text in texts) and datetime.fromisoformat(entry.end).tzinfo is not None
        is_valid = is_valid and re.fullmatch("[0-9a-f]{1,40}", entry.serial) is not None
    except (ValueError, TypeError):
        is_valid = False
    if not is_valid:
        raise InputError(f"{what} is damaged: restore the register from a backup")
    return entry
