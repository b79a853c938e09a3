"""Where Arrow messages begin and end, their types, and that they are not compressed: checked before Arrow reads them.

Arrow would decompress columns to any size, read the first of several messages in a buffer, and follow the footer of a
file wherever it points. Metadata are not trusted here: whatever they say, nothing beyond them is read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import pyarrow as pa

_CONTINUES = 0xFFFFFFFF
_VERSION_5, _SCHEMA, _RECORD_BATCH = 4, 1, 3
_MAGIC, _PADDING = b"ARROW1", 2
_END_OF_STREAM = struct.pack("<II", _CONTINUES, 0)
_LONGEST = 2**16
"""Bytes of metadata. Those of a transcript have about a thousand."""
LONGEST_HEAD = 8 + _LONGEST
"""Bytes at the beginning of a message that suffice for `find_extent`."""
_BLOCK, _PAIR = struct.Struct("<qi4xq"), struct.Struct("<qq")

UNREADABLE = (
    *(ValueError, LookupError, TypeError, ArithmeticError, EOFError, OSError, MemoryError, RecursionError),
    *(struct.error, pa.ArrowException),
)
"""What Arrow and the functions here raise for invalid bytes."""


class Layout(NamedTuple):
    """The sizes of the head of a message, including its metadata, and of its body.

    For a record batch, `nodes` has length and number of nulls of each array, depth first, and `buffers` has offset in
    the body and size of each buffer.
    """

    head: int
    body: int
    nodes: tuple[tuple[int, ...], ...] = ()
    buffers: tuple[tuple[int, ...], ...] = ()

    @property
    def size(self) -> int:
        return self.head + self.body


def metadata_of(message: pa.Buffer) -> bytes:
    """Return the head of a message; raise ValueError or struct.error if it is not one."""
    _, n_metadata = struct.unpack_from("<Ii", message)
    if not 0 < n_metadata <= _LONGEST:
        raise ValueError("it does not begin like a message")
    return bytes(memoryview(message)[: 8 + n_metadata])


def find_layout(metadata: bytes, kind: int = _RECORD_BATCH) -> Layout:
    """Return the layout of a message with this head; raise ValueError or struct.error if it is not plain.

    Arrow checks only messages of a type that it knows, so one of another type than `kind` must not reach it.
    """
    extent = find_extent(memoryview(metadata))
    if extent is None or extent.head % 8 or extent.body % 8:
        raise ValueError("it does not end where its entry does")
    root = _Table.root(memoryview(metadata), 8)
    if root.number(1, "<B") != kind:
        raise ValueError("it has a message of the wrong type")
    if kind != _RECORD_BATCH:
        return extent
    batch = root.table(2)
    # Before version 5, compression could be stated elsewhere.
    if root.number(0, "<h") != _VERSION_5 or batch.has(3):
        raise ValueError("it is compressed, or of an older version of Arrow")
    nodes, buffers = (tuple(batch.structs(field, _PAIR)) for field in (1, 2))
    return extent._replace(nodes=nodes, buffers=buffers)


def find_extent(content: memoryview) -> Layout | None:
    """Return the sizes of the message at the beginning of some bytes; None if they do not tell."""
    if len(content) < 8:
        return None
    continues, n_metadata = struct.unpack_from("<Ii", content)
    if continues != _CONTINUES or not 0 < n_metadata <= min(_LONGEST, len(content) - 8):
        return None
    try:
        body = _Table.root(content[: 8 + n_metadata], 8).number(3, "<q")
    except struct.error:
        return None
    return Layout(8 + n_metadata, body) if body >= 0 else None


def read_file_of_one_batch(content: pa.Buffer) -> pa.RecordBatch:
    """Return the only record batch of an Arrow file; raise one of `UNREADABLE` if the file has anything else.

    So readers that go by the footer find the same as readers that go by the stream before it.
    """
    view = memoryview(content)
    start = len(_MAGIC) + _PADDING
    if bytes(view[:start]) != _MAGIC + bytes(_PADDING) or bytes(view[-len(_MAGIC) :]) != _MAGIC:
        raise ValueError("it is not an Arrow file")
    messages, blocks = [], []
    for kind in (_SCHEMA, _RECORD_BATCH):
        extent = find_extent(view[start:])
        if extent is None:
            raise ValueError("it ends within a message")
        message = content.slice(start, extent.size)
        find_layout(metadata_of(message), kind)  # refuses compression
        messages.append(pa.ipc.read_message(message))
        blocks.append((start, extent.head, extent.body))
        start += extent.size
    end_of_footer = len(view) - len(_MAGIC) - 4
    (n_footer,) = struct.unpack_from("<i", view, end_of_footer)
    if bytes(view[start : start + 8]) != _END_OF_STREAM or start + 8 + n_footer != end_of_footer:
        raise ValueError("it has more than one record batch")
    footer = _Table.root(view[:end_of_footer], start + 8)
    if footer.structs(2, _BLOCK) or footer.structs(3, _BLOCK) != [blocks[1]]:
        raise ValueError("its footer does not list its record batch")
    schema = pa.ipc.read_schema(messages[0])
    batch = pa.ipc.read_record_batch(messages[1], schema)
    batch.validate(full=True)
    with pa.ipc.open_file(content) as reader:
        # `reader.schema` does not tell that numbers are big-endian: it describes them after conversion.
        if footer.table(1).number(0, "<h") or not reader.schema.equals(schema, check_metadata=True):
            raise ValueError("its footer has other columns")
    return batch


class _Table:
    """A table of a flatbuffer (https://flatbuffers.dev/internals); reading beyond the bytes raises struct.error."""

    def __init__(self, content: memoryview, offset: int) -> None:
        self._content, self._offset = content, offset
        self._fields = offset - self._at(offset, "<i")
        self._n_bytes = self._at(self._fields, "<H")

    @classmethod
    def root(cls, content: memoryview, offset: int) -> _Table:
        return cls(content, offset + int(struct.unpack_from("<I", content, offset)[0]))

    def has(self, field: int) -> bool:
        return self._find(field) != self._offset

    def number(self, field: int, kind: str) -> int:
        """Return a field; 0 if it is missing, which is the default of all fields read here."""
        return self._at(self._find(field), kind) if self.has(field) else 0

    def table(self, field: int) -> _Table:
        offset = self._find(field)
        return _Table(self._content, offset + self._at(offset, "<I"))

    def structs(self, field: int, kind: struct.Struct) -> list[tuple[int, ...]]:
        """Return a vector of structs; empty if it is missing."""
        if not self.has(field):
            return []
        offset = self._find(field)
        offset += self._at(offset, "<I")
        n_structs = self._at(offset, "<I")
        if n_structs * kind.size > len(self._content):
            raise struct.error("a vector is longer than the message")
        return [kind.unpack_from(self._content, offset + 4 + index * kind.size) for index in range(n_structs)]

    def _find(self, field: int) -> int:
        slot = 4 + 2 * field
        return self._offset + (self._at(self._fields + slot, "<H") if slot < self._n_bytes else 0)

    def _at(self, offset: int, kind: str) -> int:
        if offset < 0:  # would count from the end
            raise struct.error("an offset before the beginning")
        number: int = struct.unpack_from(kind, self._content, offset)[0]
        return number
