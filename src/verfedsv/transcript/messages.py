"""The Arrow message of one record, as a recorder writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.losses import Array
from verfedsv.transcript import format as fmt
from verfedsv.transcript.description import Precision
from verfedsv.transcript.framing import read_plain

Numbers = tuple[NDArray[np.uint32], Array]
"""The samples of an upload, and their embeddings, (samples, width)."""


@dataclass(frozen=True, eq=False)
class Message:
    """What one record batch holds, row by row: `uploads` has None for rows that are none.

    `offset` and `state` are those of a time stamp, which is the last row.
    """

    kinds: tuple[str, ...]
    clients: tuple[str | None, ...]
    time: float
    uploads: Sequence[Numbers | None]
    offset: Array | None = None
    state: Sequence[bytes] | None = None

    def build(self, precision: Precision, previous: bytes) -> tuple[pa.Buffer, bytes]:
        """Return the bytes of the message and its link of the chain, which begins with the link `previous`."""
        schema = fmt.upload_schema(precision)
        n_rows = len(self.kinds)
        samples, sample_ends = self._side_by_side(0, np.dtype(np.uint32))
        embeddings, ends = self._side_by_side(1, np.dtype(precision))
        uploads = zip(self.uploads, pairwise(ends), strict=True)
        digests = iter(fmt.digests_of((upload[0], embeddings[a:b]) for upload, (a, b) in uploads if upload is not None))
        columns = [
            _texts(self.kinds),
            _texts(self.clients),
            _as_column(np.full(n_rows, self.time)),
            _of_last_row(n_rows, None if self.offset is None else self.offset.ravel(), schema.field("offset").type),
            _of_last_row(n_rows, self.state, schema.field("state").type),
            pa.array([None if upload is None else next(digests) for upload in self.uploads], pa.binary(32)),
            _as_lists(samples, sample_ends, schema.field("samples").type),
            _as_lists(embeddings, ends, schema.field("embeddings").type),
        ]
        message = pa.RecordBatch.from_arrays(columns, schema=schema).serialize()
        return message, fmt.next_link(previous, message, fmt.frame_ranges(read_plain(message)[1], precision))

    def _side_by_side(self, part: int, kind: np.dtype[Any]) -> tuple[Array, list[int]]:
        """Return all samples (part 0) or embeddings (part 1) in one array, and where each row ends in it, from 0 on."""
        arrays = [None if upload is None else upload[part].ravel() for upload in self.uploads]
        ends = [0, *accumulate(0 if array is None else array.size for array in arrays)]
        there = [array for array in arrays if array is not None]
        if len(there) == 1:
            return np.ascontiguousarray(there[0], kind), ends
        return np.concatenate(there, dtype=kind) if there else np.empty(0, kind), ends


def _as_column(numbers: Array) -> pa.Array:
    # A third of the time of pa.array, which is for whatever a user has.
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, pa.py_buffer(numbers)])


def _as_lists(numbers: Array, ends: Sequence[int], kind: pa.DataType) -> pa.LargeListArray:
    offsets = pa.py_buffer(np.array(ends, np.int64))
    return pa.Array.from_buffers(kind, len(ends) - 1, [None, offsets], children=[_as_column(numbers)])


@lru_cache(maxsize=64)
def _texts(texts: tuple[str | None, ...]) -> pa.StringArray:
    return pa.array(texts, pa.string())


def _of_last_row(n_rows: int, values: object, kind: pa.DataType) -> pa.Array:
    if values is None:
        return pa.nulls(n_rows, kind)
    return pa.array([None] * (n_rows - 1) + [values], kind)
