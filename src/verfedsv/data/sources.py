"""The rows of a client: those of its file and, after them, those of its test file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from verfedsv.data.ids import Ids, find_common, read_ids
from verfedsv.data.libsvm import LibsvmRows, is_libsvm, read_libsvm
from verfedsv.data.reading import read_table
from verfedsv.errors import DataError, InputError


@dataclass(frozen=True)
class ClientFile:
    """Where a client's columns are: a file, its column of ids, and which columns to take (all others if None).

    Without a column of ids, rows are those of the same samples, in the same order, in the files of all clients. LIBSVM
    files never have ids. `test_path` is a file of the same columns with test samples.
    """

    path: Path
    id_column: str | None
    columns: tuple[str, ...] | None = None
    test_path: Path | None = None

    def __post_init__(self) -> None:
        for name in ("path", "test_path"):
            given = getattr(self, name)
            try:
                object.__setattr__(self, name, None if given is None and name == "test_path" else Path(given))
            except TypeError:
                raise InputError(f"the path of a client's file must be a path or text; received {given!r}") from None
        if self.is_libsvm and self.id_column is not None:
            raise InputError(f"{self.path}: LIBSVM files have no ids; rows must be aligned")
        if self.is_libsvm and self.columns is not None:
            raise InputError(f"{self.path}: columns of LIBSVM files have no names; all are taken")
        if self.test_path is not None and is_libsvm(self.test_path) != self.is_libsvm:
            raise InputError(f"{self.path} and {self.test_path} must be files of the same kind")

    @property
    def is_libsvm(self) -> bool:
        return is_libsvm(self.path)

    @property
    def paths(self) -> tuple[Path, ...]:
        """The file, and the test file if there is one."""
        return (self.path,) if self.test_path is None else (self.path, self.test_path)


@dataclass(frozen=True, eq=False)
class TableRows:
    """The rows of a CSV or Parquet file, or of two; `sizes` has the number of rows of each file."""

    table: pa.Table
    sizes: tuple[int, ...]
    ids: tuple[Ids, ...]


Source = TableRows | LibsvmRows


def read_source(file: ClientFile, label: str | None) -> Source:
    """Return the rows of a client; `label` is the column of the labels if they are in its file."""
    if file.is_libsvm:
        return read_libsvm(file.paths)
    tables = [read_table(path, file.id_column) for path in file.paths]
    ids = []
    if file.id_column is not None:
        for path, table in zip(file.paths, tables, strict=True):
            check_column(file.id_column, path, table)
            ids.append(read_ids(table, path, file.id_column))
    if len(ids) == 2:
        _check_apart(*ids)
    sizes = tuple(table.num_rows for table in tables)
    return TableRows(tables[0] if len(tables) == 1 else _concatenate(file, tables, label), sizes, tuple(ids))


def check_column(name: str, path: Path, table: pa.Table) -> None:
    """Raise DataError if a table has no column of that name."""
    if name not in table.column_names:
        raise DataError(f"{path} has no column {name!r}; it has {', '.join(table.column_names)}")


@dataclass(frozen=True, eq=False)
class Matched:
    """The rows of each client that are of the same samples, (samples,); the last `n_test` are of test files."""

    rows: Mapping[str, NDArray[np.intp]]
    n_test: int
    note: str


def match_rows(sources: Mapping[str, Source], files: Mapping[str, ClientFile]) -> Matched:
    """Return the rows of the samples that all clients have, in the order of the first client.

    Raises an error if only some clients have ids, or only some test files, or if rows cannot be matched.
    """
    if len({file.id_column is None for file in files.values()}) > 1:
        raise InputError("either all clients have a column of ids or none, and then rows are aligned")
    if len({len(file.paths) for file in files.values()}) > 1:
        missing = [name for name, file in files.items() if file.test_path is None]
        raise InputError(f"either all clients have a test file or none; without one are {', '.join(missing)}")
    is_aligned = next(iter(files.values())).id_column is None
    rows: dict[str, list[NDArray[np.intp]]] = {name: [] for name in sources}
    for part in range(len(next(iter(files.values())).paths)):
        found = _match_aligned(sources, files, part) if is_aligned else _match_ids(sources, part)
        for name, source in sources.items():
            rows[name].append(found[name] + [0, *accumulate(source.sizes)][part])
    n_samples = [len(of_part) for of_part in next(iter(rows.values()))]
    joined = {name: np.concatenate(of_parts) for name, of_parts in rows.items()}
    where = ("in all files", "in all test files")
    counts = " and ".join(f"{n:,} {'samples are ' if k == 0 else ''}{where[k]}" for k, n in enumerate(n_samples))
    note = f"{counts}, row by row" if is_aligned else counts
    return Matched(joined, sum(n_samples[1:]), note)


def _match_ids(sources: Mapping[str, Source], part: int) -> dict[str, NDArray[np.intp]]:
    ids = {name: source.ids[part] for name, source in sources.items() if isinstance(source, TableRows)}
    common = find_common(list(ids.values()))
    return {name: np.asarray(known.rows(common).to_numpy(), np.intp) for name, known in ids.items()}


def _match_aligned(
    sources: Mapping[str, Source], files: Mapping[str, ClientFile], part: int
) -> dict[str, NDArray[np.intp]]:
    sizes = {name: source.sizes[part] for name, source in sources.items()}
    if len({*sizes.values()}) > 1:
        said = ", ".join(f"{n:,} in {files[name].paths[part]}" for name, n in sizes.items())
        raise DataError(
            f"aligned files must have the same number of rows: {said}. Their rows must be of the same samples in the "
            "same order; if they are not, use CSV or Parquet files with a column of ids"
        )
    return {name: np.arange(n) for name, n in sizes.items()}


def _check_apart(train: Ids, test: Ids) -> None:
    """Raise DataError if ids are in both files of a client."""
    shared = test.values.filter(pc.is_in(test.values, value_set=train.values))
    if len(shared):
        raise DataError(
            f"{test.path}: {len(shared):,} ids are also in {train.path}, for example {shared[0]}; samples to test on "
            "must not be trained on. Remove them from one of the two"
        )


def _concatenate(file: ClientFile, tables: list[pa.Table], label: str | None) -> pa.Table:
    """Return a table and a test table as one; raise DataError unless both have the columns that are used, of one type.

    Columns that are empty in one of them, and whole and decimal numbers, go together.
    """
    train, test = tables
    used = train.column_names
    if file.columns is not None:
        wanted = {file.id_column, label, *file.columns}
        used = [name for name in train.column_names if name in wanted]
    elif added := [name for name in test.column_names if name not in used]:
        raise DataError(
            f"{file.test_path} has a column {added[0]!r}, which {file.path} has not; remove it, or name those to take "
            "(columns)"
        )
    for name in used:
        if name not in test.column_names:
            raise DataError(f"{file.test_path} has no column {name!r}, which {file.path} has")
        kinds = [table.schema.field(name).type for table in tables]
        try:
            pa.concat_tables([table.select([name]) for table in tables], promote_options="permissive")
        except pa.ArrowException:
            raise DataError(
                f"column {name!r} is of type {kinds[0]} in {file.path} and of type {kinds[1]} in {file.test_path}; "
                "write it in the same way in both"
            ) from None
    return pa.concat_tables([table.select(used) for table in tables], promote_options="permissive")
