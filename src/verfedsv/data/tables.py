"""The users' own files: CSV and Parquet, one per client, joined on a column of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedsv.data.categories import count_categories
from verfedsv.data.ids import find_common, read_ids
from verfedsv.data.reading import is_number, is_text, read_table
from verfedsv.data.vertical import ClientData, VerticalData, choose_test
from verfedsv.errors import DataError, InputError
from verfedsv.losses import Array
from verfedsv.shapley.result import count

MAX_FRACTIONS = 20
"""Labels that are not whole numbers are taken for a continuous target, not for classes, if more than that differ."""


@dataclass(frozen=True)
class ClientFile:
    """Where a client's columns are: a file, its column of ids, and which columns to take (all others if None)."""

    path: Path
    id_column: str
    columns: tuple[str, ...] | None = None


def join_tables(
    clients: Mapping[str, ClientFile], label: tuple[str, str], *, test: float = 0.2, seed: int = 0
) -> VerticalData:
    """Return the samples that all clients have, in the order of the first client's file.

    `label` names the client whose file holds the labels, and their column; that column is no feature. Ids must be
    unique within a file, and are compared as they are written. Samples that some client lacks, and those without a
    label, are left out; `notes` say how many. Columns of numbers and booleans are numeric; text is categorical; blank
    text is missing; columns of dates and the like are refused, and so is text that is different in nearly every row.
    If the file with the labels has no other columns, its client is none of those returned.
    """
    if not clients:
        raise InputError("at least one client is needed")
    holder, label_column = label
    if holder not in clients:
        raise InputError(f"the labels are said to be in the file of {holder!r}; the clients are {', '.join(clients)}")
    tables = {name: _read(file) for name, file in clients.items()}
    if label_column not in tables[holder].column_names:
        raise DataError(_no_column(label_column, clients[holder].path, tables[holder]))
    ids = {name: read_ids(tables[name], file.path, file.id_column) for name, file in clients.items()}
    common = find_common(list(ids.values()))
    taken = {name: tables[name].take(known.rows(common)) for name, known in ids.items()}
    labels, is_labelled, n_classes, said = _labels(taken[holder], label_column, clients[holder].path)
    rows = np.flatnonzero(is_labelled)
    is_test = choose_test(len(rows), test, seed)
    players, notes = list[ClientData](), list[str]()
    for name, file in clients.items():
        # Clients may share a file, with columns of their own; the labels in it are nobody's feature.
        is_shared = file.path.resolve() == clients[holder].path.resolve()
        excluded = {file.id_column, label_column} if is_shared else {file.id_column}
        client, about = _client(name, taken[name].take(rows), file, excluded, ~is_test)
        if client is not None:
            players.append(client)
        elif name != holder:
            raise DataError(f"{file.path}: client {name!r} has no features")
        notes.append(f"{name}: {len(ids[name]):,} rows in {file.path.name}; {about}")
    if not players:
        raise DataError(f"{clients[holder].path} has labels only; at least one client with features is needed")
    notes.append(f"{len(common):,} samples are in all files")
    if not is_labelled.all():
        notes.append(f"{int((~is_labelled).sum()):,} of them have no label and are left out")
    return VerticalData(tuple(players), labels[rows], n_classes, is_test, (*notes, said))


def _read(file: ClientFile) -> pa.Table:
    table = read_table(file.path, file.id_column)
    if file.id_column not in table.column_names:
        raise DataError(_no_column(file.id_column, file.path, table))
    return table


def _no_column(name: str, path: Path, table: pa.Table) -> str:
    return f"{path} has no column {name!r}; it has {', '.join(table.column_names)}"


