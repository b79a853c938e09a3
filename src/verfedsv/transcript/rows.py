"""`Rows`: a record batch of a transcript as plain arrays, made once and checked for gaps."""

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
    def of(cls, column: pa.LargeListArray, name: str) -> Lists:
        """Return a column; raise ValueError unless every number is part of one row."""
        values = column.values
        if column.null_count or values.null_count:
            raise ValueError(f"{name} are missing")
        ends: list[int] = column.offsets.to_numpy().tolist()
        if ends[0] != 0 or ends[-1] != len(values):
            raise ValueError(f"there are {name} that are part of no upload")
        return cls(_as_aligned(values), ends, [end - start for start, end in pairwise(ends)])

    def row(self, index: int) -> Array:
        """Return the numbers of a row, a view of all."""
        return self.numbers[self.ends[index] : self.ends[index + 1]]


@dataclass(frozen=True, eq=False)
class Rows:
    """The columns of a record batch, whose arrays are views of it; `offset` and `state` are those of its last row."""

    kinds: list[str | None]
    clients: list[str | None]
    times: list[float]
    offset: Array | None
    state: list[bytes] | None
    digests: list[bytes | None]
    samples: Lists
    embeddings: Lists

    @classmethod
    def of(cls, batch: pa.RecordBatch) -> Rows:
        """Return the rows of a valid batch; raise ValueError unless every number is part of one upload."""
        if batch.num_rows == 0:
            raise ValueError("it is empty")
        kinds, clients, times, offsets, states, digests, samples, embeddings = batch.columns
        if times.null_count:
            raise ValueError("times are missing")
        rows = cls(
            kinds.to_pylist(),
            clients.to_pylist(),
            times.to_pylist(),
            _last(offsets, "an offset"),
            _last(states, "a state of the head"),
            digests.to_pylist(),
            Lists.of(samples, "samples"),
            Lists.of(embeddings, "embeddings"),
        )
        for digest, n_samples, n_numbers in zip(
            rows.digests, rows.samples.lengths, rows.embeddings.lengths, strict=True
        ):
            if digest is None and (n_samples or n_numbers):
                raise ValueError(f"there are {'samples' if n_samples else 'embeddings'} that are part of no upload")
        return rows

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def absent(self) -> set[str | None]:
        """The clients that were declared absent."""
        return {client for kind, client in zip(self.kinds, self.clients, strict=True) if kind == "absent"}


def _last(column: pa.Array, what: str) -> Any:
    """Return the list in the last row, None if there is none; raise ValueError if another row has one."""
    if column.null_count == len(column):
        return None
    if column.null_count < len(column) - 1 or not column[-1].is_valid:
        raise ValueError(f"only a time stamp has {what}")
    values = column[-1].values
    if values.null_count:
        raise ValueError(f"{what} lacks values")
    return values.to_pylist() if pa.types.is_fixed_size_binary(values.type) else _as_aligned(values)


def _as_aligned(column: pa.Array) -> NDArray[Any]:
    array: NDArray[Any] = column.to_numpy()
    if not array.flags.aligned:
        raise ValueError("numbers do not lie where processors read them")
    return array
