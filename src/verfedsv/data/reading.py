"""Read and check users' CSV and Parquet files."""

from __future__ import annotations

import codecs
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import takewhile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

from verfedsv.errors import DataError, InputError

HEADER_SIZE = 1 << 16
"""How many bytes of a CSV file are searched for its separator."""

_ORDER = b"order"
"""The key in a field's metadata for the order of its categories, as JSON."""


def read_table(path: Path, id_column: str | None, text: Iterable[str] = ()) -> pa.Table:
    """Return the table in a file; raise DataError if it has no rows or repeats a column name.

    Text and categories become large_string, blank text is missing. Ids in a CSV file are text as written: 0012 is not
    12. So are the columns named in `text`, even if they look like numbers. Decimal numbers cannot be ids. `id_column`
    is None if there are no ids.
    """
    try:
        if not path.exists():
            raise DataError(f"there is no file {path}")
        table = _read(path, id_column, text)
        table.validate(full=True)  # Parquet files may hold text that is not UTF-8
        _check_names(path, table.column_names)
        if table.num_rows == 0:
            raise DataError(f"{path} has no rows")
        fields = [_field(name, column) for name, column in zip(table.column_names, table.columns, strict=True)]
        return pa.table([_plain(column) for column in table.columns], schema=pa.schema(fields))
    except InputError:
        raise
    except UnicodeDecodeError:
        raise DataError(_not_utf8(path)) from None
    except (pa.ArrowException, OSError, ValueError) as error:
        raise DataError(
            _not_utf8(path) if "invalid utf8" in str(error).lower() else f"{path} cannot be read: {_shown(error)}"
        ) from None


def _shown(error: Exception) -> str:
    """Return an error of Arrow up to the first byte of a file's content that no terminal should get."""
    text = str(error)
    shown = "".join(takewhile(str.isprintable, text))
    return text if len(shown) == len(text) else f"{shown.rstrip(' :')}; is it a file of this kind?"


def order_of(table: pa.Table, name: str) -> list[str]:
    """Return the categories of a column of text, stripped, in their own order; empty if the file gives them none."""
    found: list[str] = json.loads((table.schema.field(name).metadata or {}).get(_ORDER, b"[]"))
    return found


def is_text(kind: pa.DataType) -> bool:
    """Return whether a column of a table from `read_table` holds text."""
    return bool(pa.types.is_large_string(kind))


def is_number(kind: pa.DataType) -> bool:
    """Return whether a column of a table from `read_table` holds numbers or booleans."""
    return bool(pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind))


def remedy(kind: pa.DataType) -> str:
    """Return what to do about a column of an unsupported type."""
    if pa.types.is_temporal(kind):
        return "Write dates and times as numbers, such as days since a date"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "If it is text, save the file in UTF-8"
    return "Write it as columns of numbers or text"


def _read(path: Path, id_column: str | None, text: Iterable[str]) -> pa.Table:
    import pyarrow.csv
    import pyarrow.parquet

    name = path.name.lower().removesuffix(".bz2").removesuffix(".gz")
    if name.endswith(".parquet"):
        if path.is_file():
            # Clearer than Arrow's own error. Folders, as Spark writes them, have no schema to read.
            _check_names(path, pyarrow.parquet.read_schema(path).names)
        return pyarrow.parquet.read_table(path)
    if not name.endswith(".csv"):
        raise InputError(
            f"{path}: the name must end in .csv, .parquet, .svm or .libsvm; after .csv, .svm and .libsvm, .gz or .bz2 "
            "may follow"
        )
    _check_header(path)
    texts = [*text] if id_column is None else [id_column, *text]
    as_text = pyarrow.csv.ConvertOptions(column_types=dict.fromkeys(texts, pa.large_string()))
    table = pyarrow.csv.read_csv(path, convert_options=as_text)
    if id_column in table.column_names and _are_decimals(table.column(id_column)):
        raise DataError(f"{path}: ids must be whole numbers or text; column {id_column!r} has decimal numbers")
    return table


def _check_header(path: Path) -> None:
    """Raise DataError if the first line of a CSV file has a separator other than commas, or is UTF-16."""
    with pa.input_stream(str(path), compression="detect") as stream:
        line = stream.read(HEADER_SIZE).split(b"\n")[0]
    if line.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise DataError(_not_utf8(path))
    for separator in (";", "\t", "|"):
        if separator.encode() in line and b"," not in line:
            raise DataError(
                f"{path}: columns must be separated by commas; here they seem to be separated by {separator!r}. "
                "Save the file with commas, and with points in decimal numbers"
            )


def _check_names(path: Path, names: Sequence[str]) -> None:
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        shown = ", ".join(map(repr, repeated))
        raise DataError(f"{path}: column names must be unique; repeated: {shown}. Rename them in the file")


def _are_decimals(ids: pa.ChunkedArray) -> bool:
    """Return whether all ids are numbers, and at least one has a decimal point."""
    written = pc.utf8_trim_whitespace(ids)
    are_numbers = pc.all(pc.match_substring_regex(written, r"^[+-]?[0-9]+(\.[0-9]*)?$")).as_py()
    return bool(are_numbers and pc.any(pc.match_substring(written, ".")).as_py())


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if pa.types.is_decimal(kind):
        return column.cast(pa.float64())
    if pa.types.is_string(kind) or pa.types.is_string_view(kind) or is_text(kind):
        text = column.cast(pa.large_string())
        is_blank = pc.equal(pc.utf8_trim_whitespace(text), "")
        return pc.if_else(is_blank, pa.scalar(None, pa.large_string()), text)
    return column


def _field(name: str, column: pa.ChunkedArray) -> pa.Field:
    """Return the name and type of a column as it is read, and the order of its categories if it has one."""
    kind, plain = column.type, _plain(column[:0]).type
    order = []
    if pa.types.is_dictionary(kind) and kind.ordered and is_text(plain) and column.num_chunks:
        categories = column.unify_dictionaries().chunk(0).dictionary.cast(pa.large_string())
        order = pc.utf8_trim_whitespace(categories.drop_null()).to_pylist()
    return pa.field(name, plain, metadata={_ORDER: json.dumps(order)} if order else None)


def _not_utf8(path: Path) -> str:
    return f"{path} is not in UTF-8; save it in that encoding"
