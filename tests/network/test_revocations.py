from datetime import UTC, datetime

import pytest
from cryptography import x509

from tests.network.parties import DAY, damaged, make, revoked_list
from verfedsv import InputError
from verfedsv.network.revocations import parse_lists, read_revocations

ROOT = make("Root", is_authority=True)
OTHER = make("Root", is_authority=True)


@pytest.fixture
def path(tmp_path):
    """Return where a list is written."""
    return tmp_path / "revoked.crl"


def test_a_list_says_what_was_revoked_and_when(path):
    """By serial number; other certificates are not on it."""
    path.write_bytes(revoked_list(ROOT, [5, 7], number=3))
    (found,) = read_revocations(path, [OTHER.says, ROOT.says]).values()
    assert (found.number, found.serials()) == (3, [5, 7])
    assert abs(found.find(7) - datetime.now(UTC)) < DAY / 1440
    assert found.find(6) is None


def test_lists_of_several_authorities_are_kept_apart(path):
    """Serial numbers are those of one authority."""
    path.write_bytes(revoked_list(ROOT, [5]) + revoked_list(OTHER, [6]))
    lists = read_revocations(path, [ROOT.says, OTHER.says])
    assert {key: each.serials() for key, each in lists.items()} == {ROOT.says.sha256: [5], OTHER.says.sha256: [6]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (revoked_list(OTHER, [5]), r"is not signed by 'Root'"),
        (revoked_list(make("Former", key=ROOT.key, is_authority=True), [5]), r"is not signed by 'Root'"),
        (revoked_list(ROOT, [5], end=datetime.now(UTC) - DAY), "was to be replaced by a newer list before"),
        (revoked_list(ROOT, [5], extension=x509.DeltaCRLIndicator(1)), "is not a complete list"),
        (damaged(revoked_list(ROOT, [5])), "is not a revocation list that can be read"),
        (ROOT.pem, "is a certificate; what is needed here is a revocation list"),
        (b"", "has no revocation list in PEM"),
    ],
    ids=["another authority", "another name", "out of date", "only changes", "damaged", "a certificate", "empty"],
)
def test_a_list_that_cannot_be_relied_on_is_refused(path, content, message):
    """Also if another authority of that name signed it."""
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_revocations(path, [ROOT.says])


def test_a_list_is_read_without_its_authority(path):
    """To show it."""
    path.write_bytes(revoked_list(ROOT, []))
    (found,) = parse_lists(path)
    assert (found.number, found.serials(), found.is_signed_by(ROOT.says), found.is_signed_by(OTHER.says)) == (
        1,
        [],
        True,
        False,
    )
