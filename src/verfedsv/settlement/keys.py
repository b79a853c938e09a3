"""Keys to sign statements with: Ed25519, in PEM files."""

from __future__ import annotations

import errno
import hashlib
from pathlib import Path

from cryptography.exceptions import InternalError, InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from verfedsv.errors import InputError
from verfedsv.files import read_whole, refuse_readable, write_new
from verfedsv.texts import grouped

PRIVATE, PUBLIC = ".key", ".pub"
"""The endings of the two files of a pair of keys."""

_NO_KEY = ValueError, TypeError, UnsupportedAlgorithm, InternalError
"""What reading a file that is not a key, or is damaged, raises."""

_LARGEST_FILE = 10_000
"""In bytes; a key takes about 120."""

_P = 2**255 - 19
_ORDER_8 = 0x7A03AC9277FDC74EC6CC392CFA53202A0F67100D760B3CBA4FD84D3D706A17C7
_SMALL_ORDER = {0, 1, _P - 1, _ORDER_8, _P - _ORDER_8}
"""The y coordinates of the eight points of small order: with such a key, one signature is valid for every text."""


def new_keys(name: Path) -> tuple[Path, Path]:
    """Write a new pair of keys, NAME.key, which only its owner may read, and NAME.pub; return both paths.

    An existing file is never overwritten: nobody can sign again with a lost key.
    """
    private, public = (name.with_name(name.name + ending) for ending in (PRIVATE, PUBLIC))
    for path in (private, public):
        if path.exists():
            raise InputError(f"{path} exists, and a key is never overwritten; choose another name")
    key = Ed25519PrivateKey.generate()
    secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    write_new(private, secret, 0o600)
    try:
        write_new(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    except BaseException:
        private.unlink()
        raise
    return private, public


def read_private_key(path: Path) -> Ed25519PrivateKey:
    """Return the key in a file that `new_keys` wrote; raise InputError if it is not one, or others can read it."""
    content = _read(path)
    try:
        key = load_pem_private_key(content, password=None)
    except _NO_KEY:
        if path.suffix == PUBLIC:
            raise InputError(f"{path} is a public key; sign with the private one") from None
        raise InputError(
            f"{path} is not a private key without a passphrase in PEM; make one: verfedsv keys new"
        ) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise InputError(
            f"{path} is not an Ed25519 key, and keys for TLS sign no statements; make one: verfedsv keys new"
        )
    refuse_readable(path, "the private key", "sign with it")
    return key


def read_public_key(path: Path, *, may_be_private: bool = False) -> bytes:
    """Return the 32 bytes of the public key in a file; raise InputError unless it can be trusted.

    With `may_be_private`, the file may also hold the private key of the pair.
    """
    content = _read(path)
    if b"PRIVATE KEY-----" in content:
        if may_be_private:
            return raw(read_private_key(path).public_key())
        raise InputError(
            f"{path} is a private key, which only its owner should have; name the public one, which ends in {PUBLIC}"
        )
    try:
        key = load_pem_public_key(content)
    except _NO_KEY:
        raise InputError(f"{path} is not a key in PEM, as verfedsv keys new writes it") from None
    if not isinstance(key, Ed25519PublicKey):
        raise InputError(f"{path} is not an Ed25519 key")
    if is_weak(raw(key)):
        raise InputError(
            f"{path} is a key for which anyone can forge signatures (a point of small order); ask for another"
        )
    return raw(key)


def is_weak(public_key: bytes) -> bool:
    """Return whether a key is of small order, or not in canonical form: no honest program makes such a key."""
    second = int.from_bytes(public_key, "little") % 2**255
    return second >= _P or second in _SMALL_ORDER


def is_key(content: bytes) -> bool:
    """Return whether a file is a key of either kind in PEM."""
    return content.lstrip().startswith(b"-----BEGIN")


def raw(key: Ed25519PublicKey) -> bytes:
    """Return the 32 bytes of a public key."""
    return key.public_bytes(Encoding.Raw, PublicFormat.Raw)


def fingerprint(public_key: bytes) -> str:
    """Return what two people compare on the phone: half of the SHA-256 of a public key.

    >>> fingerprint(bytes(32))
    '6668-7aad-f862-bd77-6c8f-c18b-8e9f-8e20'
    """
    return grouped(hashlib.sha256(public_key).hexdigest()[:32])


def is_signed(public_key: bytes, signature: bytes, content: bytes) -> bool:
    """Return whether a signature is that of the content by the owner of the key."""
    if is_weak(public_key):
        return False
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


def _read(path: Path) -> bytes:
    try:
        content = read_whole(path, _LARGEST_FILE)
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise InputError(f"cannot read the key {path}: {error.strerror}, which no key is") from None
        hint = "ask its owner for it" if path.suffix == PUBLIC else "make one: verfedsv keys new"
        raise InputError(f"cannot read the key {path}: {error.strerror}; {hint}") from None
    if b"-----BEGIN CERTIFICATE" in content and b"KEY-----" not in content:
        raise InputError(f"{path} is for TLS; statements are signed and checked with other keys: verfedsv keys new")
    return content
