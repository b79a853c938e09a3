"""`export_parquet`: a transcript as Parquet tables, for Spark and others; docs/transcript.md has their columns."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from verfedsv._version import __version__
from verfedsv.arrays import Array
from verfedsv.errors import InputError
from verfedsv.transcript.locations import as_location
from verfedsv.transcript.objects import ObjectStorage
from verfedsv.transcript.reader import Transcript
from verfedsv.transcript.records import Stamp, Upload

SUMMARY = "export.json"
"""The last file to be written: without it, an export to an object store is not complete."""

_GROUP, _FILE = 2**25, 2**29
"""Bytes of a group of rows, of which one is in memory for each table, and of a file, before compression."""
_MOST_PENDING = 1000

_Open = Callable[[str], Any]
"""Opens a file of an export, by its name, for writing."""


def export_parquet(
    transcript: Transcript,
    place: str | os.PathLike[str],
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, int]:
    """Write a transcript as tables into a new folder, which may be in an object store; return their numbers of rows.

    A local folder appears when it is complete. Hashes are not checked: `Transcript.verify` does that. `progress` is
    called with the number of rounds done and their total.
    """
    with _new_folder(place) as open_file:
        with ExitStack() as stack:
            tables = {
                name: stack.enter_context(_Table(name, schema, open_file))
                for name, schema in _schemas(transcript).items()
            }
            _add_samples(transcript, tables["samples"])
            _add_records(transcript, tables, progress)
        n_rows = {name: table.n_rows for name, table in tables.items()}
        with open_file(SUMMARY) as file:
            file.write(_summary(transcript, n_rows))
    return n_rows


def _summary(transcript: Transcript, n_rows: Mapping[str, int]) -> bytes:
    content = {
        "format": "verfedsv export",
        "version": 1,
        "package": f"verfedsv {__version__}",
        "head": transcript.head,
        "n_rounds": transcript.n_rounds,
        "clients": transcript.clients,
        "n_rows": n_rows,
        "transcript": asdict(transcript.description),
    }
    return (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode()


def _schemas(transcript: Transcript) -> dict[str, pa.Schema]:
    """Return the columns of each table. Integers are signed, as Spark has no others."""
    numbers = pa.list_(pa.float32() if transcript.description.precision == "float32" else pa.float64())
    label, text = pa.from_numpy_dtype(_signed(transcript.labels[:0]).dtype), pa.string()
    when = {"round": pa.int32(), "time": pa.float64()}
    columns = {
        "uploads": when | {"upload": pa.int64(), "client": text, "sample": pa.int64(), "embedding": numbers},
        "rounds": when | {"absent": pa.list_(text), "state": pa.list_(text)},
        "offsets": when | {"sample": pa.int64(), "offset": numbers},
        "members": when | {"client": text, "change": text},
        "samples": {
            "sample": pa.int64(),
            "label": label if transcript.labels.ndim == 1 else pa.list_(label),
            "class": text,
            "receives_gradient": pa.bool_(),
        },
    }
    return {name: pa.schema([*fields.items()]) for name, fields in columns.items()}


def _signed(labels: Array) -> Array:
    """Return labels as booleans, 64-bit integers or 64-bit floats."""
    if labels.dtype.kind == "b":
        return labels
    return labels.astype(np.float64 if labels.dtype.kind == "f" or labels.dtype == np.uint64 else np.int64)


def _add_samples(transcript: Transcript, table: _Table) -> None:
    labels, classes = transcript.labels, transcript.description.classes
    names = None if classes is None else pa.array(classes, pa.string())
    for part in _parts(labels):
        numbers = _signed(labels[part])
        table.add(
            sample=np.arange(part.start, part.start + len(numbers)),
            label=numbers,
            **{"class": None if names is None else names.take(pa.array(numbers.astype(np.int64)))},
            receives_gradient=transcript.receives_gradient[part],
        )


def _add_records(transcript: Transcript, tables: Mapping[str, _Table], progress: Callable[[int, int], None]) -> None:
    is_synchronous = transcript.description.mode == "synchronous"
    n_rounds = n_uploads = 0
    batches = list[Array]()
    for name in transcript.description.clients:
        tables["members"].add(round=1, time=None, client=name, change="founder")
    for record in transcript:
        when = {"round": n_rounds + 1, "time": record.time}
        if isinstance(record, Upload):
            n_uploads += 1
            batches.append(record.samples)
            for part in _parts(record.embeddings):
                sample, embedding = record.samples[part].astype(np.int64), record.embeddings[part]
                tables["uploads"].add(
                    **when, upload=n_uploads, client=record.client, sample=sample, embedding=embedding
                )
        elif isinstance(record, Stamp):
            tables["rounds"].add(**when, absent=[[*record.absent]], state=[[*record.state]])
            if record.offset is not None:
                _add_offset(tables["offsets"], when, record.offset, batches if is_synchronous else [])
            batches.clear()
            n_rounds += 1
            progress(n_rounds, transcript.n_rounds)
        else:
            tables["members"].add(**when, client=record.client, change=type(record).__name__.lower())


def _add_offset(table: _Table, when: Mapping[str, Any], offset: Array, batches: Sequence[Array]) -> None:
    """Add an offset: for all samples alike, for the samples of a batch that all clients share, or for every sample."""
    if offset.ndim == 1:
        table.add(**when, sample=None, offset=offset[np.newaxis])
        return
    is_shared = len(batches) > 0 and all(np.array_equal(batches[0], other) for other in batches[1:])
    samples = batches[0].astype(np.int64) if is_shared else np.arange(len(offset))
    for part in _parts(offset):
        table.add(**when, sample=samples[part], offset=offset[part])


def _parts(rows: Array) -> Iterator[slice]:
    """Yield slices of rows that are no larger than a group."""
    size = max(1, _GROUP // max(1, rows[:1].nbytes))
    return (slice(start, start + size) for start in range(0, len(rows), size))


class _Table:
    """Writes rows to files named `NAME/part-00001.parquet` and so on; at least one, so that its columns are known."""

    def __init__(self, name: str, schema: pa.Schema, open_file: _Open) -> None:
        self._name, self._schema, self._open_file = name, schema, open_file
        self._pending, self._n_bytes = list[pa.RecordBatch](), 0
        self._file: Any = None
        self._writer: parquet.ParquetWriter | None = None
        self._n_files = self._size = self.n_rows = 0

    def add(self, **columns: Any) -> None:
        """Add rows: an array or list for each column, or one value for all rows."""
        n_rows = max((len(values) for values in columns.values() if _is_column(values)), default=1)
        arrays = [_as_column(columns[each.name], each.type, n_rows) for each in self._schema]
        batch = pa.record_batch(arrays, schema=self._schema)
        self.n_rows += n_rows
        self._n_bytes += batch.nbytes
        self._pending.append(batch)
        if self._n_bytes >= _GROUP:
            self._write_group()
        elif len(self._pending) >= _MOST_PENDING:
            self._pending = pa.Table.from_batches(self._pending).combine_chunks().to_batches()

    def _write_group(self) -> None:
        if self._writer is None:
            self._n_files += 1
            self._file = self._open_file(f"{self._name}/part-{self._n_files:05}.parquet")
            alike = [name for name in ("round", "time", "upload", "client", "change") if name in self._schema.names]
            self._writer = parquet.ParquetWriter(self._file, self._schema, use_dictionary=alike)
        self._writer.write_table(pa.Table.from_batches(self._pending, self._schema))
        self._size += self._n_bytes
        self._pending, self._n_bytes = [], 0
        if self._size >= _FILE:
            self._close()

    def _close(self) -> None:
        if self._writer is not None:
            try:
                self._writer.close()
            finally:
                self._file.close()
                self._writer, self._size = None, 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None and (self._pending or self._n_files == 0):
                self._write_group()
        finally:
            self._close()


def _is_column(values: object) -> bool:
    return isinstance(values, np.ndarray | list | pa.Array)


def _as_column(values: Any, kind: pa.DataType, n_rows: int) -> pa.Array:
    if not _is_column(values):
        return pa.repeat(pa.scalar(values, kind), n_rows)
    if isinstance(values, np.ndarray) and values.ndim == 2:
        ends = np.arange(n_rows + 1, dtype=np.int32) * values.shape[1]
        return pa.ListArray.from_arrays(pa.array(ends), pa.array(values.ravel()))
    return pa.array(values, kind)


@contextmanager
def _new_folder(place: str | os.PathLike[str]) -> Iterator[_Open]:
    """Yield a function that opens files in a new folder, of which nothing is left after an error."""
    location = as_location(place)
    if isinstance(location, str):
        with ObjectStorage(location).filling() as open_object:
            yield open_object
        return
    if location.exists() or location.is_symlink():
        raise InputError(f"cannot write {location}: it exists; name a new folder")
    if not location.absolute().parent.is_dir():
        raise InputError(f"cannot write {location}: there is no folder {location.parent}")
    unfinished = Path(tempfile.mkdtemp(dir=location.parent, prefix=f".{location.name[:100]}."))

    def open_file(name: str) -> IO[bytes]:
        path = unfinished / name
        path.parent.mkdir(exist_ok=True)
        return path.open("xb")

    try:
        yield open_file
        mask = os.umask(0)
        os.umask(mask)
        unfinished.chmod(0o777 & ~mask)  # a temporary folder is private
        unfinished.rename(location)
    except BaseException as error:
        shutil.rmtree(unfinished)
        # The error of a full disk names no file, or one in the folder that is gone.
        if isinstance(error, OSError) and error.errno and str(error.filename or unfinished).startswith(str(unfinished)):
            error.filename, error.filename2 = str(location), None
        raise
