"""The Arrow message of one record, as a recorder writes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

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
        uploads = [upload for upload in self.uploads if upload is not None]
        samples, sample_ends = _side_by_side([batch for batch, _ in uploads], np.dtype(np.uint32))
        embeddings, ends = _side_by_side([array for _, array in uploads], np.dtype(precision))
        digests = iter(
            fmt.digest_of(samples[batch], embeddings[numbers])
            for batch, numbers in zip(_slices(sample_ends), _slices(ends), strict=True)
        )
        columns = [
            _texts(self.kinds),
            _texts(self.clients),
            pa.array(np.full(n_rows, self.time)),
            _of_last_row(n_rows, None if self.offset is None else self.offset.ravel(), schema.field("offset").type),
            _of_last_row(n_rows, self.state, schema.field("state").type),
            pa.array([None if upload is None else next(digests) for upload in self.uploads], pa.binary(32)),
            self._lists(samples, sample_ends),
            self._lists(embeddings, ends),
        ]
        message = pa.RecordBatch.from_arrays(columns, schema=schema).serialize()
        return message, fmt.next_link(previous, message, fmt.frame_ranges(read_plain(message)[1], precision))

    def _lists(self, numbers: Array, ends: Sequence[int]) -> pa.LargeListArray:
        """Return a row of numbers for each upload, and an empty one for each other row."""
        result, number = [0], 0
        for upload in self.uploads:
            number += upload is not None
            result.append(ends[number])
        return pa.LargeListArray.from_arrays(pa.array(result, pa.int64()), pa.array(numbers))


def _side_by_side(arrays: Sequence[Array], kind: np.dtype) -> tuple[Array, list[int]]:
    """Return all numbers of some arrays in one, and where each array ends in it, from 0 on."""
    ends: list[int] = np.cumsum([0, *(array.size for array in arrays)]).tolist()
    if not arrays:
        return np.empty(0, kind), ends
    return np.concatenate([array.ravel() for array in arrays], dtype=kind), ends


def _slices(ends: Sequence[int]) -> list[slice]:
    return [slice(start, end) for start, end in pairwise(ends)]


@lru_cache(maxsize=64)
def _texts(texts: tuple[str | None, ...]) -> pa.StringArray:
    return pa.array(texts, pa.string())


def _of_last_row(n_rows: int, values: object, kind: pa.DataType) -> pa.Array:
    if values is None:
        return pa.nulls(n_rows, kind)
    return pa.array([None] * (n_rows - 1) + [values], kind)
