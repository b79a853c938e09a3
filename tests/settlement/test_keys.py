import base64
import os
import stat

import pytest
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x448 import X448PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from verfedsv import InputError
from verfedsv.settlement.keys import fingerprint, is_signed, new_keys, raw, read_private_key, read_public_key


def test_a_pair_of_keys_signs_and_checks(tmp_path):
    """The public key belongs to the private one, which only its owner can read."""
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
    """This holds for both files; if one exists, the other is not made."""
    private, public = new_keys(tmp_path / "a.b")
    before = private.read_bytes()
    with pytest.raises(InputError, match=r"a.b.key exists"):
        new_keys(tmp_path / "a.b")
    assert private.read_bytes() == before
    private.unlink()
    with pytest.raises(InputError, match=r"a.b.pub exists"):
        new_keys(tmp_path / "a.b")
    assert list(tmp_path.iterdir()) == [public]


def test_a_pair_is_written_whole_or_not_at_all(tmp_path, monkeypatch):
    """If the disk is full before the public key is written, the private one is removed."""
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
    """A key of another kind, the other half of a pair, and a file that is no key are refused."""
    private, public = new_keys(tmp_path / "mine")
    with pytest.raises(InputError, match="is a public key; sign with the private one"):
        read_private_key(public)
    with pytest.raises(InputError, match=r"cannot read the key .*: No such file"):
        read_private_key(tmp_path / "none.key")
    with pytest.raises(InputError, match=r"No such file or directory; ask its owner for it"):
        read_public_key(tmp_path / "none.pub")
    other = generate_private_key(SECP256R1())
    private.write_bytes(other.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public.write_bytes(other.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(InputError, match=r"mine\.key is a private key, which only its owner should have"):
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
    """A fingerprint has eight groups of four digits."""
    assert fingerprint(bytes(32)) != fingerprint(bytes(31) + b"\1")
    assert len(fingerprint(bytes(32)).split("-")) == 8


WEAK = [0, 1, 2**255 - 20, 2**255 - 19, 2**255 - 18, 2**255 - 1]
ORDER_8 = [
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
]


@pytest.mark.parametrize(
    "key", [*(number.to_bytes(32, "little").hex() for number in WEAK), *ORDER_8], ids=lambda key: key[:6]
)
@pytest.mark.parametrize("sign", [0, 128])
def test_keys_that_anybody_can_sign_for_are_refused(tmp_path, key, sign):
    """These are the eight points of small order, with either sign, and encodings that are not canonical."""
    weak = bytes.fromhex(key)
    weak = weak[:-1] + bytes([weak[-1] | sign])
    assert not is_signed(weak, bytes.fromhex("01" + 63 * "00"), b"any text")
    path = tmp_path / "weak.pub"
    public = Ed25519PublicKey.from_public_bytes(weak)
    path.write_bytes(public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))
    with pytest.raises(InputError, match="is a key for which anyone can forge signatures"):
        read_public_key(path)


def test_a_key_of_small_order_would_sign_anything():
    """The cryptography library accepts one signature by the neutral element for every text."""
    neutral = (1).to_bytes(32, "little")
    signature = neutral + bytes(32)
    Ed25519PublicKey.from_public_bytes(neutral).verify(signature, b"pay telco everything")
    assert not is_signed(neutral, signature, b"pay telco everything")


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes")
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660, 0o777])
def test_a_private_key_that_others_can_read_is_refused(tmp_path, mode):
    """The message has the command that fixes it."""
    private, _ = new_keys(tmp_path / "mine")
    private.chmod(mode)
    with pytest.raises(InputError, match=rf"\(mode {mode:o}\), and could sign with it; .* chmod 600 "):
        read_private_key(private)
    private.chmod(0o400)
    read_private_key(private)


def test_a_key_that_the_library_stumbles_over_is_refused(tmp_path):
    """An X448 key that claims to be Ed448 is an internal error of the library."""
    whole = X448PrivateKey.generate().private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    path = tmp_path / "x.key"
    for content in (whole, whole.replace(b"\x2b\x65\x6f", b"\x2b\x65\x71")):
        text = base64.b64encode(content).decode()
        path.write_text(f"-----BEGIN PRIVATE KEY-----\n{text}\n-----END PRIVATE KEY-----\n")
        path.chmod(0o600)
        with pytest.raises(InputError, match=r"is not an Ed25519 key|is not a private key"):
            read_private_key(path)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes")
@pytest.mark.parametrize("read", [read_public_key, read_private_key])
def test_what_is_not_a_file_of_a_key_is_not_waited_for(tmp_path, read):
    """A pipe would block; a large file is not read."""
    os.mkfifo(tmp_path / "pipe.pub")
    with pytest.raises(InputError, match=r"cannot read the key .*pipe\.pub: it is not a regular file"):
        read(tmp_path / "pipe.pub")
    (tmp_path / "large.pub").write_bytes(bytes(10_001))
    with pytest.raises(
        InputError, match=r"cannot read the key .*large\.pub: it is larger than 10,000 bytes, which no key is$"
    ):
        read(tmp_path / "large.pub")
