"""The file of the client in the server's process: ids, labels, and columns if it has some."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

from verfedsv.data.ids import Ids
from verfedsv.data.sources import ClientFile, TableRows, check_column, read_source
from verfedsv.errors import InputError
from verfedsv.runs.config import ClientSection, Config


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

    def describe(self) -> str:
        """Return what the file has; raise an error if it cannot be used."""
        column = str(self._label)
        check_column(column, self.file.path, self.source.table)
        return f"{len(self.ids):,} rows in {self.file.path}, labels in column {column!r}"