def _labels(table: pa.Table, name: str, path: Path) -> tuple[NDArray[np.intp], NDArray[np.bool_], int, str]:
    """Return the labels as 0 to C - 1, which of them are known, C, and a sentence on what they were."""
    column = table.column(name)
    kind = column.type
    if not (is_number(kind) or is_text(kind) or pa.types.is_null(kind)):
        raise DataError(
            f"{path}: labels must be numbers, booleans or text; column {name!r} is of type {kind}. {_remedy(kind)}"
        )
    is_known = pc.invert(column.is_null(nan_is_null=True))
    known = column.filter(is_known).to_numpy()
    classes, numbers = np.unique(known.astype(str) if is_text(kind) else known, return_inverse=True)
    if classes.dtype.kind == "f" and len(classes) > MAX_FRACTIONS and (classes != np.floor(classes)).any():
        raise DataError(
            f"{path}: labels must be classes; column {name!r} has {len(classes):,} different numbers, such as "
            f"{classes[classes != np.floor(classes)][0]!s}. Group them into classes, or name another column"
        )
    if not 2 <= len(classes) <= 1000:
        raise DataError(f"{path}: labels need 2 to 1,000 different values; there are {len(classes):,}")
    is_labelled = np.asarray(is_known.to_numpy(), bool)
    labels = np.zeros(len(column), np.intp)
    labels[is_labelled] = numbers
    counts = np.bincount(numbers)
    shown = ", ".join(f"{value!s} ({n:,})" for value, n in zip(classes[:5], counts[:5], strict=True))
    return labels, is_labelled, len(classes), f"labels: {shown}{', ...' if len(classes) > 5 else ''}"


def _client(
    name: str, table: pa.Table, file: ClientFile, excluded: set[str], is_train: NDArray[np.bool_]
) -> tuple[ClientData | None, str]:
    """Return the features of a client, None if it has none, and what they are in words."""
    numeric, categorical, n_categories = list[Array](), list[Array](), 0
    train = pa.array(is_train)
    for column in _feature_names(table, file, excluded):
        values = table.column(column)
        if is_number(values.type):
            numeric.append(_floats(values, column, file.path))
        elif is_text(values.type):
            n_categories += count_categories(values.filter(train), column, file.path)
            categorical.append(values.to_numpy())
        elif not pa.types.is_null(values.type):
            raise DataError(
                f"{file.path}: column {column!r} is of type {values.type}; only numbers, booleans and text can be "
                f"features. {_remedy(values.type)}, or leave it out by naming the columns to take"
            )
    if not numeric and not categorical:
        return None, "holds the labels only, and is no player"
    matrix = np.stack(numeric, axis=1) if numeric else np.zeros((table.num_rows, 0))
    client = ClientData(name, matrix, np.stack(categorical, axis=1) if categorical else None)
    return client, _say_columns(len(numeric), len(categorical), n_categories)


def _say_columns(n_numeric: int, n_text: int, n_categories: int) -> str:
    """Return what columns there are in words.

    >>> _say_columns(2, 1, 1234), _say_columns(0, 3, 12)
    ('2 numeric columns, 1 of text with 1,234 categories', '3 columns of text with 12 categories')
    """
    parts = [count(n_numeric, "numeric column")] if n_numeric else []
    if n_text:
        text = f"{n_text:,} of text" if n_numeric else f"{count(n_text, 'column')} of text"
        parts.append(f"{text} with {n_categories:,} {'category' if n_categories == 1 else 'categories'}")
    return ", ".join(parts)


def _floats(values: pa.ChunkedArray, name: str, path: Path) -> Array:
    # Not safe: whole numbers above 2^53 become the nearest float.
    floats: Array = pc.cast(values, pa.float64(), safe=False).to_numpy()
    if np.isinf(floats).any():
        raise DataError(f"{path}: column {name!r} has infinite numbers")
    return floats


def _remedy(kind: pa.DataType) -> str:
    if pa.types.is_temporal(kind):
        return "Write dates and times as numbers, such as days since a date"
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return "If it is text, save the file in UTF-8"
    return "Write it as columns of numbers or text"


def _feature_names(table: pa.Table, file: ClientFile, excluded: set[str]) -> Sequence[str]:
    if file.columns is None:
        return [column for column in table.column_names if column not in excluded]
    for column in file.columns:
        if column not in table.column_names:
            raise DataError(_no_column(column, file.path, table))
        if column in excluded:
            raise InputError(f"{file.path}: {column!r} is the column of ids or labels, and no feature")
    return file.columns
