"""`Rows`: a record batch of uploads.arrows as plain arrays, made once and checked for gaps."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.losses import Array


@dataclass(frozen=True, eq=False)
class Lists:
    """A column of lists: all numbers side by side, where the lists end, from 0 on, and how long they are."""

    numbers: Array
    ends: list[int]
    lengths: list[int]

    @classmethod
    def of(cls, column: pa.ListArray) -> Lists:
        """Return a column; a row that is null has a list of no meaning."""
        ends: list[int] = column.offsets.to_numpy().tolist()
        return cls(_as_aligned(column.values), ends, [end - start for start, end in pairwise(ends)])

    def row(self, index: int) -> Array:
        """Return the numbers of a row, a view of all."""
        return self.numbers[self.ends[index] : self.ends[index + 1]]


@dataclass(frozen=True, eq=False)
class Rows:
    """The columns of a record batch, whose arrays are views of it."""

    clients: list[str | None]
    times: list[float]
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
            times.to_pylist(),
            _optional(offsets),
            digests.to_pylist(),
            _lists(samples, "samples"),
            _lists(embeddings, "embeddings"),
        )

    def __len__(self) -> int:
        return len(self.clients)

    @property
    def absent(self) -> set[str]:
        """The clients that were declared absent: they have a row, and no digest."""
        pairs = zip(self.clients, self.digests, strict=True)
        return {client for client, digest in pairs if client is not None and digest is None}


def _lists(column: pa.ListArray, name: str) -> Lists:
    if column.null_count or column.values.null_count:
        raise ValueError(f"{name} are missing")
    lists = Lists.of(column)
    if lists.ends[0] != 0 or lists.ends[-1] != len(lists.numbers):
        raise ValueError(f"there are {name} that are part of no upload")
    return lists


def _optional(column: pa.ListArray) -> list[Array | None]:
    if column.null_count == len(column):
        return [None] * len(column)
    if column.values.null_count:
        raise ValueError("offsets are missing")
    lists = Lists.of(column)
    return [lists.row(row) if there else None for row, there in enumerate(column.is_valid().to_pylist())]


def _as_aligned(column: pa.Array) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy()
    if not array.flags.aligned:
        raise ValueError("numbers do not lie where processors read them")
    return array
