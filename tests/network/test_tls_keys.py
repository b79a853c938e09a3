import os
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from tests.network.parties import NOBODY, openssl
from verfedsv import InputError
from verfedsv.network.tls_keys import fingerprint, new_key, read_key, write_key
from verfedsv.settlement.keys import new_keys, read_private_key

SECRET = b"four words are enough"
P384 = ec.generate_private_key(ec.SECP384R1())
RSA = rsa.generate_private_key(65537, 2048)


def write(path, key, form=PrivateFormat.PKCS8, encryption=None, prefix=b""):
    """Write a key in some form, for its owner alone."""
    path.write_bytes(prefix + key.private_bytes(Encoding.PEM, form, encryption or NoEncryption()))
    path.chmod(0o600)
    return path


@pytest.mark.parametrize(
    "key", [new_key(), ec.generate_private_key(ec.SECP384R1()), RSA], ids=["P-256", "P-384", "RSA"]
)
@pytest.mark.parametrize("form", [PrivateFormat.PKCS8, PrivateFormat.TraditionalOpenSSL])
@pytest.mark.parametrize("encryption", [NoEncryption(), BestAvailableEncryption(SECRET)], ids=["plain", "encrypted"])
def test_keys_of_all_common_kinds_are_read(tmp_path, key, form, encryption):
    """ECDSA and RSA, PKCS#8 and traditional, with and without a passphrase."""
    path = write(tmp_path / "x.key", key, form, encryption)
    asked = []

    def passphrase(path):
        asked.append(path)
        return SECRET

    assert fingerprint(read_key(path, passphrase).public_key()) == fingerprint(key.public_key())
    assert asked == ([path] if isinstance(encryption, BestAvailableEncryption) else [])


def test_a_key_after_its_parameters_is_read(tmp_path):
    """As openssl ecparam -genkey writes them."""
    parameters = b"-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n"
    key = new_key()
    path = write(tmp_path / "x.key", key, PrivateFormat.TraditionalOpenSSL, prefix=parameters)
    assert read_key(path, NOBODY).private_numbers() == key.private_numbers()


def test_a_written_key_is_private_and_encrypted(tmp_path):
    """Its owner alone can read the file, and only with the passphrase; an existing file stays."""
    key, path = new_key(), tmp_path / "x.key"
    write_key(path, key, SECRET)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert b"ENCRYPTED PRIVATE KEY" in path.read_bytes()
    assert read_key(path, lambda _: SECRET).private_numbers() == key.private_numbers()
    with pytest.raises(InputError, match=r"cannot write .*x\.key: File exists"):
        write_key(path, new_key(), None)
    with pytest.raises(InputError, match=r"cannot decrypt .*x\.key: the passphrase is wrong, or the file is damaged"):
        read_key(path, lambda _: b"five words are too many")
    with pytest.raises(InputError, match=r"x\.key is encrypted, and nobody can be asked"):
        read_key(path, NOBODY)


@pytest.mark.parametrize("passphrase", [b"", b"eleven char", b"elf Zeichen"])
def test_a_short_passphrase_is_refused(tmp_path, passphrase):
    """Nothing is written: it would be found by trying."""
    with pytest.raises(InputError, match=rf"at least 12 characters; received {len(passphrase)}"):
        write_key(tmp_path / "x.key", new_key(), passphrase)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (ec.generate_private_key(ec.SECP521R1()), "is a key on the curve secp521r1; TLS in gRPC takes ECDSA on P-256"),
        (ec.generate_private_key(ec.SECP256K1()), "is a key on the curve secp256k1"),
        (rsa.generate_private_key(65537, 1024), "is an RSA key of 1024 bits; .* at least 2048 bits"),  # noqa: S505
    ],
    ids=["P-521", "secp256k1", "RSA-1024"],
)
def test_keys_that_tls_does_not_take_are_refused(tmp_path, key, message):
    """With what it does take: otherwise, a handshake would fail without a reason."""
    with pytest.raises(InputError, match=message):
        read_key(write(tmp_path / "x.key", key), NOBODY)


def test_keys_for_tls_and_for_statements_are_not_mixed_up(tmp_path):
    """Each is refused where the other belongs, and the message names the command for the other."""
    statements, public = new_keys(tmp_path / "statements")
    with pytest.raises(InputError, match=r"Ed25519 key: that is for signing statements.*verfedsv keys request"):
        read_key(statements, NOBODY)
    with pytest.raises(InputError, match=r"keys for TLS sign no statements; make one: verfedsv keys new"):
        read_private_key(write(tmp_path / "tls.key", new_key()))
    with pytest.raises(InputError, match="is a public key; what is needed here is a private key"):
        read_key(public, NOBODY)


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes")
@pytest.mark.parametrize("mode", [0o640, 0o604])
def test_a_key_that_others_can_read_is_refused(tmp_path, mode):
    """As keys for statements are."""
    path = write(tmp_path / "x.key", new_key())
    path.chmod(mode)
    with pytest.raises(InputError, match=rf"can read the private key .* \(mode {mode:o}\), and could pass for"):
        read_key(path, NOBODY)


def test_a_damaged_key_is_refused(tmp_path):
    """It is not taken for one that is encrypted."""
    path = write(tmp_path / "x.key", new_key())
    lines = path.read_bytes().splitlines()
    path.write_bytes(b"\n".join([lines[0], lines[1][:20], lines[-1]]))
    with pytest.raises(InputError, match=r"x\.key is not a private key that can be read; it may be damaged"):
        read_key(path, NOBODY)


def test_openssl_computes_the_same_fingerprint(tmp_path):
    """So a party that has no verfedsv can compare its key."""
    path = write(tmp_path / "x.key", key := new_key())
    digest = openssl("sha256", "-r", content=openssl("pkey", "-in", path, "-pubout", "-outform", "DER"))
    assert digest.decode()[:32] == fingerprint(key.public_key()).replace("-", "")


@pytest.mark.parametrize("options", [["-scrypt"], ["-v2", "aes-256-cbc", "-iter", "600000"]], ids=["scrypt", "pbkdf2"])
def test_keys_that_openssl_encrypted_more_slowly_are_read(tmp_path, options):
    """A passphrase that is harder to guess, for those who want it."""
    write(tmp_path / "x.key", key := new_key())
    files = "-in", tmp_path / "x.key", "-out", tmp_path / "y.key"
    openssl("pkcs8", "-topk8", *files, *options, "-passout", f"pass:{SECRET.decode()}")
    (tmp_path / "y.key").chmod(0o600)
    assert read_key(tmp_path / "y.key", lambda _: SECRET).private_numbers() == key.private_numbers()
