"""PEM files: the blocks in one, and what to say if a file has another kind of block than was asked for."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, NamedTuple

from verfedsv.errors import InputError
from verfedsv.files import read_whole

Kind = Literal["certificate", "signing request", "revocation list", "private key", "public key"]

_KINDS: dict[str, Kind] = {
    "CERTIFICATE": "certificate",
    "X509 CERTIFICATE": "certificate",
    "CERTIFICATE REQUEST": "signing request",
    "NEW CERTIFICATE REQUEST": "signing request",
    "X509 CRL": "revocation list",
    "PUBLIC KEY": "public key",
    "PRIVATE KEY": "private key",
    "ENCRYPTED PRIVATE KEY": "private key",
    "EC PRIVATE KEY": "private key",
    "RSA PRIVATE KEY": "private key",
    "OPENSSH PRIVATE KEY": "private key",
}
"""The kinds of blocks by their labels. Others, such as the parameters before a key of openssl ecparam, are skipped."""

_LARGEST_FILE = 16 << 20
"""In bytes. A certificate takes about 1 kB; the revocation list of a large company can have megabytes."""


class Block(NamedTuple):
    """A block of a PEM file, with its first and last line."""

    kind: Kind
    content: bytes


def blocks_of(content: bytes) -> list[Block]:
    """Return the blocks of known kinds in a file, in their order; text between them is skipped."""
    found: list[Block] = []
    label, lines = "", [b""]
    for line in content.splitlines():
        if match := re.search(rb"-----BEGIN ([A-Z0-9 ]{1,40})-----$", line.rstrip()):
            label, lines = match[1].decode(), [match[0]]
        elif label:
            lines.append(line.rstrip())
            if lines[-1] == f"-----END {label}-----".encode():
                if label in _KINDS:
                    found.append(Block(_KINDS[label], b"\n".join([*lines, b""])))
                label = ""
    return found


def read_blocks(path: Path, kind: Kind) -> list[bytes]:
    """Return the blocks of a kind in a file, at least one; raise InputError if there is none, and say what there is."""
    try:
        blocks = blocks_of(read_whole(path, _LARGEST_FILE))
    except OSError as error:
        raise InputError(f"cannot read the {kind} {path}: {error.strerror}") from None
    wanted = [block.content for block in blocks if block.kind == kind]
    if wanted:
        return wanted
    if blocks:
        raise InputError(f"{path} is a {blocks[0].kind}; what is needed here is a {kind}")
    raise InputError(f"{path} has no {kind} in PEM; other formats (DER, PKCS#12) can be converted with openssl")


def kinds_in(path: Path) -> set[Kind]:
    """Return the kinds of blocks in a file; an empty set if it cannot be read."""
    try:
        return {block.kind for block in blocks_of(read_whole(path, _LARGEST_FILE))}
    except OSError:
        return set()
