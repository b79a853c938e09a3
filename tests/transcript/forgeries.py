"""Transcripts that only a dishonest server would write, with valid chains."""

import hashlib
import io
import json
import struct

import numpy as np
import pyarrow as pa

from verfedsv.settings import ValuationSettings
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import pack_entry
from verfedsv.transcript.format import Kind
from verfedsv.transcript.framing import UNREADABLE

SCHEMA = fmt.upload_schema("float64")
UPLOADS, CHAIN = fmt.uploads_file(1), fmt.chain_file(1)
FILES = "transcript.json", "labels.arrow", UPLOADS, CHAIN


def place_of(array, message):
    """Return the offset of the data of an array in a message."""
    return array.buffers()[1].address - message.address


def bare_ranges(message, batch):
    """Return the ranges of a message without the values of its lists, according to its metadata."""
    edges = [0, message.size]
    for name in ("samples", "embeddings") if batch is not None else ():
        values = batch.column(name).values
        start = place_of(values, message)
        edges += [start, start + len(values) * values.type.bit_width // 8]
    edges.sort()
    return list(zip(edges[0::2], edges[1::2], strict=True))


def read(content):
    """Return the batch in the bytes of a message."""
    buffer = content if isinstance(content, pa.Buffer) else pa.py_buffer(content)
    batch = pa.ipc.read_record_batch(pa.ipc.read_message(buffer), SCHEMA)
    batch.validate(full=True)
    return batch


def chained(link, messages):
    """Return the stream of messages and their chain from a link on; a message is a kind, bytes and a batch."""
    stream, chain = b"", pack_entry(0, Kind.START, link)
    for kind, message, batch in messages:
        ranges = bare_ranges(message, batch)
        link = hashlib.sha256(link + b"".join(message.to_pybytes()[start:stop] for start, stop in ranges)).digest()
        stream += message.to_pybytes()
        chain += pack_entry(len(stream), kind, link)
    return stream, chain, link


def rewrite(source, out, change, description=None):
    """Write a transcript with each message changed and a valid chain; return its head."""
    out.mkdir()
    transcript = Transcript.open(source)
    about, labels = transcript.origin
    about = description or about
    messages = []
    for entry in list(transcript.entries())[1:]:
        is_record = entry.rows is not None
        message = pa.py_buffer(change(entry.message.to_pybytes())) if is_record else entry.message
        messages.append((entry.kind, message, read(message) if is_record else None))
    stream, chain, link = chained(fmt.first_link(about, labels), messages)
    for name, content in zip(FILES, (about, labels, stream, chain), strict=True):
        (out / name).write_bytes(content)
    return link.hex()


def _move_samples(content, start, n_before, first_row=0):
    """Return a message whose samples are said to begin at `start`, with that many more before the true ones.

    They are of no upload; or, if the list of `first_row` is the first to move, of the one before that.
    """
    message = pa.py_buffer(content)
    batch = read(message)
    column, changed = batch.column("samples"), bytearray(content)
    where, n_values = place_of(column.values, message), len(column.values)
    np.frombuffer(changed, np.int64, batch.num_rows + 1, place_of(column, message))[first_row:] += n_before
    size = column.values.buffers()[1].size
    body = 8 + struct.unpack_from("<i", changed, 4)[0]
    metadata = bytes(changed[:body])
    in_metadata = metadata.index(struct.pack("<qq", where - body, size))
    struct.pack_into("<qq", changed, in_metadata, start - body, where + size - start)
    node = metadata.index(struct.pack("<qqqq", batch.num_rows, 0, n_values, 0))
    struct.pack_into("<q", changed, node + 16, n_values + n_before)
    return bytes(changed)


def over_digests(content):
    """Return a message whose samples overlap its digests, so that the chain covers neither."""
    message = pa.py_buffer(content)
    batch = read(message)
    start = place_of(batch.column("digest"), message)
    return _move_samples(content, start, (place_of(batch.column("samples").values, message) - start) // 4)


def over_lists(content):
    """Return a message whose first two samples overlap the offsets of their list."""
    message = pa.py_buffer(content)
    start = place_of(read(message).column("samples").values, message) - 8
    return _move_samples(content, start, 2, first_row=1)


def _serialized(content, **columns):
    batch = read(content)
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
    """Return a message with compressed columns."""
    batch = read(content)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_batch(batch)
    reader = pa.ipc.MessageReader.open_stream(sink.getvalue())
    reader.read_next_message()
    return reader.read_next_message().serialize().to_pybytes()


ABOUT = {
    "format": "verfedsv transcript",
    "version": 3,
    "clients": ["bank", "telco", "shop"],
    "loss": "logistic",
    "n_samples": 4,
    "created": "2026-01-01T00:00:00+00:00",
    "package": "verfedsv 0",
    "segment_rounds": 1000,
    "is_own_loss": False,
    "mode": "synchronous",
    "n_classes": 1,
    "precision": "float64",
    "classes": None,
    "head": {
        "kind": "sum",
        "architecture": None,
        "layers": None,
        "program": None,
        "clients": [],
        "widths": [],
        "parameters": [],
        "state": [],
    },
    "valuation": ValuationSettings().as_dict(),
    "step": None,
    "n_planned": None,
    "intercept": None,
}
LABELS = {"label": [0, 1, 1, 0], "receives_gradient": [True, True, True, True]}


def row(kind, client, time, **others):
    """Return a row without numbers."""
    empty = {"offset": None, "state": None, "digest": None, "samples": [], "embeddings": []}
    return {"kind": kind, "client": client, "time": time} | empty | others


def upload(client, samples, embeddings, time=1.0, **others):
    """Return a row with the digest of its numbers."""
    digest = hashlib.sha256(
        np.array(samples, np.uint32).tobytes() + np.array(embeddings, np.float64).tobytes()
    ).digest()
    return row("upload", client, time, digest=digest, samples=samples, embeddings=embeddings) | others


def stamp(time=1.0, **others):
    """Return the row of a time stamp."""
    return row("stamp", None, time, **others)


def absent(client, time=1.0):
    """Return the row of a client that was declared absent."""
    return row("absent", client, time)


def message_of(rows):
    """Return the bytes of a message with these rows."""
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
    """Write a transcript of messages, each a list of rows or bytes, with a valid chain; return its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    description = about if isinstance(about, bytes) else json.dumps(about).encode()
    marks = labels if isinstance(labels, bytes) else file_of(labels)
    parts = [(Kind.SCHEMA, SCHEMA.serialize(), None)]
    for rows in messages:
        message = pa.py_buffer(rows if isinstance(rows, bytes) else message_of(rows))
        batch = _try_to_read(message)
        parts.append((_kind_of(batch), message, batch))
    stream, chain, _ = chained(fmt.first_link(description, marks), parts)
    for name, content in zip(FILES, (description, marks, stream, chain), strict=True):
        (folder / name).write_bytes(content)
    return folder


def _kind_of(batch):
    """Return the kind that a recorder would give to a record; a round if that is unclear."""
    last = batch.column("kind").to_pylist()[-1:] if batch is not None else []
    return {"upload": Kind.UPLOAD, "join": Kind.JOIN, "leave": Kind.LEAVE}.get(last[0] if last else "", Kind.ROUND)


def _try_to_read(message):
    """Return the batch in a message, None if it cannot be read without a copy."""
    try:
        return read(message)
    except UNREADABLE:
        return None
