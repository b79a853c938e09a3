import numpy as np
import pyarrow as pa
import pytest

from verfedsv.alignment import points
from verfedsv.alignment.points import check_points, hash_ids, multiply, random_scalar
from verfedsv.errors import InputError

GENERATOR = "e2f2ae0a6abc4e71a884a961c500515f58e30b6aa582dd8db6a65945e08d2d76"
MULTIPLES = {
    2: "6a493210f7499cd17fecb510ae0cea23a110e8d5b901f8acadd3095c73a3b919",
    3: "94741f5d5d52755ece4f23f044ee27d5d1ea1e2bd196b462166b16152a9d0259",
}
HASHED = {
    "Ristretto is traditionally a short shot of espresso coffee": (
        "3066f82a1a747d45120d1740f14358531a8f04bbffe6a819f86dfe50f44a0a46"
    ),
    "made with the normal amount of ground coffee but extracted with": (
        "f26e5b6f7d362d2d2a94c5d0e7602cb4773c95a2e5c31a64f133189fa76ed61b"
    ),
}


def as_points(*texts):
    return np.frombuffer(bytes.fromhex("".join(texts)), np.uint8).reshape(-1, 32)


@pytest.mark.parametrize("factor", MULTIPLES)
def test_points_are_multiplied_as_in_the_standard(factor):
    """The multiples of the generator are those of RFC 9496, appendix A.1."""
    result = multiply(as_points(GENERATOR), factor.to_bytes(32, "little"))
    assert result.tobytes().hex() == MULTIPLES[factor]


def test_ids_are_hashed_as_in_the_standard():
    """The points of texts hashed with SHA-512 are those of RFC 9496, appendix A.3; the prefix is a part of the text."""
    ids = pa.array(HASHED, pa.large_string())
    assert hash_ids(ids, b"").tobytes().hex() == "".join(HASHED.values())
    without_begin = pa.array([text[9:] for text in HASHED], pa.large_string())
    assert hash_ids(without_begin.slice(0, 1), b"Ristretto").tobytes().hex() == next(iter(HASHED.values()))


@pytest.mark.parametrize("n_points", [0, 1, 3, 1100])
def test_threads_change_nothing(n_points):
    """Any number of threads gives the same points, in their order, and neither does the order of two keys matter."""
    ids = pa.array([f"é{number}" for number in range(n_points)], pa.large_string())
    keys = random_scalar(), random_scalar()
    hashed = hash_ids(ids, b"x", 1)
    both = multiply(multiply(hashed, keys[0], 1), keys[1], 1)
    assert both.shape == (n_points, 32)
    assert len(np.unique(both, axis=0)) == n_points
    for n_threads in (None, 2, 3):
        np.testing.assert_array_equal(hash_ids(ids, b"x", n_threads), hashed)
        np.testing.assert_array_equal(multiply(multiply(hashed, keys[1], n_threads), keys[0], n_threads), both)


@pytest.mark.parametrize("bad", ["00" * 32, "ff" * 32, "01" + "00" * 31, "13" * 32])
def test_what_is_not_a_point_is_refused(bad):
    """Neutral element, not canonical, negative, or not on the curve: none is multiplied."""
    good = as_points(GENERATOR)
    received = np.concatenate([np.repeat(good, 2, axis=0), as_points(bad)])
    with pytest.raises(InputError, match="point 3 of the part is none of Ristretto255, or is neutral"):
        multiply(received, random_scalar())


@pytest.mark.parametrize("received", [np.zeros((3, 32)), np.zeros((2, 32), np.uint8), np.zeros((3, 31), np.uint8)])
def test_parts_have_the_expected_shape(received):
    """What is not bytes of the expected number of points is refused."""
    with pytest.raises(InputError, match=r"a part must be bytes of shape \(3, 32\); received"):
        check_points(received, 3)


def test_secret_numbers_differ():
    """Each session of each party has its own."""
    assert len({random_scalar() for _ in range(20)}) == 20


def test_how_to_install_what_is_missing(monkeypatch):
    """Without rbcl, the error names the extra."""
    monkeypatch.setitem(__import__("sys").modules, "rbcl", None)
    points._sodium.cache_clear()
    with pytest.raises(InputError, match=r"needs rbcl: pip install '\.\[net\]'"):
        random_scalar()
    monkeypatch.undo()
    assert len(random_scalar()) == 32


def test_the_copy_of_libsodium_is_deleted(tmp_path, monkeypatch):
    """Only if it is a temporary file, as an installed library must stay."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    for folder in ("temporary", "installed"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "tmpabc.so").touch()
        points._delete_copy(tmp_path / folder / "tmpabc.so")
    assert [path.parent.name for path in tmp_path.glob("*/*")] == ["installed"]
