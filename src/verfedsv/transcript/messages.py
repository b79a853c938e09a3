"""`RecordMessage`: the Arrow message of one record.

Messages of the same clients and sizes differ only in their numbers, which have the same offsets. So Arrow builds a
template once, which is then filled in: recording a round of eight clients and 200 samples takes 100 µs instead of 180.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.arrays import Array
from verfedsv.transcript import format as fmt
from verfedsv.transcript.description import Precision
from verfedsv.transcript.framing import Layout, find_extent

_LARGE = 2**19
"""Numbers of embeddings above which a message gets no template: templates are kept in memory."""

Numbers = tuple[NDArray[np.uint32], Array]
"""The samples of an upload, and their embeddings, (samples, width)."""


@dataclass(frozen=True, eq=False)
class RecordMessage:
    """The content of a record batch, row by row; `uploads` has None for rows that are not uploads.

    `offset` and `state` belong to the last row, a time stamp.
    """

    kinds: tuple[str, ...]
    clients: tuple[str | None, ...]
    time: float
    uploads: Sequence[Numbers | None]
    offset: Array | None = None
    state: Sequence[bytes] | None = None

    def build(self, precision: Precision, previous: bytes) -> tuple[pa.Buffer | bytearray, bytes]:
        """Return the bytes of the message and its link, which follows the link `previous`."""
        n_numbers = sum(upload[1].size for upload in self.uploads if upload is not None)
        if n_numbers > _LARGE or self.state is not None:
            message = self._serialize(precision)
            return message, fmt.next_link(previous, message, fmt.form_of(message, precision).frame)
        sizes = tuple(None if upload is None else (len(upload[0]), upload[1].shape[1]) for upload in self.uploads)
        n_offset = None if self.offset is None else self.offset.size
        content, form = _template(self.kinds, self.clients, sizes, n_offset, precision)
        filled = bytearray(content)
        self._fill(filled, form.layout, np.dtype(precision))
        return filled, fmt.next_link(previous, filled, form.frame)

    def _fill(self, message: bytearray, layout: Layout, number: np.dtype[Any]) -> None:
        """Write the numbers into a message of zeros."""

        def column(buffer: int, kind: Any, n_items: int) -> Array:
            return np.frombuffer(message, kind, n_items, layout.head + layout.buffers[buffer][0])

        n_rows = len(self.kinds)
        column(fmt.TIME, np.float64, n_rows)[:] = self.time
        if self.offset is not None:
            column(fmt.OFFSET, number, self.offset.size)[:] = self.offset.ravel()
        samples = column(fmt.SAMPLES, np.uint32, layout.nodes[fmt.SAMPLES_NODE][0])
        embeddings = column(fmt.EMBEDDINGS, number, layout.nodes[fmt.EMBEDDINGS_NODE][0])
        rows, uploads, begin, start = [], [], 0, 0
        for row, upload in enumerate(self.uploads):
            if upload is not None:
                end, stop = begin + len(upload[0]), start + upload[1].size
                samples[begin:end] = upload[0]
                embeddings[start:stop] = upload[1].ravel()
                rows.append(row)
                uploads.append((upload[0], embeddings[start:stop]))
                begin, start = end, stop
        if rows:
            digests = b"".join(fmt.digests_of(uploads))
            column(fmt.DIGEST, np.uint8, 32 * n_rows).reshape(-1, 32)[rows] = np.frombuffer(digests, np.uint8).reshape(
                -1, 32
            )

    def _serialize(self, precision: Precision) -> pa.Buffer:
        """Return the message, built by Arrow."""
        schema = fmt.upload_schema(precision)
        n_rows = len(self.kinds)
        samples, sample_ends = self._side_by_side(0, np.dtype(np.uint32))
        embeddings, ends = self._side_by_side(1, np.dtype(precision))
        uploads = zip(self.uploads, pairwise(ends), strict=True)
        digests = iter(fmt.digests_of((upload[0], embeddings[a:b]) for upload, (a, b) in uploads if upload is not None))
        columns = [
            pa.array(self.kinds, pa.string()),
            pa.array(self.clients, pa.string()),
            pa.array(np.full(n_rows, self.time)),
            _of_last_row(n_rows, None if self.offset is None else self.offset.ravel(), schema.field("offset").type),
            _of_last_row(n_rows, self.state, schema.field("state").type),
            pa.array([None if upload is None else next(digests) for upload in self.uploads], pa.binary(32)),
            pa.LargeListArray.from_arrays(pa.array(sample_ends, pa.int64()), pa.array(samples)),
            pa.LargeListArray.from_arrays(pa.array(ends, pa.int64()), pa.array(embeddings)),
        ]
        batch = pa.RecordBatch.from_arrays(columns, schema=schema)
        return batch.serialize() if len(embeddings) < 2**31 else _serialize_large(batch)

    def _side_by_side(self, part: int, kind: np.dtype[Any]) -> tuple[Array, list[int]]:
        """Return all samples (part 0) or embeddings (part 1) in one array, and the offsets of rows in it."""
        arrays = [None if upload is None else upload[part].ravel() for upload in self.uploads]
        ends = [0, *accumulate(0 if array is None else array.size for array in arrays)]
        present = [array for array in arrays if array is not None]
        if len(present) == 1:
            return np.ascontiguousarray(present[0], kind), ends
        return np.concatenate(present, dtype=kind) if present else np.empty(0, kind), ends


@lru_cache(maxsize=64)
def _template(
    kinds: tuple[str, ...],
    clients: tuple[str | None, ...],
    sizes: tuple[tuple[int, int] | None, ...],
    n_offset: int | None,
    precision: Precision,
) -> tuple[bytes, fmt.Form]:
    """Return a message of zeros for uploads of those sizes, (samples, width), and its form."""
    number = np.dtype(precision)
    uploads = [None if size is None else (np.zeros(size[0], np.uint32), np.zeros(size, number)) for size in sizes]
    offset = None if n_offset is None else np.zeros(n_offset, number)
    message = RecordMessage(kinds, clients, 0.0, uploads, offset)._serialize(precision)
    return message.to_pybytes(), fmt.form_of(message, precision)


def _serialize_large(batch: pa.RecordBatch) -> pa.Buffer:
    """Return the message of a batch with arrays of 2^31 items or more, which `serialize` refuses."""
    space = pa.allocate_buffer(batch.get_total_buffer_size() + 2**16)
    options = pa.ipc.IpcWriteOptions(allow_64bit=True)
    with pa.ipc.new_stream(pa.FixedSizeBufferWriter(space), batch.schema, options=options) as writer:
        writer.write_batch(batch)
    view = memoryview(space)
    schema = find_extent(view)
    message = None if schema is None else find_extent(view[schema.size :])
    if schema is None or message is None:
        raise AssertionError("a stream begins with its schema and a batch")
    return space.slice(schema.size, message.size)


def _of_last_row(n_rows: int, values: object, kind: pa.DataType) -> pa.Array:
    if values is None:
        return pa.nulls(n_rows, kind)
    return pa.array([None] * (n_rows - 1) + [values], kind)
