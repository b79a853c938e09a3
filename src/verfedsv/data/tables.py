"""Users' files: CSV, Parquet and LIBSVM, one per client, joined on a column of ids or row by row."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy.sparse import csr_array

from verfedsv.arrays import Array
from verfedsv.data.categories import MANY, approaches_limit, count_categories
from verfedsv.data.cautions import caution, caution_untrained, caution_zeros, refuse_untrained
from verfedsv.data.labels import WrittenLabels, interpret, read_labels
from verfedsv.data.libsvm import LibsvmRows
from verfedsv.data.reading import is_number, is_text, remedy
from verfedsv.data.sources import ClientFile, Matched, Source, TableRows, check_column, match_rows, read_source
from verfedsv.data.targets import AskedLoss, LabelArray
from verfedsv.data.vertical import ClientData, VerticalData, choose_test
from verfedsv.errors import DataError, InputError
from verfedsv.texts import count

TEST = 0.2
"""The fraction of samples that are test samples if there are no test files."""


def join_tables(
    clients: Mapping[str, ClientFile],
    label: tuple[str, str | None],
    *,
    test: float | None = None,
    seed: int = 0,
    n_classes: int | None = None,
    loss: AskedLoss = "auto",
) -> VerticalData:
    """Return the samples common to all clients, in the order of the first client's file, test files last.

    `label` is the client whose file holds the labels, and the name of their column, which is not a feature; None if
    that is a LIBSVM file. Ids must be unique within a file and are compared as written; without columns of ids, rows
    are matched by their order. Samples without a label, or that a client lacks, are left out; `notes` say how many.
    Numbers and booleans are numeric, text is categorical, blank text is missing. Other types, such as dates, are
    refused, and so is text that differs in nearly every row. A client that holds only the labels is not returned.

    Test samples are those of the test files; without these, a random fraction `test` of the samples, by default 0.2.

    Labels are classes, or amounts if the `loss` is squared. With more than 20 distinct numbers they are refused, unless
    the loss is squared or `n_classes` is given, which must be the number of classes. `cautions` name likely mistakes.
    """
    if not clients:
        raise InputError("at least one client is needed")
    holder, label_column = label
    if holder not in clients:
        raise InputError(f"the client with the labels must be one of {', '.join(clients)}; received {holder!r}")
    # Clients may share a file, each with its own columns; the labels in it are no client's feature.
    shared = {name for name, file in clients.items() if file.path.resolve() == clients[holder].path.resolve()}
    sources = {name: read_source(file, label_column if name in shared else None) for name, file in clients.items()}
    _check_label_column(sources[holder], label_column, clients[holder].path)
    joined, _ = _join(clients, sources, match_rows(sources, clients), label, shared, test, seed, n_classes, loss)
    if not joined.clients:
        raise DataError(f"{clients[holder].path} has labels only; at least one client with features is needed")
    return joined


def join_with_others(
    holder: str,
    file: ClientFile,
    source: Source,
    matched: Matched,
    label: str,
    others: Sequence[str],
    *,
    test: float | None = None,
    seed: int = 0,
    n_classes: int | None = None,
    loss: AskedLoss = "auto",
) -> tuple[VerticalData, NDArray[np.intp]]:
    """Return what the holder of the labels has of samples that it shares with others, and which of these have a label.

    `matched` has the rows of the common samples in its file. The other clients' columns are elsewhere. Everything else
    is as for `join_tables`.
    """
    _check_label_column(source, label, file.path)
    options = test, seed, n_classes, loss
    joined, known = _join({holder: file}, {holder: source}, matched, (holder, label), {holder}, *options)
    return replace(joined, elsewhere=tuple(others)), known


def read_columns(name: str, file: ClientFile, source: Source, rows: Array, is_test: Array) -> ReadColumns:
    """Return the features of a client in some rows; `is_test` marks those that nobody trains on.

    Unlike `join_tables`, this cannot compare columns with the labels.
    """
    read = _read_client(name, file, source, rows, None, ~is_test, None)
    if read.client is None:
        raise DataError(f"{file.path}: client {name!r} has no features")
    return read


def _join(
    clients: Mapping[str, ClientFile],
    sources: Mapping[str, Source],
    matched: Matched,
    label: tuple[str, str | None],
    shared: Collection[str],
    test: float | None,
    seed: int,
    n_classes: int | None,
    loss: AskedLoss,
) -> tuple[VerticalData, NDArray[np.intp]]:
    """Return the samples that have a label, and which of the matched ones these are."""
    holder, label_column = label
    written = _labels_of(sources[holder], label_column, clients[holder].path, matched.rows[holder])
    labels = interpret(written, loss, n_classes)
    known = np.flatnonzero(labels.is_known)
    n_without, values = len(labels.is_known) - len(known), labels.values[known]
    is_test = known >= len(labels.is_known) - matched.n_test
    if clients[holder].test_path is None:
        is_test = choose_test(len(known), TEST if test is None else test, seed)
    elif test is not None:
        raise InputError(f"test is the fraction of test samples where there are no test files; received {test!r}")
    elif n_classes is None:
        refuse_untrained(values, labels.classes, is_test, clients[holder].paths[-1])
    found = {}
    for name, file in clients.items():
        hidden = label_column if name in shared else None
        found[name] = _read_client(name, file, sources[name], matched.rows[name][known], hidden, ~is_test, values)
        if found[name].client is None and name != holder:
            raise DataError(f"{file.path}: client {name!r} has no features")
    players = tuple(read.client for read in found.values() if read.client is not None)
    without = [f"{n_without:,} of them have no label and are left out"] if n_without else []
    notes = (*(read.note for read in found.values()), matched.note, *without, labels.note)
    of_labels = [*labels.cautions, *caution_untrained(values, labels.classes, is_test)]
    cautions = (*of_labels, *(line for read in found.values() for line in read.cautions))
    return VerticalData(players, values, labels.n_classes, is_test, notes, cautions, labels.classes, loss), known


class ReadColumns(NamedTuple):
    """What was read of a client: its columns, None if it has none, what they are, and likely mistakes in them."""

    client: ClientData | None
    note: str
    cautions: list[str]


ONLY_LABELS = "holds only the labels, and is not valued"


def _check_label_column(source: Source, column: str | None, path: Path) -> None:
    if isinstance(source, LibsvmRows):
        if column is not None:
            raise InputError(f"{path}: the labels of a LIBSVM file begin its lines; received the column {column!r}")
    elif column is None:
        raise InputError(f"the column of the labels in {path} must be named")
    else:
        check_column(column, path, source.table)


def _labels_of(source: Source, column: str | None, path: Path, rows: NDArray[np.intp]) -> WrittenLabels:
    """Return the labels of some rows of the client that has them."""
    if isinstance(source, LibsvmRows):
        return source.labels(rows)
    return read_labels(source.table.take(rows), str(column), path)


def _read_client(
    name: str,
    file: ClientFile,
    source: Source,
    rows: NDArray[np.intp],
    hidden: str | None,
    is_train: NDArray[np.bool_],
    labels: LabelArray | None,
) -> ReadColumns:
    """Return the features of a client in some rows, without the `hidden` column of the labels, if that is there."""
    cautions = list[str]()
    if isinstance(source, LibsvmRows):
        if labels is not None:
            _check_order(source, rows, labels)
        client, what = _read_libsvm(name, source, rows)
        cautions = [f"{name}: {line}" for line in source.cautions]
        if client is not None:
            cautions += caution_zeros(name, csr_array(client.numeric), is_train)
    else:
        columns = _read_columns(source.table.take(rows), file, {file.id_column, hidden}, is_train)
        client, what = columns.client(name), str(columns)
        cautions = caution(name, columns.numeric, columns.text, columns.empty, labels)
    sizes = [f"{n:,} rows in {path.name}" for n, path in zip(source.sizes, file.paths, strict=True)]
    return ReadColumns(client, f"{name}: {' and '.join(sizes)}; {what}", cautions)


def _read_libsvm(name: str, source: LibsvmRows, rows: NDArray[np.intp]) -> tuple[ClientData | None, str]:
    """Return the features in a LIBSVM file, None if it has only labels, and what they are."""
    features = source.features[rows]
    if not source.features.nnz:
        return None, ONLY_LABELS
    n_features = features.shape[1]
    filled = features.nnz / (len(rows) * n_features)
    columns = tuple(f"column {k + source.first}" for k in range(n_features))
    return ClientData(name, features, None, columns), f"{count(n_features, 'feature')}, {filled:.1%} of them not zero"


def _check_order(source: LibsvmRows, rows: NDArray[np.intp], labels: LabelArray) -> None:
    """Raise DataError if a LIBSVM file has labels other than those that are learnt: its rows may be of other samples.

    A client without labels writes the same number in each line.
    """
    own = source.numbers[rows]
    pairs = np.unique(np.stack([own, labels.astype(np.float64)]), axis=1)
    if len(np.unique(own)) > 1 and len({*pairs[0]}) + len({*pairs[1]}) != 2 * pairs.shape[1]:
        raise DataError(
            f"{source.paths[0]}: its labels are not those that are learnt, so its rows may be of other samples. Put "
            "the rows of all files into the same order; without labels, write 0 at the beginning of each line"
        )


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
        return ClientData(name, matrix, np.stack(text, axis=1) if text else None, (*self.numeric, *self.text))

    def __str__(self) -> str:
        if not self.numeric and not self.text:
            return ONLY_LABELS
        parts = [count(len(self.numeric), "numeric column")] if self.numeric else []
        if self.text:
            text = f"{len(self.text):,} of text" if self.numeric else f"{count(len(self.text), 'column')} of text"
            parts.append(f"{text} with {self.n_categories:,} {'category' if self.n_categories == 1 else 'categories'}")
        return ", ".join(parts)


def _read_columns(
    table: pa.Table, file: ClientFile, excluded: set[str | None], is_train: NDArray[np.bool_]
) -> _Columns:
    """Return the features in a table; raise DataError if a column has an unsupported type."""
    numeric, text, empty, n_categories = dict[str, Array](), dict[str, Array](), list[str](), 0
    train = pa.array(is_train)
    for name in _feature_names(table, file, excluded):
        values = table.column(name)
        if is_number(values.type):
            numeric[name] = as_floats(values, name, file.path)
        elif is_text(values.type):
            n_categories += count_categories(values.filter(train), name, file.path)
            text[name] = values.to_numpy()
        elif pa.types.is_null(values.type):
            empty.append(name)
        else:
            raise _not_a_feature(file.path, name, values.type)
    return _Columns(numeric, text, empty, n_categories)


def check_columns(file: ClientFile, source: Source) -> None:
    """Raise an error if a column to take is not in a client's file, or cannot be a feature with all of its rows.

    A training takes fewer rows, so that it may refuse a column of text that passes here. The opposite needs fewer than
    about a hundred common rows: the part of values that are distinct grows as rows are left out at random.
    """
    if isinstance(source, TableRows):
        for name in _feature_names(source.table, file, {file.id_column}):
            values = source.table.column(name)
            if is_number(values.type):
                as_floats(values, name, file.path)
            elif is_text(values.type):
                count_categories(values, name, file.path)
            elif not pa.types.is_null(values.type):
                raise _not_a_feature(file.path, name, values.type)


def find_many_categories(file: ClientFile, source: TableRows) -> Iterator[str]:
    """Yield a sentence on each column of text that a training may refuse, as it takes fewer rows."""
    for name in _feature_names(source.table, file, {file.id_column}):
        values = source.table.column(name)
        if is_text(values.type) and (n_categories := approaches_limit(values)):
            yield (
                f"column {name!r} is text with {n_categories:,} different values in {len(values):,} rows. A training "
                f"takes only the rows that all parties have, and refuses text with more than {MANY} different values "
                "in fewer than twice as many training rows: clean it, or leave it out by naming those to take (columns)"
            )


def _not_a_feature(path: Path, name: str, kind: pa.DataType) -> DataError:
    return DataError(
        f"{path}: column {name!r} is of type {kind}; only numbers, booleans and text can be features. {remedy(kind)}, "
        "or leave it out by naming the columns to take"
    )


def as_floats(values: pa.ChunkedArray, name: str, path: Path) -> Array:
    """Return the numbers or booleans of a column, NaN if they are missing; raise DataError if some are infinite."""
    # Not safe: whole numbers above 2^53 become the nearest float.
    floats: Array = pc.cast(values, pa.float64(), safe=False).to_numpy()
    if np.isinf(floats).any():
        raise DataError(f"{path}: column {name!r} has infinite numbers")
    return floats


def _feature_names(table: pa.Table, file: ClientFile, excluded: set[str | None]) -> Sequence[str]:
    if file.columns is None:
        return [column for column in table.column_names if column not in excluded]
    for column in file.columns:
        check_column(column, file.path, table)
        if column in excluded:
            raise InputError(f"{file.path}: {column!r} is the column of ids or labels, not a feature")
    return file.columns
