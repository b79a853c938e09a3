import hashlib

import numpy as np
import pyarrow as pa
import pytest

from verfedsv.alignment import aligned_checksum, check_checksums, digests
from verfedsv.alignment.digests import checksum_of, fingerprint, portions
from verfedsv.errors import InputError

IDS = ["ann", "bob", "zoë", "12"]


def test_the_checksum_is_that_of_the_pseudonyms_in_their_order():
    """SHA-256 over the SHA-256 of each id, both with prefixes that state purpose and session."""
    session = bytes(range(32))

    def begin(purpose):
        return b"verfedsv alignment 1, " + purpose + b", 32 bytes: " + session

    pseudonyms = b"".join(hashlib.sha256(begin(b"pseudonym") + name.encode()).digest() for name in IDS)
    assert aligned_checksum(IDS, session) == hashlib.sha256(begin(b"order") + pseudonyms).hexdigest()


@pytest.mark.parametrize(
    "others", [IDS[::-1], IDS[:-1], [*IDS, "x"], ["annb", "ob", "zoë", "12"], ["Ann", "bob", "zoë", "12"], []]
)
def test_other_ids_have_another_checksum(others):
    """Other ids, other order, or the same text divided differently."""
    assert aligned_checksum(others) != aligned_checksum(IDS)


def test_sessions_have_their_own_checksums():
    """So that nobody can link those of two alignments."""
    checksums = {aligned_checksum(IDS, session) for session in (b"", bytes(32), bytes(31) + b"x")}
    assert len(checksums) == 3


def test_ids_are_taken_some_at_a_time(monkeypatch):
    """Portions change neither checksum nor fingerprint, and may be in the order of given rows."""
    ids, rows = pa.array(IDS, pa.large_string()), np.array([2, 0, 3], np.uint32)
    before = aligned_checksum(IDS), fingerprint(ids)
    monkeypatch.setattr(digests, "_AT_ONCE", 3)
    assert (aligned_checksum(IDS), fingerprint(ids)) == before
    assert [part.to_pylist() for part in portions(ids)] == [IDS[:3], IDS[3:]]
    assert checksum_of(portions(ids, rows)) == aligned_checksum(["zoë", "ann", "12"])


def test_the_fingerprint_does_not_depend_on_the_order():
    """A file that was sorted has the same; one that lost, gained or replaced an id has another."""
    same, others = [IDS, IDS[::-1]], [IDS[:-1], [*IDS, "x"], [*IDS[:-1], "13"]]
    found = [fingerprint(pa.array(ids, pa.large_string())) for ids in (*same, *others)]
    assert found[0] == found[1]
    assert len(set(found)) == 4


def test_differing_checksums_are_named():
    """The error says who differs from the first."""
    check_checksums({"bank": "1", "telco": "1"})
    with pytest.raises(InputError, match="the rows of 'telco' and 'shop' are not the samples of 'bank' in the same"):
        check_checksums({"bank": "1", "telco": "2", "clinic": "1", "shop": "2"})
