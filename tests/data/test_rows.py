import gzip

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from verfedsv.data.rows import align_rows, read_rows
from verfedsv.errors import DataError


def test_columns_are_found_by_name_and_type(tmp_path):
    """In any order; text that looks like numbers stays text, empty columns are missing values, others are named."""
    path = tmp_path / "new.csv.gz"
    path.write_bytes(gzip.compress(b"town,extra,id,age,gap,none\n0012,1,a,3,,\n ,2,b,true,,\n"))
    rows = read_rows("bank", path, "id", ["gap", "extra"], ["town", "none"])
    assert rows.data.columns == ("gap", "extra", "town", "none")
    np.testing.assert_array_equal(rows.data.numeric, [[np.nan, 1], [np.nan, 2]])
    assert rows.data.categorical.tolist() == [["0012", None], [None, None]]
    assert rows.ignored == ("age",)
    assert rows.ids.values.to_pylist() == ["a", "b"]


def test_parquet_files(tmp_path):
    """Categories are text, empty columns of any type, and booleans numbers."""
    table = pa.table(
        {
            "id": [1, 2],
            "kind": pa.array(["x", None]).dictionary_encode(),
            "is_new": [True, None],
            "nothing": pa.nulls(2),
            "empty": pa.nulls(2),
        }
    )
    pa.parquet.write_table(table, tmp_path / "new.parquet")
    rows = read_rows("a", tmp_path / "new.parquet", "id", ["is_new", "nothing"], ["kind", "empty"])
    np.testing.assert_array_equal(rows.data.numeric, [[1, np.nan], [np.nan, np.nan]])
    assert rows.data.categorical.tolist() == [["x", None], [None, None]]


def test_a_column_of_dates_that_was_text(tmp_path):
    """Parquet files state types; the error says what to write instead."""
    table = pa.table({"id": [1], "since": pa.array([3], pa.date32())})
    pa.parquet.write_table(table, tmp_path / "new.parquet")
    with pytest.raises(
        DataError, match=r"column 'since' held text in training, and here it is of type date32.*\. Write it as text"
    ):
        read_rows("a", tmp_path / "new.parquet", "id", [], ["since"])


def test_rows_are_aligned_by_id(tmp_path):
    """All ids, the first file's first; each file's rows in this order, and the numbers of those that it has."""
    files = []
    for name, rows in (("a", "3,30\n1,10\n"), ("b", "1,11\n9,99\n3,33\n"), ("c", "9,90\n")):
        (tmp_path / f"{name}.csv").write_text(f"id,x\n{rows}")
        files.append(read_rows(name, tmp_path / f"{name}.csv", "id", ["x"], []))
    ids, numbers, ordered = align_rows(files)
    assert ids.to_pylist() == ["3", "1", "9"]
    assert [own.tolist() for own in numbers] == [[0, 1], [0, 1, 2], [2]]
    assert [own.numeric.ravel().tolist() for own in ordered] == [[30, 10], [33, 11, 99], [90]]
