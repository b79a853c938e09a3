import errno
import itertools

import numpy as np
import pytest

from verfedsv.alignment.shuffles import StoredArray, check_positions, random_permutation, store_permutation
from verfedsv.errors import InputError


@pytest.mark.parametrize(("n_rows", "at_once"), [(0, 8), (1, 8), (8, 8), (9, 8), (1000, 64), (1000, 999), (3, 1)])
def test_each_row_is_there_once(tmp_path, n_rows, at_once):
    """A stored permutation has all rows, in one portion or several, and leaves no other file."""
    stored = store_permutation(tmp_path / "rows.origin", n_rows, at_once)
    assert sorted(stored.read(slice(None)).tolist()) == list(range(n_rows))
    assert [*tmp_path.iterdir()] == [stored.path]
    assert stored.path.stat().st_size == 4 * n_rows


@pytest.mark.parametrize("at_once", [1, 2, 3])
def test_all_orders_are_equally_likely(tmp_path, at_once):
    """Of 3 rows in portions of 1, 2 or 3: chi-squared over 6 orders stays below what one of 10^9 trials exceeds."""
    counts = dict.fromkeys(itertools.permutations(range(3)), 0)
    for number in range(300):
        stored = store_permutation(tmp_path / str(number), 3, at_once)
        counts[tuple(stored.read(slice(None)).tolist())] += 1
    assert sum((count - 50) ** 2 / 50 for count in counts.values()) < 50


def test_rows_of_a_bucket_are_shuffled(tmp_path):
    """Half of the rows are larger than the one before, give or take six standard deviations."""
    rows = store_permutation(tmp_path / "rows", 4000, at_once=1000).read(slice(None)).astype(np.int64)
    assert abs((np.diff(rows) > 0).mean() - 0.5) < 6 * (1 / 12 / 4000) ** 0.5


def test_permutations_are_unpredictable(monkeypatch):
    """They depend on the random numbers of the operating system, and on nothing else."""
    assert not np.array_equal(random_permutation(1000), random_permutation(1000))
    monkeypatch.setattr("os.urandom", lambda n: bytes(range(8)) * (n // 8))
    np.testing.assert_array_equal(random_permutation(16), random_permutation(16))


def test_rows_are_written_and_read_in_any_order(tmp_path):
    """By slices and by numbers; what is read is a copy."""
    stored = StoredArray(tmp_path / "array", 5, np.uint8, 3)
    stored.write(np.array([4, 0]), np.array([[1, 2, 3], [4, 5, 6]]))
    stored.write(slice(1, 3), np.full((2, 3), 7))
    read = stored.read(slice(None))
    assert read.tolist() == [[4, 5, 6], [7, 7, 7], [7, 7, 7], [0, 0, 0], [1, 2, 3]]
    read[:] = 0
    assert stored.read(np.array([2, 4])).tolist() == [[7, 7, 7], [1, 2, 3]]
    stored.delete()
    stored.delete()
    assert not [*tmp_path.iterdir()]


def test_a_full_disk_is_an_error_at_once(tmp_path, monkeypatch):
    """Space is reserved when the file is made: a write to a mapping without space would end the process."""

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", fail, raising=False)
    with pytest.raises(OSError, match="No space left"):
        StoredArray(tmp_path / "array", 5, np.uint8)


@pytest.mark.parametrize("received", [np.zeros(3), np.zeros(2, np.uint32), np.zeros((3, 1), np.uint32)])
def test_positions_have_the_expected_shape(received):
    """What is not the expected number of positions is refused."""
    with pytest.raises(InputError, match=r"a part must be uint32 of shape \(3,\); received"):
        check_positions(received, 3)
