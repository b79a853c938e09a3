"""The users' own files: CSV and Parquet, one per client, joined on a column of ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedsv.arguments import as_array
from verfedsv.data.vertical import ClientData, VerticalData, choose_test
from verfedsv.errors import DataError, InputError
from verfedsv.losses import Array


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
    unique within a file, and of one kind, numbers or text, in all files. Samples that some client lacks, and those
    without a label, are left out; `notes` say how many. Columns of numbers and booleans are numeric; text is
    categorical; columns of dates and the like are refused.
    """
    if not clients:
        raise InputError("at least one client is needed")
    holder, label_column = label
    if holder not in clients:
        raise InputError(f"the labels are said to be in the file of {holder!r}; the clients are {', '.join(clients)}")
    tables = {name: _read(file) for name, file in clients.items()}
    if label_column not in tables[holder].column_names:
        raise DataError(_no_column(label_column, clients[holder].path, tables[holder]))
    ids = {name: _ids(tables[name], file) for name, file in clients.items()}
    _check_kinds(ids, clients)
    common = _common(ids)
    notes = [f"{name}: {len(numbers):,} rows in {clients[name].path.name}" for name, numbers in ids.items()]
    notes.append(f"{len(common):,} samples are in all files")
    if len(common) == 0:
        raise DataError(_no_overlap(ids, clients))
    taken = {name: tables[name].take(_places(numbers, common)) for name, numbers in ids.items()}
    labels, is_labelled, n_classes, said = _labels(taken[holder].column(label_column), clients[holder].path)
    if not is_labelled.all():
        notes.append(f"{int((~is_labelled).sum()):,} of them have no label and are left out")
    notes.append(said)
    rows = np.flatnonzero(is_labelled)
    # Clients may share a file, with columns of their own; the labels in it are nobody's feature.
    shared = clients[holder].path.resolve()
    data = tuple(
        _client(name, taken[name].take(rows), file, {label_column} if file.path.resolve() == shared else set())
        for name, file in clients.items()
    )
    return VerticalData(data, labels[rows], n_classes, choose_test(len(rows), test, seed), tuple(notes))


def _read(file: ClientFile) -> pa.Table:
    import pyarrow.csv
    import pyarrow.parquet

    path = file.path
    if not path.exists():
        raise DataError(f"there is no file {path}")
    name = path.name.lower().removesuffix(".bz2").removesuffix(".gz")
    try:
        if name.endswith(".parquet"):
            return pyarrow.parquet.read_table(path)
        if name.endswith(".csv"):
            table = pyarrow.csv.read_csv(path)
            if table.num_rows == 0:
                raise DataError(f"{path} has no rows")
            return table
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
        raise DataError(f"{path} cannot be read: {error}") from None
    raise InputError(f"{path}: the name must end in .csv, .csv.gz, .csv.bz2 or .parquet")


def _ids(table: pa.Table, file: ClientFile) -> Array:
    if file.id_column not in table.column_names:
        raise DataError(_no_column(file.id_column, file.path, table))
    column = table.column(file.id_column)
    if column.null_count:
        raise DataError(f"{file.path}: {column.null_count:,} rows have no id in column {file.id_column!r}")
    if not (pa.types.is_integer(column.type) or _is_text(column.type)):
        raise DataError(
            f"{file.path}: ids must be whole numbers or text; column {file.id_column!r} is of type {column.type}"
        )
    values: Array = column.to_numpy().astype(str if _is_text(column.type) else np.int64)
    numbers, counts = np.unique(values, return_counts=True)
    if (counts > 1).any():
        repeated = numbers[counts > 1]
        raise DataError(
            f"{file.path}: ids must be unique; {len(repeated):,} are there more than once, for example {repeated[0]!s}"
        )
    return values


def _check_kinds(ids: Mapping[str, Array], clients: Mapping[str, ClientFile]) -> None:
    kinds = {name: "text" if numbers.dtype.kind == "U" else "numbers" for name, numbers in ids.items()}
    if len(set(kinds.values())) > 1:
        said = "; ".join(f"{clients[name].path} has {kind} ({ids[name][0]!s})" for name, kind in kinds.items())
        raise DataError(f"ids must be of one kind in all files: {said}. Write them in the same way")


