import bz2
import codecs
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet
import pytest

from verfedsv.data.reading import read_table
from verfedsv.errors import DataError


def save(folder, content, name="bank.csv"):
    """Write bytes, or a table as Parquet, and return the path."""
    path = folder / name
    if isinstance(content, pa.Table):
        path = path.with_suffix(".parquet")
        pa.parquet.write_table(content, path)
    else:
        path.write_bytes(content)
    return path


def test_categories_are_what_they_stand_for(tmp_path):
    """A dictionary column, as pandas writes categories, is read as text; missing values stay missing."""
    table = pa.table({"id": [1, 2, 3], "city": pa.array(["x", None, "y"]).dictionary_encode()})
    column = read_table(save(tmp_path, table), "id").column("city")
    assert column.type == pa.large_string()
    assert column.to_pylist() == ["x", None, "y"]


@pytest.mark.parametrize("is_csv", [True, False])
def test_blank_text_is_missing(tmp_path, is_csv):
    """Empty or only spaces, in columns of text."""
    content = b'id,city\n1,x\n2,\n3," "\n' if is_csv else pa.table({"id": [1, 2, 3], "city": ["x", "", " "]})
    assert read_table(save(tmp_path, content), "id").column("city").to_pylist() == ["x", None, None]


def test_decimals_are_numbers(tmp_path):
    """Parquet files from databases have columns of them."""
    table = pa.table({"id": [1, 2], "amount": pa.array([Decimal("1.25"), None])})
    assert read_table(save(tmp_path, table), "id").column("amount").to_pylist() == [1.25, None]


def test_ids_of_csv_files_are_text(tmp_path):
    """As they are written; other columns are numbers where they can be."""
    table = read_table(save(tmp_path, b"id,x\n0012,0012\n+7,7\n"), "id")
    assert table.column("id").to_pylist() == ["0012", "+7"]
    assert table.column("x").to_pylist() == [12, 7]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_utf_8_with_or_without_a_mark(tmp_path, encoding):
    """Also compressed."""
    path = save(tmp_path, bz2.compress("größe,id\nüber,1\n".encode(encoding)), "bank.csv.bz2")
    assert read_table(path, "id").to_pylist() == [{"größe": "über", "id": "1"}]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"id,x\n", "bank.csv has no rows"),
        (pa.table({"id": pa.array([], pa.int64())}), "bank.parquet has no rows"),
        (b"id,x,x,y,y\n1,2,3,4,5\n", "column names must be unique; repeated: 'x', 'y'"),
        (
            pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["id", "x", "x"]),
            "column names must be unique; repeated: 'x'",
        ),
        ("id,größe\n1,2\n".encode("latin-1"), "bank.csv is not in UTF-8; save it in that encoding"),
        ("id,x\nä,2\n".encode("latin-1"), "bank.csv is not in UTF-8"),
        (codecs.BOM_UTF16_LE + "id\tx\n1\t2\n".encode("utf-16-le"), "bank.csv is not in UTF-8"),
        (b"id;x\n1;2\n", "columns must be separated by commas; here they seem to be separated by ';'"),
        (b"id;x\n1;2,5\n", "columns must be separated by commas; here they seem to be separated by ';'"),
        (b"id\tx\n1\t2\n", r"columns must be separated by commas; here they seem to be separated by '\\t'"),
        (b"id,x\n1,2,3\n", "bank.csv cannot be read: .*Expected 2 columns, got 3: 1,2,3"),
        (b"id\n\x1b[31m\x07,2\n", "bank.csv cannot be read: .*Expected 1 columns, got 2; is it a file of this kind"),
    ],
)
def test_files_that_are_not_tables(tmp_path, content, message):
    """The error says what is wrong and what to do."""
    with pytest.raises(DataError, match=message):
        read_table(save(tmp_path, content), "id")
