import numpy as np
import pytest

from verfedsv.alignment.intersection import Intersection
from verfedsv.errors import InputError


def random_points(n_points, seed):
    """Return points with zeros at the end, where texts of NumPy are cut."""
    points = np.random.default_rng(seed).integers(0, 256, (n_points, 32), np.uint8)
    points[:, -3:] *= np.random.default_rng(seed + 1).integers(0, 2, (n_points, 3), np.uint8)
    return points


@pytest.mark.parametrize("per_bucket", [10, 100, 10_000])
@pytest.mark.parametrize("n_sets", [2, 4])
def test_points_in_all_sets_are_found(tmp_path, per_bucket, n_sets):
    """Their positions are those of a search by brute force, in the order of the points, whatever the buckets."""
    universe, rng = random_points(900, 0), np.random.default_rng(1)
    sets = {str(number): universe[rng.permutation(900)[: 600 + 50 * number]] for number in range(n_sets)}
    intersection = Intersection(tmp_path, {name: len(points) for name, points in sets.items()}, per_bucket)
    for name, points in sets.items():
        for start in rng.permutation(range(0, len(points), 128)):
            intersection.add(name, int(start), points[start : start + 128])
    expected = sorted(set.intersection(*({row.tobytes() for row in points} for points in sets.values())))
    assert intersection.find() == len(expected) > 50
    for name, points in sets.items():
        halves = [intersection.positions(name, rows) for rows in (slice(0, 20), slice(20, len(expected)))]
        assert [points[position].tobytes() for position in np.concatenate(halves)] == expected


def test_nothing_in_common(tmp_path):
    """There are no positions then."""
    intersection = Intersection(tmp_path, {"a": 5, "b": 7})
    intersection.add("a", 0, random_points(5, 0))
    intersection.add("b", 0, random_points(7, 5))
    assert intersection.find() == 0
    assert len(intersection.positions("a", slice(0, 0))) == 0


def test_a_point_that_is_repeated(tmp_path):
    """Whose set has one twice is an error: it has repeated ids, or somebody changed it."""
    intersection = Intersection(tmp_path, {"a": 5, "b": 5})
    intersection.add("a", 0, random_points(5, 0))
    intersection.add("b", 0, random_points(5, 0)[[0, 1, 2, 3, 1]])
    with pytest.raises(InputError, match="the set of 'b' has a point twice"):
        intersection.find()