def _common(ids: Mapping[str, Array]) -> Array:
    """Return the ids that are in all files, in the order of the first."""
    first, *others = ids.values()
    is_common = np.ones(len(first), bool)
    for other in others:
        is_common &= np.isin(first, other)
    common: Array = first[is_common]
    return common


def _places(ids: Array, wanted: Array) -> NDArray[np.intp]:
    order: NDArray[np.intp] = np.argsort(ids, kind="stable")
    return order[np.searchsorted(ids, wanted, sorter=order)]


def _no_overlap(ids: Mapping[str, Array], clients: Mapping[str, ClientFile]) -> str:
    shown = "; ".join(f"{clients[name].path}: {', '.join(map(str, numbers[:3]))}, ..." for name, numbers in ids.items())
    return f"no sample is in all files. The first ids are: {shown}. Are they ids of the same samples?"


def _no_column(name: str, path: Path, table: pa.Table) -> str:
    return f"{path} has no column {name!r}; it has {', '.join(table.column_names)}"


def _labels(column: pa.ChunkedArray, path: Path) -> tuple[NDArray[np.intp], NDArray[np.bool_], int, str]:
    """Return the labels as 0 to C - 1, which of them are known, C, and a sentence on what they were."""
    is_known = ~np.asarray(column.is_null().to_numpy(), dtype=bool)
    if pa.types.is_floating(column.type):
        is_known &= ~np.isnan(column.to_numpy())
    known = column.to_numpy()[is_known]
    if _is_text(column.type):
        known = known.astype(str)
    classes, numbers = np.unique(known, return_inverse=True)
    if not 2 <= len(classes) <= 1000:
        raise DataError(f"{path}: labels need 2 to 1,000 different values; there are {len(classes):,}")
    labels = np.zeros(len(column), np.intp)
    labels[is_known] = numbers
    counts = np.bincount(numbers)
    shown = ", ".join(f"{value!s} ({n:,})" for value, n in zip(classes[:5], counts[:5], strict=True))
    return labels, is_known, len(classes), f"labels: {shown}{', ...' if len(classes) > 5 else ''}"


def _client(name: str, table: pa.Table, file: ClientFile, not_features: set[str]) -> ClientData:
    names = _feature_names(table, file, not_features)
    numeric, categorical = list[Array](), list[Array]()
    for column in names:
        values = table.column(column)
        if pa.types.is_boolean(values.type) or pa.types.is_integer(values.type) or pa.types.is_floating(values.type):
            numeric.append(as_array(column, pc.cast(values, pa.float64()).to_numpy()))
        elif _is_text(values.type):
            numbers = values.to_numpy(zero_copy_only=False).astype(object)
            numbers[numbers == ""] = None
            categorical.append(numbers)
        elif pa.types.is_null(values.type):
            continue
        else:
            raise DataError(
                f"{file.path}: column {column!r} is of type {values.type}; "
                "only numbers, booleans and text can be features"
            )
    n_samples = table.num_rows
    matrix = np.stack(numeric, axis=1) if numeric else np.zeros((n_samples, 0))
    if np.isinf(matrix).any():
        raise DataError(f"{file.path} has infinite numbers")
    if not numeric and not categorical:
        raise DataError(f"{file.path}: client {name!r} has no features")
    return ClientData(name, matrix, np.stack(categorical, axis=1) if categorical else None)


def _feature_names(table: pa.Table, file: ClientFile, not_features: set[str]) -> Sequence[str]:
    excluded = not_features | {file.id_column}
    if file.columns is None:
        return [column for column in table.column_names if column not in excluded]
    for column in file.columns:
        if column not in table.column_names:
            raise DataError(_no_column(column, file.path, table))
        if column in excluded:
            raise InputError(f"{file.path}: {column!r} is the column of ids or labels, and no feature")
    return file.columns


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_dictionary(kind))
