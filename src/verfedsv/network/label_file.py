"""The file of the client in the server's process: ids, labels, and columns if it has some."""

from __future__ import annotations

import hashlib
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from verfedsv.arrays import Array
from verfedsv.data.ids import Ids
from verfedsv.data.sources import ClientFile, TableRows, check_column, read_source
from verfedsv.errors import InputError
from verfedsv.runs.config import ClientSection, Config

_PART = 100_000
"""Rows that are hashed at once."""


class LabelFile:
    """The label owner's part of the data; nothing is read before it is asked for."""

    def __init__(self, config: Config) -> None:
        self._label = config.data.label
        self._holder: ClientSection = next(client for client in config.client if client.file is not None)

    @property
    def owner(self) -> str:
        """The name of the client."""
        return self._holder.name

    @property
    def id_column(self) -> str:
        """The column of ids."""
        return self._holder.id

    @cached_property
    def file(self) -> ClientFile:
        """Where the file is, and what of it is used."""
        holder = self._holder
        columns = None if holder.columns is None else tuple(holder.columns)
        return ClientFile(holder.file or Path(), holder.id, columns)

    @cached_property
    def source(self) -> TableRows:
        """What is in it; raises InputError if it is no table."""
        source = read_source(self.file, self._label)
        if not isinstance(source, TableRows):
            raise InputError(f"{self.file.path} must be CSV or Parquet, with a column of ids")
        return source

    @property
    def ids(self) -> Ids:
        """The ids of its rows."""
        return self.source.ids[0]

    def order(self, rows: Array) -> Array:
        """Return the order in which the samples in these rows are trained on, whatever their order is in `rows`.

        Each alignment shuffles the samples; by this, the same files give the same test samples and batches. It is that
        of a hash of the ids, keyed with all ids and labels, which nobody else has: sample numbers, which auditors get,
        still say nothing about ids.
        """
        key = self._hash_of_all()
        marks = [
            hashlib.blake2b(own.encode(), key=key).digest() for own in self.ids.values.take(pa.array(rows)).to_pylist()
        ]
        return np.array(sorted(range(len(marks)), key=marks.__getitem__), np.intp)

    def _hash_of_all(self) -> bytes:
        """Return a hash of all ids with their labels, whatever the order of the rows."""
        labels, found = (
            self.source.table.column(str(self._label)).cast(pa.large_string()).combine_chunks(),
            hashlib.sha256(),
        )
        by_id = pc.sort_indices(self.ids.values)
        for start in range(0, len(by_id), _PART):
            part = by_id.slice(start, _PART)
            pairs = zip(self.ids.values.take(part).to_pylist(), labels.take(part).to_pylist(), strict=True)
            found.update("".join(f"{own}\0{label}\0" for own, label in pairs).encode())
        return found.digest()

    def describe(self) -> str:
        """Return what the file has; raise an error if it cannot be used."""
        column = str(self._label)
        check_column(column, self.file.path, self.source.table)
        return f"{len(self.ids):,} rows in {self.file.path}, labels in column {column!r}"
