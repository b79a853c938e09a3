"""Private keys for TLS: ECDSA on P-256, or any kind of an existing PEM file that gRPC can use."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

from cryptography.exceptions import InternalError, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes, PublicKeyTypes
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)

from verfedsv.errors import InputError
from verfedsv.files import refuse_readable, write_new
from verfedsv.network.pem import read_blocks
from verfedsv.texts import grouped

TlsKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey

Passphrase = Callable[[Path], bytes]
"""Returns the passphrase of a key file; called only if the key is encrypted."""

KEY_ERRORS = ValueError, TypeError, UnsupportedAlgorithm, InternalError
"""What the library raises for a key that is damaged, or of a kind that it does not know."""

SHORTEST_PASSPHRASE = 12
"""In characters. The library makes the encrypting key of it by only 2,048 rounds of PBKDF2: guessing is cheap."""

_SMALLEST_RSA = 2048


def new_key() -> ec.EllipticCurvePrivateKey:
    """Return a new key on P-256. TLS in gRPC takes no Ed25519: it ends in NO_COMMON_SIGNATURE_ALGORITHMS."""
    return ec.generate_private_key(ec.SECP256R1())


def write_key(path: Path, key: TlsKey, passphrase: bytes | None) -> None:
    """Write a new file that only its owner can read, encrypted if there is a passphrase."""
    if passphrase is not None:
        check_new_passphrase(passphrase)
    write_new(path, _as_pem(key, BestAvailableEncryption(passphrase) if passphrase else NoEncryption()), 0o600)


def as_pem(key: TlsKey) -> bytes:
    """Return a key in PEM, without a passphrase."""
    return _as_pem(key, NoEncryption())


def _as_pem(key: TlsKey, encryption: KeySerializationEncryption) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def check_new_passphrase(passphrase: bytes) -> None:
    """Raise InputError if a passphrase is too short to encrypt a key with."""
    n_characters = len(passphrase.decode(errors="replace"))
    if n_characters < SHORTEST_PASSPHRASE:
        raise InputError(
            f"a passphrase must have at least {SHORTEST_PASSPHRASE} characters; received {n_characters}. Several words "
            "are easy to remember"
        )


def read_key(path: Path, passphrase: Passphrase) -> TlsKey:
    """Return the private key in a file; raise InputError if TLS cannot use it, or others can read it."""
    key = read_any_key(path, passphrase)
    check_kind(key.public_key(), str(path))
    assert isinstance(key, TlsKey)  # noqa: S101  # for mypy
    return key


def read_any_key(path: Path, passphrase: Passphrase) -> PrivateKeyTypes:
    """Return the private key in a file, of any kind; raise InputError if there is none, or others can read it."""
    content = read_blocks(path, "private key")[0]
    refuse_readable(path, "the private key", "pass for its owner")
    try:
        return load_pem_private_key(content, password=None)
    except TypeError:  # the only way to learn that a key of any format is encrypted
        try:
            return load_pem_private_key(content, password=passphrase(path))
        except KEY_ERRORS as error:
            if isinstance(error, InputError):
                raise
            raise InputError(f"cannot decrypt {path}: the passphrase is wrong, or the file is damaged") from None
    except KEY_ERRORS:
        raise InputError(f"{path} is not a private key that can be read; it may be damaged") from None


def check_kind(public_key: object, what: str) -> None:
    """Raise InputError unless gRPC's TLS can use such a key."""
    if isinstance(public_key, ed25519.Ed25519PublicKey):
        raise InputError(
            f"{what} is an Ed25519 key: that is for signing statements, and TLS needs another. verfedsv keys request "
            "makes one"
        )
    if isinstance(public_key, rsa.RSAPublicKey):
        if public_key.key_size >= _SMALLEST_RSA:
            return
        kind = f"an RSA key of {public_key.key_size} bits"
    elif isinstance(public_key, ec.EllipticCurvePublicKey):
        if isinstance(public_key.curve, ec.SECP256R1 | ec.SECP384R1):
            return
        kind = f"a key on the curve {public_key.curve.name}"
    else:
        kind = "a key of another kind"
    raise InputError(
        f"{what} is {kind}; TLS in gRPC takes ECDSA on P-256 or P-384, and RSA of at least {_SMALLEST_RSA} bits"
    )


def fingerprint(public_key: PublicKeyTypes) -> str:
    """Return what people compare on the phone: half of the SHA-256 of a public key, as certificates hold it.

    It is the same for a private key, the request for a certificate and all certificates of that key.
    """
    content = public_key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return grouped(hashlib.sha256(content).hexdigest()[:32])
