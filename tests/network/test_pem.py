import pytest

from verfedsv import InputError
from verfedsv.network.pem import blocks_of, kinds_in, read_blocks

CERTIFICATE = b"-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
KEY = b"-----BEGIN EC PRIVATE KEY-----\nMHcC\n-----END EC PRIVATE KEY-----\n"
PARAMETERS = b"-----BEGIN EC PARAMETERS-----\nBggq\n-----END EC PARAMETERS-----\n"


def test_blocks_are_found_between_other_text():
    """As openssl writes them: with text before a certificate, parameters before a key, and any line ends."""
    text = b"Certificate:\n    Version: 3\n" + CERTIFICATE + PARAMETERS + KEY
    assert blocks_of(text) == blocks_of(text.replace(b"\n", b"\r\n")) == blocks_of(b"\xef\xbb\xbf" + CERTIFICATE + KEY)
    assert [block.kind for block in blocks_of(text)] == ["certificate", "private key"]
    assert blocks_of(text)[0].content == CERTIFICATE


def test_a_block_without_an_end_is_none():
    """It may have been truncated; what follows it is found."""
    assert blocks_of(CERTIFICATE[:40]) == []
    assert [block.kind for block in blocks_of(CERTIFICATE[:40] + KEY)] == ["private key"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (KEY, "is a private key; what is needed here is a certificate"),
        (b"", "has no certificate in PEM"),
        (b"\x30\x82\x01\x00", "has no certificate in PEM; other formats .DER, PKCS#12. can be converted with openssl"),
    ],
)
def test_the_wrong_file_is_named_for_what_it_is(tmp_path, content, message):
    """So that whoever mixed up two files knows which is which."""
    (tmp_path / "x.crt").write_bytes(content)
    with pytest.raises(InputError, match=rf"x\.crt {message}"):
        read_blocks(tmp_path / "x.crt", "certificate")


def test_a_file_that_is_missing(tmp_path):
    """It is an error that names the file, or has no kinds."""
    with pytest.raises(InputError, match=r"cannot read the certificate .*x\.crt: No such file"):
        read_blocks(tmp_path / "x.crt", "certificate")
    assert kinds_in(tmp_path / "x.crt") == set()
