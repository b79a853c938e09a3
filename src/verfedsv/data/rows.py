"""New rows in users' files, with the columns that a model was trained on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import csr_array

from verfedsv.arrays import Array
from verfedsv.data.ids import Ids, find_all, read_ids
from verfedsv.data.libsvm import LibsvmRows, read_libsvm
from verfedsv.data.reading import is_number, is_text, read_table, remedy
from verfedsv.data.tables import as_floats
from verfedsv.data.vertical import ClientData
from verfedsv.errors import DataError, InputError
from verfedsv.texts import shortened

_LONGEST_LIST = 500
_NUMBERED = re.compile("(?:column|feature) (0|[1-9][0-9]{0,8})")


@dataclass(frozen=True, eq=False)
class NewRows:
    """The rows of a client's file: their ids, its columns, and the names of columns that training did not use."""

    ids: Ids
    data: ClientData
    ignored: tuple[str, ...]


def read_rows(client: str, path: Path, id_column: str | None, numeric: Sequence[str], text: Sequence[str]) -> NewRows:
    """Return the rows in a file, with these columns of numbers and of text; raise DataError if it lacks some.

    In a CSV file, columns of text are text even if they look like numbers. An empty column is of any type. Without a
    column of ids, rows are numbered.
    """
    table = read_table(path, id_column, text)
    wanted, there = [*numeric, *text], _listed(table.column_names)
    if id_column is not None and id_column not in table.column_names:
        raise DataError(f"{path} has no column of ids {id_column!r}; it has {there}")
    if missing := [name for name in wanted if name not in table.column_names]:
        raise DataError(
            f"{path} lacks {'a column' if len(missing) == 1 else 'columns'} that {client!r} was trained with: "
            f"{_listed(missing)}. It has {there}"
        )
    numbers = [_read_numbers(table.column(name), name, path) for name in numeric]
    texts = [_read_text(table.column(name), name, path) for name in text]
    matrix = np.stack(numbers, axis=1) if numbers else np.zeros((table.num_rows, 0))
    data = ClientData(client, matrix, np.stack(texts, axis=1) if texts else None, tuple(wanted))
    ignored = tuple(name for name in table.column_names if name not in {id_column, *wanted})
    ids = _number(path, table.num_rows) if id_column is None else read_ids(table, path, id_column)
    return NewRows(ids, data, ignored)


def read_libsvm_rows(client: str, path: Path, numeric: Sequence[str], text: Sequence[str]) -> NewRows:
    """Return the rows in a LIBSVM file, numbered, for a client trained on one; its labels are ignored.

    Columns were named by the index of the feature, and a feature that is left out is 0. Raises InputError if the client
    was trained on other columns.
    """
    numbered = [_NUMBERED.fullmatch(name) for name in numeric]
    if text or None in numbered:
        named = text[0] if text else numeric[numbered.index(None)]
        raise InputError(
            f"{path}: {client!r} was trained with columns that have names, such as {shortened(named, 80)!r}, which "
            "LIBSVM files have not; write a .csv or .parquet file with these columns"
        )
    rows = read_libsvm([path])
    wanted = np.array([int(match[1]) for match in numbered if match is not None])
    data = ClientData(client, _take_features(rows, wanted), None, tuple(numeric))
    others = np.setdiff1d(np.unique(rows.features.indices) + rows.first, wanted)
    return NewRows(_number(path, len(rows.numbers)), data, tuple(f"feature {index}" for index in others.tolist()))


def _take_features(rows: LibsvmRows, indices: NDArray[np.intp]) -> csr_array:
    """Return the features with these indices in the file, (rows, indices), zero where it has none."""
    n_features = rows.features.shape[1]
    places = indices - rows.first
    is_there = (places >= 0) & (places < n_features)
    ones = np.ones(int(is_there.sum()))
    chosen = csr_array((ones, (places[is_there], np.flatnonzero(is_there))), shape=(n_features, len(indices)))
    return csr_array(rows.features @ chosen)


def _number(path: Path, n_rows: int) -> Ids:
    return Ids(path, pa.array(map(str, range(1, n_rows + 1)), pa.large_string()), are_stored_as_numbers=True)


def check_sizes(files: Sequence[NewRows]) -> None:
    """Raise DataError unless files whose rows are numbered have the same number of rows."""
    if len({len(rows.ids) for rows in files}) > 1:
        said = ", ".join(f"{len(rows.ids):,} in {rows.ids.path}" for rows in files)
        raise DataError(
            f"files without ids must have the same number of rows: {said}. Their rows must be of the same samples in "
            "the same order"
        )


def align_rows(files: Sequence[NewRows]) -> tuple[pa.Array, list[NDArray[np.intp]], list[ClientData]]:
    """Return the ids of all files, the numbers of those that each file has, increasing, and its rows in this order."""
    ids = find_all([rows.ids for rows in files])
    numbers, ordered = [], []
    for rows in files:
        found = rows.ids.rows(ids)
        numbers.append(np.flatnonzero(found.is_valid().to_numpy(zero_copy_only=False)))
        ordered.append(rows.data.take(found.drop_null().to_numpy().astype(np.intp)))
    return ids, numbers, ordered


def _listed(names: Sequence[str]) -> str:
    return shortened(", ".join(map(repr, names)), _LONGEST_LIST)


def _read_numbers(values: pa.ChunkedArray, name: str, path: Path) -> Array:
    if not is_number(values.type) and not pa.types.is_null(values.type):
        advice = "Correct it" if is_text(values.type) else remedy(values.type)
        raise DataError(f"{_of_another_type(values, name, path, 'numbers')}. {advice}")
    return as_floats(values, name, path)


def _read_text(values: pa.ChunkedArray, name: str, path: Path) -> Array:
    if not is_text(values.type) and not pa.types.is_null(values.type):
        raise DataError(f"{_of_another_type(values, name, path, 'text')}. Write it as text")
    texts: Array = pc.cast(values, pa.large_string()).to_numpy()
    return texts


def _of_another_type(values: pa.ChunkedArray, name: str, path: Path, trained: str) -> str:
    found = f"text, such as {values.drop_null()[0].as_py()!r}" if is_text(values.type) else f"of type {values.type}"
    return f"{path}: column {name!r} held {trained} in training, and here it is {found}"
