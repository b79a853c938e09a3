"""Users' files: CSV and Parquet, one per client, joined on a column of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedsv.data.categories import count_categories
from verfedsv.data.cautions import caution
from verfedsv.data.ids import find_common, read_ids
from verfedsv.data.labels import read_labels
from verfedsv.data.reading import is_number, is_text, read_table, remedy
from verfedsv.data.vertical import ClientData, VerticalData, choose_test
from verfedsv.errors import DataError, InputError
from verfedsv.losses import Array
from verfedsv.shapley.result import count


@dataclass(frozen=True)
class ClientFile:
    """Where a client's columns are: a file, its column of ids, and which columns to take (all others if None)."""

    path: Path
    id_column: str
    columns: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        try:
            object.__setattr__(self, "path", Path(self.path))
        except TypeError:
            raise InputError(f"the path of a client's file must be a path or text; received {self.path!r}") from None


def join_tables(
    clients: Mapping[str, ClientFile],
    label: tuple[str, str],
    *,
    test: float = 0.2,
    seed: int = 0,
    n_classes: int | None = None,
) -> VerticalData:
    """Return the samples common to all clients, in the order of the first client's file.

    `label` is the client whose file holds the labels, and the name of their column, which is not a feature. Ids must be
    unique within a file and are compared as written. Samples without a label, or that a client lacks, are left out;
    `notes` say how many. Numbers and booleans are numeric, text is categorical, blank text is missing. Other types,
    such as dates, are refused, and so is text that differs in nearly every row. A client that holds only the labels is
    not returned.

    Labels with more than 20 distinct numbers are taken for amounts and refused, unless `n_classes` is given, which
    must be the number of classes. `cautions` name likely mistakes.
    """
    if not clients:
        raise InputError("at least one client is needed")
    holder, label_column = label
    if holder not in clients:
        raise InputError(f"the client with the labels must be one of {', '.join(clients)}; received {holder!r}")
    tables = {name: _read(file) for name, file in clients.items()}
    if label_column not in tables[holder].column_names:
        raise DataError(_no_column(label_column, clients[holder].path, tables[holder]))
    ids = {name: read_ids(tables[name], file.path, file.id_column) for name, file in clients.items()}
    common = find_common(list(ids.values()))
    taken = {name: tables[name].take(known.rows(common)) for name, known in ids.items()}
    labels = read_labels(taken[holder], label_column, clients[holder].path, n_classes)
    rows = np.flatnonzero(labels.is_known)
    numbers = labels.numbers[rows]
    is_test = choose_test(len(rows), test, seed)
    players, notes, cautions = list[ClientData](), list[str](), labels.cautions
    for name, file in clients.items():
        # Clients may share a file, each with its own columns; the labels in it are no client's feature.
        is_shared = file.path.resolve() == clients[holder].path.resolve()
        excluded = {file.id_column, label_column} if is_shared else {file.id_column}
        columns = _read_columns(taken[name].take(rows), file, excluded, ~is_test)
        client = columns.client(name)
        cautions += caution(name, columns.numeric, columns.text, columns.empty, numbers)
        if client is not None:
            players.append(client)
        elif name != holder:
            raise DataError(f"{file.path}: client {name!r} has no features")
        notes.append(f"{name}: {len(ids[name]):,} rows in {file.path.name}; {columns}")
    if not players:
        raise DataError(f"{clients[holder].path} has labels only; at least one client with features is needed")
    notes.append(f"{len(common):,} samples are in all files")
    if len(rows) < len(common):
        notes.append(f"{len(common) - len(rows):,} of them have no label and are left out")
    return VerticalData(tuple(players), numbers, len(labels.classes), is_test, (*notes, str(labels)), tuple(cautions))


def _read(file: ClientFile) -> pa.Table:
    table = read_table(file.path, file.id_column)
    if file.id_column not in table.column_names:
        raise DataError(_no_column(file.id_column, file.path, table))
    return table


def _no_column(name: str, path: Path, table: pa.Table) -> str:
    return f"{path} has no column {name!r}; it has {', '.join(table.column_names)}"


@dataclass(frozen=True, eq=False)
class _Columns:
    """The columns of a client, (samples,) each, and the names of empty columns, which have no type."""

    numeric: dict[str, Array]
    text: dict[str, Array]
    empty: list[str]
    n_categories: int

    def client(self, name: str) -> ClientData | None:
        """Return a client with these features, or None if there are none."""
        numeric, text = list(self.numeric.values()), list(self.text.values())
        if not numeric and not text:
            return None
        matrix = np.stack(numeric, axis=1) if numeric else np.zeros((len(text[0]), 0))
        return ClientData(name, matrix, np.stack(text, axis=1) if text else None)

    def __str__(self) -> str:
        if not self.numeric and not self.text:
            return "holds only the labels, and is not valued"
        parts = [count(len(self.numeric), "numeric column")] if self.numeric else []
        if self.text:
            text = f"{len(self.text):,} of text" if self.numeric else f"{count(len(self.text), 'column')} of text"
            parts.append(f"{text} with {self.n_categories:,} {'category' if self.n_categories == 1 else 'categories'}")
        return ", ".join(parts)


def _read_columns(table: pa.Table, file: ClientFile, excluded: set[str], is_train: NDArray[np.bool_]) -> _Columns:
    """Return the features in a table; raise DataError if a column has an unsupported type."""
    numeric, text, empty, n_categories = dict[str, Array](), dict[str, Array](), list[str](), 0
    train = pa.array(is_train)
    for name in _feature_names(table, file, excluded):
        values = table.column(name)
        if is_number(values.type):
            numeric[name] = _floats(values, name, file.path)
        elif is_text(values.type):
            n_categories += count_categories(values.filter(train), name, file.path)
            text[name] = values.to_numpy()
        elif pa.types.is_null(values.type):
            empty.append(name)
        else:
            raise DataError(
                f"{file.path}: column {name!r} is of type {values.type}; only numbers, booleans and text can be "
                f"features. {remedy(values.type)}, or leave it out by naming the columns to take"
            )
    return _Columns(numeric, text, empty, n_categories)


def _floats(values: pa.ChunkedArray, name: str, path: Path) -> Array:
    # Not safe: whole numbers above 2^53 become the nearest float.
    floats: Array = pc.cast(values, pa.float64(), safe=False).to_numpy()
    if np.isinf(floats).any():
        raise DataError(f"{path}: column {name!r} has infinite numbers")
    return floats


def _feature_names(table: pa.Table, file: ClientFile, excluded: set[str]) -> Sequence[str]:
    if file.columns is None:
        return [column for column in table.column_names if column not in excluded]
    for column in file.columns:
        if column not in table.column_names:
            raise DataError(_no_column(column, file.path, table))
        if column in excluded:
            raise InputError(f"{file.path}: {column!r} is the column of ids or labels, not a feature")
    return file.columns
