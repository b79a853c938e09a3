"""`verfedsv join`: what is wrong with options is said before it connects, and what it prints at the end."""

import datetime as dt

import pyarrow as pa
import pyarrow.parquet
import pytest

from tests.cli.inprocess import call
from verfedsv.cli.join import share_in


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--column", "x", "--column", "nope"], "has no column 'nope'; it has id, x, day"),
        (["--column", "id"], "'id' is the column of ids or labels, not a feature"),
        ([], "column 'day' is of type date32[day]"),
    ],
)
def test_columns_are_looked_at_before_connecting(tmp_path, options, says):
    """Nobody listens there, and nobody is asked."""
    day = pa.array([dt.date(2026, 1, 1)] * 2)
    pyarrow.parquet.write_table(pa.table({"id": [1, 2], "x": [0.1, 0.2], "day": day}), tmp_path / "shop.parquet")
    own = ["--features", tmp_path / "shop.parquet", "--folder", tmp_path / "shop", "--name", "shop", "--insecure"]
    done = call("join", "127.0.0.1:1", *own, "--patience", "0", *options)
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "shop").exists()


@pytest.mark.parametrize(
    ("column", "says"),
    [
        (pa.array([f"person {own}" for own in range(60)]), "column 'x' is text with 60 different values in 60"),
        (pa.array([0.1, float("inf"), *[0.2] * 58]), "column 'x' has infinite numbers"),
    ],
)
def test_cells_are_looked_at_before_connecting(tmp_path, column, says):
    """What no training could take is refused, without a folder or a connection."""
    pyarrow.parquet.write_table(pa.table({"id": range(60), "x": column}), tmp_path / "shop.parquet")
    own = ["--features", tmp_path / "shop.parquet", "--folder", tmp_path / "shop", "--name", "shop", "--insecure"]
    done = call("join", "127.0.0.1:1", *own, "--patience", "0")
    assert done.returncode == 2
    assert says in done.stderr
    assert not (tmp_path / "shop").exists()


@pytest.mark.parametrize("name", ["", "a/b", "../b", "a\\b", " a", "\u200b"])
def test_names_that_no_folder_can_have(tmp_path, monkeypatch, name):
    """Nothing is made, by `join` or `doctor`; with a folder of its own, a client may have such a name."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.csv").write_text("id,x\n1,0.1\n2,0.2\n", encoding="utf-8")
    own = ["127.0.0.1:1", "--features", "shop.csv", "--name", name, "--insecure"]
    for command in (["join", *own, "--patience", "0"], ["doctor", *own]):
        done = call(*command)
        assert (done.returncode, "no folder can be named after" in done.stderr) == (2, True)
        assert [path.name for path in tmp_path.iterdir()] == ["shop.csv"]


@pytest.mark.parametrize(
    ("content", "share"),
    [
        (b'{"share": 0.25}', 0.25),
        (b'{"share": null}', None),
        (b'{"share": "all"}', None),
        (b"[1]", None),
        (b"{", None),
        (b"\xff", None),
        (b"[" * 10_000, None),
    ],
)
def test_a_share_is_read_from_a_file_of_anything(tmp_path, content, share):
    """The server may have sent anything under that name."""
    path = tmp_path / "value.json"
    path.write_bytes(content)
    assert share_in(path) == share
