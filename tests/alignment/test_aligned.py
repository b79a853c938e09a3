import json

import numpy as np
import pytest

from tests.alignment.parties import aligned_ids, parties_of
from verfedsv.alignment import align, make_ids, read_aligned, write_aligned
from verfedsv.errors import InputError

IDS = ["ann", "zoë", "l1\nl2", "bob", "x"]


@pytest.fixture(name="party", scope="module")
def make_party():
    """Return a party after an alignment in which it has three of five ids in common with another."""
    with parties_of(IDS, ["bob", "l1\nl2", "zoë", "y"]) as parties:
        align(parties)
        return parties[0]


@pytest.fixture(name="path")
def write_path(party, tmp_path):
    """Return the file in which the result is kept."""
    path = tmp_path / "bank.aligned"
    write_aligned(path, party.aligned, party.ids)
    return path


def test_what_was_aligned_is_kept(party, path):
    """Rows, session, checksum and sizes are read as they were written, and nothing else is left in the folder."""
    found = read_aligned(path, party.ids)
    assert found.rows.dtype == np.uint32
    assert found.rows.tolist() == party.aligned.rows.tolist()
    assert (found.session, found.checksum) == (party.aligned.session, party.aligned.checksum)
    assert found.sizes == party.aligned.sizes == {"a": 5, "b": 4}
    assert found.rates == {"a": 0.6, "b": 0.75}
    assert [*path.parent.iterdir()] == [path]


def test_rows_may_be_in_another_order(party, path):
    """A file that was sorted since has the same samples in the common order."""
    ids = make_ids(sorted(IDS))
    found = read_aligned(path, ids)
    assert [sorted(IDS)[row] for row in found.rows] == aligned_ids(party)


@pytest.mark.parametrize("ids", [IDS[:-1], [*IDS, "new"], [*IDS[:-1], "X"], IDS[::2]])
def test_a_changed_file_is_noticed(path, ids):
    """If ids were added, removed or corrected since, others may be common now."""
    with pytest.raises(
        InputError, match=r"the ids in bank\.csv have changed since they were aligned in .* align again"
    ):
        read_aligned(path, make_ids(ids, "bank.csv"))


def test_an_empty_intersection_is_kept(tmp_path):
    """A result without rows is written and read like others."""
    with parties_of(["1"], ["2"]) as parties:
        align(parties)
        write_aligned(tmp_path / "file", parties[0].aligned, parties[0].ids)
        assert read_aligned(tmp_path / "file", parties[0].ids).n_common == 0


def test_damage_is_noticed(path):
    """Whichever byte is changed or missing: the file is refused, or means the same."""
    content, ids = path.read_bytes(), make_ids(IDS)
    before = read_aligned(path, ids)
    rng, n_refused = np.random.default_rng(0), 0
    for position in range(0, len(content), 3):
        for changed in (
            content[:position],
            content[:position] + bytes([content[position] ^ int(rng.integers(1, 256))]) + content[position + 1 :],
        ):
            path.write_bytes(changed)
            try:
                found = read_aligned(path, ids)
            except InputError:
                n_refused += 1
            else:
                assert (found.rows.tolist(), found.checksum) == (before.rows.tolist(), before.checksum)
    assert n_refused > 0.5 * len(content)


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"n_common": 2},
        {"n_common": 2**60},
        {"n_common": -1},
        {"n_common": "3"},
        {"session": "xyz"},
        {"session": None},
        {"sizes": {"a": 2, "b": 4}},
        {"sizes": [5, 4]},
        {"sizes": {"a": "5"}},
        {"checksum": "0"},
        {"fingerprint": 0},
    ],
)
def test_a_changed_header_is_refused(path, change):
    """Each of its fields is checked."""
    line, _, body = path.read_bytes().partition(b"\n")
    path.write_bytes(json.dumps(json.loads(line) | change).encode() + b"\n" + body)
    with pytest.raises(InputError, match=r"Delete it and align again|have changed since"):
        read_aligned(path, make_ids(IDS))
