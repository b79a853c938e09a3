"""`Rows`: a record batch of uploads.arrows as plain arrays, made once and checked for gaps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.losses import Array


@dataclass(frozen=True, eq=False)
class Lists:
    """A column of lists: all numbers side by side, and where the list of each row ends, (rows + 1,), from 0 on."""

    numbers: Array
    ends: NDArray[np.int32]

    @property
    def lengths(self) -> NDArray[np.int32]:
        return np.diff(self.ends)

    def of(self, row: int) -> Array:
        """Return the numbers of a row, a view of all."""
        return self.numbers[self.ends[row] : self.ends[row + 1]]


@dataclass(frozen=True, eq=False)
class Rows:
    """The columns of a record batch, whose arrays are views of it."""

    clients: list[str | None]
    times: NDArray[np.float64]
    offsets: list[Array | None]
    digests: list[bytes | None]
    samples: Lists
    embeddings: Lists

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Rows:
        """Return the rows of a valid batch; raise ValueError unless every number is part of one row."""
        if batch.num_rows == 0:
            raise ValueError("it is empty")
        clients, times, offsets, digests, samples, embeddings = batch.columns
        if times.null_count:
            raise ValueError("times are missing")
        return cls(
            clients.to_pylist(),
            _as_aligned(times),
            _optional(offsets),
            digests.to_pylist(),
            _lists(samples, "samples"),
            _lists(embeddings, "embeddings"),
        )

    def __len__(self) -> int:
        return len(self.clients)


def _lists(column: pa.ListArray, name: str) -> Lists:
    if column.null_count or column.values.null_count:
        raise ValueError(f"{name} are missing")
    lists = Lists(_as_aligned(column.values), column.offsets.to_numpy())
    if lists.ends[0] != 0 or lists.ends[-1] != len(lists.numbers):
        raise ValueError(f"there are {name} that are part of no upload")
    return lists


def _optional(column: pa.ListArray) -> list[Array | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    if column.values.null_count:
        raise ValueError("offsets are missing")
    lists = Lists(_as_aligned(column.values), column.offsets.to_numpy())
    return [lists.of(row) if there else None for row, there in enumerate(column.is_valid().to_pylist())]


def _as_aligned(column: pa.Array) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy()
    if not array.flags.aligned:
        raise ValueError("numbers do not lie where processors read them")
    return array
