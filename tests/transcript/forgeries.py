"""Transcripts as nobody but a dishonest server would write them: their chains fit."""

import hashlib
import io
import json
import shutil
import struct

import numpy as np
import pyarrow as pa

from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.framing import UNREADABLE

SCHEMA = fmt.upload_schema("float64")


def place_of(array, message):
    """Return where the data of an array begin in a message."""
    return array.buffers()[1].address - message.address


def bare_ranges(message, batch):
    """Return what is left of a message without the children of its lists, wherever it says that those lie."""
    edges = [0, message.size]
    for name in ("samples", "embeddings") if batch is not None else ():
        values = batch.column(name).values
        start = place_of(values, message)
        edges += [start, start + len(values) * values.type.bit_width // 8]
    edges.sort()
    return list(zip(edges[0::2], edges[1::2], strict=True))


def rewrite(source, out, change, description=None):
    """Write a transcript again, each message changed, with a chain that fits; return its head."""
    out.mkdir()
    transcript = Transcript.open(source)
    about, labels = transcript.origin
    about = description or about
    (out / "transcript.json").write_bytes(about)
    shutil.copy(source / "labels.arrow", out)
    link = fmt.first_link(about, labels)
    stream, chain = b"", b""
    for message, batch, _ in transcript.messages():
        new = message if batch is None else pa.py_buffer(change(message.to_pybytes()))
        ranges = bare_ranges(new, None if batch is None else fmt.read_message(new, SCHEMA))
        link = hashlib.sha256(link + b"".join(new.to_pybytes()[start:stop] for start, stop in ranges)).digest()
        stream += new.to_pybytes()
        chain += fmt.pack_link(len(stream), link)
    (out / "uploads.arrows").write_bytes(stream)
    (out / "chain.bin").write_bytes(chain)
    return link.hex()


def _move_samples(content, start, n_before, first_row=0):
    """Return a message whose samples are said to begin at `start`, with that many more before the true ones.

    They are of no upload; or, if the list of `first_row` is the first to move, of the one before that.
    """
    message = pa.py_buffer(content)
    batch = fmt.read_message(message, SCHEMA)
    column, changed = batch.column("samples"), bytearray(content)
    where, n_values = place_of(column.values, message), len(column.values)
    np.frombuffer(changed, np.int32, batch.num_rows + 1, place_of(column, message))[first_row:] += n_before
    size = column.values.buffers()[1].size
    body = 8 + struct.unpack_from("<i", changed, 4)[0]
    metadata = bytes(changed[:body])
    in_metadata = metadata.index(struct.pack("<qq", where - body, size))
    struct.pack_into("<qq", changed, in_metadata, start - body, where + size - start)
    node = metadata.index(struct.pack("<qqqq", batch.num_rows, 0, n_values, 0))
    struct.pack_into("<q", changed, node + 16, n_values + n_before)
    return bytes(changed)


def over_digests(content):
    """Return a message whose samples begin where its digests do, so that a chain without the samples has neither."""
    message = pa.py_buffer(content)
    batch = fmt.read_message(message, SCHEMA)
    start = place_of(batch.column("digest"), message)
    return _move_samples(content, start, (place_of(batch.column("samples").values, message) - start) // 4)


def over_lists(content):
    """Return a message in which the first two samples lie where the list of uploads does that they are in."""
    message = pa.py_buffer(content)
    start = place_of(fmt.read_message(message, SCHEMA).column("samples").values, message) - 8
    return _move_samples(content, start, 2, first_row=1)


def _serialized(content, **columns):
    batch = fmt.read_message(pa.py_buffer(content), SCHEMA)
    for name, change in columns.items():
        index = SCHEMA.get_field_index(name)
        batch = batch.set_column(
            index, SCHEMA.field(name), pa.array(change(batch.column(name).to_pylist()), SCHEMA.types[index])
        )
    return batch.serialize().to_pybytes()


def stamps_with_numbers(content):
    """Return a message whose time stamp, which has no digest, has samples."""
    return _serialized(content, samples=lambda rows: [*rows[:-1], [7, 8]])


def without_some_numbers(content):
    """Return a message with a null among its embeddings."""
    return _serialized(content, embeddings=lambda rows: [[None, *rows[0][1:]], *rows[1:]])


def compressed(content):
    """Return a message whose columns have to be unpacked first."""
    batch = fmt.read_message(pa.py_buffer(content), SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return reader.read_next_message().serialize().to_pybytes()


ABOUT = {
    "format": "verfedsv transcript",
    "version": 1,
    "clients": ["bank", "telco", "shop"],
    "loss": "logistic",
    "n_samples": 4,
    "created": "2026-01-01T00:00:00+00:00",
    "package": "verfedsv 0",
    "mode": "synchronous",
    "n_classes": 1,
    "precision": "float64",
    "classes": None,
}
LABELS = {"label": [0, 1, 1, 0], "receives_gradient": [True, True, True, True]}


def upload(client, samples, embeddings, time=1.0, **others):
    """Return a row with the digest of its numbers."""
    digest = fmt.digest_of(np.array(samples, np.uint32), np.array(embeddings, np.float64))
    row = {"client": client, "time": time, "offset": None, "digest": digest}
    return row | {"samples": samples, "embeddings": embeddings} | others


def stamp(time=1.0, **others):
    """Return the row of a time stamp."""
    row = {"client": None, "time": time, "offset": None, "digest": None, "samples": [], "embeddings": []}
    return row | others


def absent(client, time=1.0):
    """Return the row of a client that was declared absent."""
    return stamp(time, client=client)


def message_of(rows):
    """Return the bytes of a message that has these rows."""
    columns = [pa.array([row[field.name] for row in rows], field.type) for field in SCHEMA]
    return pa.record_batch(columns, schema=SCHEMA).serialize().to_pybytes()


def file_of(columns, **options):
    """Return the bytes of an Arrow file."""
    table = columns if isinstance(columns, pa.Table) else pa.table(columns)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue()


def write(folder, messages, about=ABOUT, labels=LABELS):
    """Write a transcript of messages, each a list of rows or bytes, with a chain that fits; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    description = about if isinstance(about, bytes) else json.dumps(about).encode()
    marks = labels if isinstance(labels, bytes) else file_of(labels)
    link = fmt.first_link(description, marks)
    stream, chain = b"", b""
    for index, rows in enumerate([SCHEMA.serialize().to_pybytes(), *messages]):
        message = pa.py_buffer(rows if isinstance(rows, bytes) else message_of(rows))
        ranges = bare_ranges(message, None if index == 0 else _try_to_read(message))
        link = hashlib.sha256(link + b"".join(message.to_pybytes()[start:stop] for start, stop in ranges)).digest()
        stream += message.to_pybytes()
        chain += fmt.pack_link(len(stream), link)
    for name, content in zip(fmt.FILES, (description, marks, stream, chain), strict=True):
        (folder / name).write_bytes(content)
    return folder


def _try_to_read(message):
    """Return the batch in a message, None if there is none that can be read without a copy."""
    try:
        return fmt.read_message(message, SCHEMA)
    except UNREADABLE:
        return None
