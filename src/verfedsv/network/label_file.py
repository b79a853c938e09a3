"""The file of the client in the server's process: ids, labels, and columns if it has some."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa

from verfedsv.arrays import Array
from verfedsv.data.ids import Ids
from verfedsv.data.labels import interpret, read_labels
from verfedsv.data.sources import ClientFile, TableRows, check_column, read_source
from verfedsv.errors import InputError
from verfedsv.files import read_whole, write_whole
from verfedsv.runs.config import ClientSection, Config

ORDER_KEY = "order.key"
_KEY_BYTES = 32
_PART = 100_000
"""Rows whose ids are hashed at once."""


class LabelFile:
    """The label owner's part of the data; nothing is read before it is asked for."""

    def __init__(self, config: Config) -> None:
        self._label, self._n_classes, self._loss = config.data.label, config.data.classes, config.training.loss
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
        # Arrow keeps what it has freed: with 40 columns, 3.7 times their numbers instead of 1.8.
        pa.default_memory_pool().release_unused()
        return source

    @property
    def ids(self) -> Ids:
        """The ids of its rows."""
        return self.source.ids[0]

    def order(self, rows: Array, key: bytes) -> Array:
        """Return the order in which the samples in these rows are trained on, whatever their order is in `rows`.

        Each alignment shuffles the samples; by this, the same files and key give the same test samples and batches. It
        is that of a hash of the ids with the `key`. Clients see the order of their own ids, and auditors sample
        numbers: without the key, neither says anything about other ids or about labels, whatever is guessed.
        """
        marks = np.empty((len(rows), 2), np.uint64)
        for start in range(0, len(rows), _PART):
            own = self.ids.values.take(pa.array(rows[start : start + _PART])).to_pylist()
            digests = b"".join(hashlib.blake2b(each.encode(), key=key, digest_size=16).digest() for each in own)
            marks[start : start + _PART] = np.frombuffer(digests, ">u8").reshape(-1, 2)
        return np.lexsort(marks.T).astype(np.intp)

    def forget_columns(self) -> None:
        """Free the memory of the columns, once they were read; the ids remain."""
        self.source = replace(self.source, table=self.source.table.select([]))
        pa.default_memory_pool().release_unused()

    def describe(self) -> str:
        """Return what the file has; raise an error if it cannot be used."""
        column = str(self._label)
        check_column(column, self.file.path, self.source.table)
        return f"{len(self.ids):,} rows in {self.file.path}, labels in column {column!r}"

    def check(self) -> str:
        """Return what the file has, and how many labels are missing; raise an error if nothing can be trained on them.

        The rows that are common to all are fewer, so that they may lack some of the classes, but have no others.
        """
        described = self.describe()
        written = read_labels(self.source.table, str(self._label), self.file.path)
        n_classes, n_different = self._n_classes, len(np.unique(written.known))
        # More classes than are set may be right: the others may be in rows that are not common.
        labels = interpret(written, self._loss, n_classes and max(n_classes, n_different))
        n_without = int((~labels.is_known).sum())
        without = f"; {n_without:,} rows have no label, and are left out" if n_without else ""
        return f"{described}{without}"


def order_key(folder: Path, *, is_begun: bool) -> bytes:
    """Return the key of the order of samples, a file in the server's private folder; a new training gets a random one.

    Raises InputError if a training that has begun has lost its key.
    """
    path = folder / ORDER_KEY
    if not path.exists():
        if is_begun:
            raise InputError(
                f"{path} is gone, and with it the order of the samples of the training that has begun: restore it from "
                "a backup, or begin a new run in another output folder"
            )
        write_whole(path, secrets.token_bytes(_KEY_BYTES))
        path.chmod(0o600)
    try:
        key = read_whole(path)
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror}") from None
    if len(key) != _KEY_BYTES:
        raise InputError(f"{path} must have {_KEY_BYTES} random bytes, and has {len(key):,}: restore it from a backup")
    return key
