import pyarrow as pa
import pyarrow.parquet
import pytest

from verfedsv.data.ids import find_common, read_ids
from verfedsv.data.reading import read_table
from verfedsv.errors import DataError


def ids_of(folder, *files):
    """Return the ids of files: text is written as CSV, line by line; arrays as Parquet."""
    read = []
    for number, content in enumerate(files):
        if isinstance(content, str):
            path = folder / f"{number}.csv"
            path.write_text("\n".join(["id,x", *(f"{value},0" for value in content.split("|"))]))
        else:
            path = folder / f"{number}.parquet"
            pa.parquet.write_table(pa.table({"id": content}), path)
        read.append(read_ids(read_table(path, "id"), path, "id"))
    return read


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (("001|002", "001|A02"), ["001"]),
        (("0012|12", "12|0012|7"), ["0012", "12"]),
        (("12|7", "0012|12|A3"), ["12"]),
        (("00123|12345", "12345|23456"), ["12345"]),
        (("1|2|A3", "1|2|3"), ["1", "2"]),
        (("3|1|2", pa.array([1, 2, 9], pa.int32()), pa.array([9, 2, 3])), ["2"]),
        ((pa.array([1, 2]), pa.array(["2", "3"])), ["2"]),
        ((pa.array([2**64 - 1, 5], pa.uint64()), "-1|18446744073709551615"), [str(2**64 - 1)]),
        ((pa.array([2**64 - 1, 5], pa.uint64()), pa.array([-1, 5])), ["5"]),
        (("123456789012345678901234567890|2", "123456789012345678901234567890|1"), ["123456789012345678901234567890"]),
        ((" 1 | 2", "1|2"), ["1", "2"]),
        (("NA|DE", "FR|NA"), ["NA"]),
        (("2024-01-01|2024-01-02", "2024-01-02|x"), ["2024-01-02"]),
        ((pa.array(["1.10", "1.1"]), pa.array(["1.1", "1.2"])), ["1.1"]),
        ((pa.array(["b", "a"]).dictionary_encode(), "a|b"), ["b", "a"]),
    ],
)
def test_ids_are_matched_as_they_are_written(tmp_path, files, expected):
    """Numbers of any size match numbers; leading zeros make another id; the order is that of the first file."""
    read = ids_of(tmp_path, *files)
    common = find_common(read)
    assert common.to_pylist() == expected
    for ids in read:
        assert ids.values.take(ids.rows(common)).to_pylist() == expected


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (("0012|0013", "12|13"), r"0\.csv has text \(0012\); .*1\.csv has numbers \(12\)"),
        (("001|010|100", "1|10|100"), r"text \(001\); .*numbers \(1\)"),
        (("+1|2", "1|2"), r"text \(\+1\); .*numbers \(1\)"),
        (("001|010|100", pa.array([1, 10, 100])), r"text \(001\); .*numbers \(1\)"),
        (("1|2|A3", pa.array([1, 2, 3])), r"text \(A3\); .*numbers \(1\)"),
        ((pa.array([1, 2]), pa.array(["a", "b"])), r"numbers \(1\); .*text \(a\)"),
    ],
)
def test_ids_of_two_kinds(tmp_path, files, message):
    """Files that lost leading zeros, or store numbers where others have text, are not matched by chance."""
    with pytest.raises(DataError, match="ids must be written in the same way in all files: .*" + message):
        find_common(ids_of(tmp_path, *files))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("1|NA|nan|4", "2 rows without an id in column 'id'"),
        ("a| |", "2 rows without an id in column 'id'"),
        (pa.array([None, None]), "2 rows without an id"),
        (pa.array(["a", None]), "1 row without an id"),
        (" 7|7", "ids must be unique; 1 id repeated, for example 7"),
        ("1.0|2", "ids must be whole numbers or text; column 'id' has decimal numbers"),
        (" 1.5| 2.5", "ids must be whole numbers or text; column 'id' has decimal numbers"),
        (pa.array([1.0, 2.0]), "ids must be whole numbers or text; column 'id' is of type double"),
        (pa.array([True, False]), "ids must be whole numbers or text; column 'id' is of type bool"),
    ],
)
def test_ids_that_cannot_be_used(tmp_path, content, message):
    """Missing, repeated, or of a kind that is not compared."""
    with pytest.raises(DataError, match=message):
        ids_of(tmp_path, content)
