import os
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from verfedsv import InputError
from verfedsv.settlement.keys import fingerprint, is_signed, new_keys, raw, read_private_key, read_public_key


def test_a_pair_of_keys_signs_and_checks(tmp_path):
    """The public key is that of the private one; only its owner can read that."""
    private, public = new_keys(tmp_path / "consortium")
    assert (private.name, public.name) == ("consortium.key", "consortium.pub")
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    key = read_private_key(private)
    assert read_public_key(public) == read_public_key(private, may_be_private=True) == raw(key.public_key())
    signature = key.sign(b"text")
    assert is_signed(read_public_key(public), signature, b"text")
    assert not is_signed(read_public_key(public), signature, b"texT")
    assert not is_signed(read_public_key(public), signature[:-1], b"text")
    assert not is_signed(b"short", signature, b"text")


def test_keys_are_never_overwritten(tmp_path):
    """Neither of the two; and if one is there, the other is not made."""
    private, public = new_keys(tmp_path / "a.b")
    before = private.read_bytes()
    with pytest.raises(InputError, match=r"a.b.key is already there"):
        new_keys(tmp_path / "a.b")
    assert private.read_bytes() == before
    private.unlink()
    with pytest.raises(InputError, match=r"a.b.pub is already there"):
        new_keys(tmp_path / "a.b")
    assert list(tmp_path.iterdir()) == [public]


def test_a_pair_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """If there is no room for the public key, the private one does not stay and stand in the way of another try."""
    write = os.fdopen

    def full_disk(descriptor, mode):
        file = write(descriptor, mode)
        if len(list(tmp_path.iterdir())) == 2:
            file.close()
            raise OSError(28, "No space left on device")
        return file

    with monkeypatch.context() as patched:
        patched.setattr(os, "fdopen", full_disk)
        with pytest.raises(InputError, match=r"cannot write .*mine.pub: No space left"):
            new_keys(tmp_path / "mine")
    assert list(tmp_path.iterdir()) == []
    new_keys(tmp_path / "mine")


def test_what_is_no_key_is_refused(tmp_path):
    """Of another kind, the other half, or none at all."""
    private, public = new_keys(tmp_path / "mine")
    with pytest.raises(InputError, match="the private key is wanted, not the public one"):
        read_private_key(public)
    with pytest.raises(InputError, match=r"cannot read the key .*: No such file"):
        read_private_key(tmp_path / "none.key")
    other = generate_private_key(SECP256R1())
    private.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(InputError, match=r"mine\.key is a private key, which nobody but its owner should have"):
        read_public_key(private)
    for read, path in ((read_private_key, private), (read_public_key, public)):
        with pytest.raises(InputError, match="not an Ed25519 key"):
            read(path)
    public.write_text("hello")
    with pytest.raises(InputError, match="is not a key in PEM"):
        read_public_key(public)
    with pytest.raises(InputError, match=r"cannot write .*: No such file or directory"):
        new_keys(tmp_path / "nowhere" / "mine")


def test_fingerprints_differ():
    """Eight groups of four digits, of the key alone."""
    assert fingerprint(bytes(32)) != fingerprint(bytes(31) + b"\1")
    assert len(fingerprint(bytes(32)).split("-")) == 8
