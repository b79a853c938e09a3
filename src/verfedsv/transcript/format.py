"""The files of a transcript. docs/transcript.md describes them for readers without this package.

    transcript.json     what was recorded: clients, loss, mode, sizes
    labels.arrow        the labels, and which rows receive gradients
    uploads.arrows      an Arrow stream, one record batch per entry of the log, one row per upload or time stamp
    chain.bin           for each message of the stream: where it ends, and a hash of it and of all before it

Nothing is ever rewritten but transcript.json, once, when the first upload has shown mode and width.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from functools import cache
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
import pyarrow as pa

from verfedsv.errors import TranscriptError
from verfedsv.losses import Array

NAME, VERSION = "verfedsv transcript", 1
FILES = DESCRIPTION, LABELS, UPLOADS, CHAIN = "transcript.json", "labels.arrow", "uploads.arrows", "chain.bin"

Mode = Literal["synchronous", "asynchronous"]
Precision = Literal["float32", "float64"]

_NUMBERS = ("samples", "embeddings")
_CHAIN_ENTRY = struct.Struct("<Q32s")


@dataclass(frozen=True)
class Description:
    """What transcript.json says. Mode, classes, precision and batch sizes are None until the first upload."""

    clients: tuple[str, ...]
    loss: str
    n_samples: int
    created: str
    package: str
    mode: Mode | None = None
    n_classes: int | None = None
    precision: Precision | None = None
    batch_sizes: dict[str, int] | None = None

    def to_json(self) -> bytes:
        """Return the bytes of transcript.json."""
        fields = {"format": NAME, "version": VERSION, **asdict(self)}
        return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes) -> Description:
        """Return the description in transcript.json; raise TranscriptError if this package cannot read it."""
        try:
            fields: dict[str, Any] = json.loads(text)
            name, version = fields.pop("format"), fields.pop("version")
        except (ValueError, KeyError, AttributeError, TypeError):
            raise TranscriptError(f"{DESCRIPTION} is damaged: it is not the description of a transcript") from None
        if name != NAME:
            raise TranscriptError(f"{DESCRIPTION} describes a {name!r}, not a {NAME!r}")
        if version != VERSION:
            raise TranscriptError(
                f"the transcript has format version {version}; this verfedsv reads version {VERSION}. "
                "Install the version of verfedsv that wrote it (see 'package' there), or a newer one"
            )
        try:
            return cls(**{**fields, "clients": tuple(fields["clients"])})
        except (TypeError, KeyError):
            raise TranscriptError(f"{DESCRIPTION} is damaged: fields are missing or unknown") from None


@cache
def upload_schema(precision: Precision) -> pa.Schema:
    """Return the schema of uploads.arrows. A row without a client is a time stamp.

    `embeddings` and `offset` hold the classes of a sample side by side. `digest` is the SHA-256 of the bytes of
    `samples` and of `embeddings`.
    """
    if precision not in get_args(Precision):
        raise TranscriptError(f"{DESCRIPTION} is damaged: unknown precision {precision!r}")
    number = pa.float32() if precision == "float32" else pa.float64()
    return pa.schema(
        [
            pa.field("client", pa.string()),
            pa.field("time", pa.float64(), nullable=False),
            pa.field("offset", pa.list_(number)),
            pa.field("digest", pa.binary(32)),
            pa.field("samples", pa.list_(pa.uint32()), nullable=False),
            pa.field("embeddings", pa.list_(number), nullable=False),
        ]
    )


def digest_of(samples: Array, embeddings: Array) -> bytes:
    """Return the hash of one upload: of its sample numbers (uint32) and its embeddings, little-endian."""
    digest = hashlib.sha256(np.ascontiguousarray(samples).data)
    digest.update(np.ascontiguousarray(embeddings).data)
    return digest.digest()


def frame_hash(previous: bytes, message: pa.Buffer | memoryview, ranges: Iterable[tuple[int, int]]) -> bytes:
    """Return the next link of the chain: the hash of the one before and of the message without its uploads.

    `ranges` are those of `frame_ranges`. The numbers of the uploads are left out because the message holds a hash of
    each upload; so every byte is hashed once, and a client can prove its own uploads without showing those of others.
    """
    digest = hashlib.sha256(previous)
    whole = memoryview(message)
    for start, stop in ranges:
        digest.update(whole[start:stop])
    return digest.digest()


def frame_ranges(message: pa.Buffer, batch: pa.RecordBatch | None) -> list[tuple[int, int]]:
    """Return the parts of a message that are not numbers of uploads; `batch` was read from it without a copy.

    Raises ValueError unless these parts, with the digests in them, settle everything that the message holds.
    docs/transcript.md says why they do.
    """
    edges = [0, message.size]
    if batch is not None:
        _check_lists(batch)
        _check_buffers(message, batch)
        for name in _NUMBERS:
            values = batch.column(name).values
            if len(values) > 0:
                start = values.buffers()[1].address - message.address
                edges += [start, start + len(values) * values.type.bit_width // 8]
    edges.sort()
    return list(zip(edges[0::2], edges[1::2], strict=True))


def _check_lists(batch: pa.RecordBatch) -> None:
    """Raise ValueError unless every number is part of one upload, so that a digest covers it."""
    if batch.num_rows == 0:
        raise ValueError("it is empty")
    clients = batch.column("client")
    stamps = [row for row, name in enumerate(clients.to_pylist()) if name is None] if clients.null_count else []
    for name in _NUMBERS:
        column = batch.column(name)
        offsets = column.offsets.to_numpy()
        if column.null_count or column.values.null_count:
            raise ValueError(f"{name} are missing")
        if offsets[0] != 0 or offsets[-1] != len(column.values) or any(offsets[r] < offsets[r + 1] for r in stamps):
            raise ValueError(f"there are {name} that are part of no upload")


def _check_buffers(message: pa.Buffer, batch: pa.RecordBatch) -> None:
    """Raise ValueError unless the columns lie in the body of a message, each byte being part of one of them."""
    body = pa.ipc.read_message(message).body
    extents = sorted(
        (buffer.address, buffer.address + buffer.size)
        for column in batch.columns
        for buffer in column.buffers()
        if buffer is not None and buffer.size > 0
    )
    extents = [(0, body.address), *extents, (body.address + body.size, math.inf)]
    if any(stop > start for (_, stop), (start, _) in pairwise(extents)):
        raise ValueError("columns overlap, or are compressed")


def check_schema(message: pa.Buffer, schema: pa.Schema) -> None:
    """Raise ValueError unless the first message of a stream says that the others are of that schema."""
    if not pa.ipc.read_schema(message).equals(schema):
        raise ValueError("the columns are not those of a transcript")


def read_message(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch in a message, its numbers being views of the message."""
    return pa.ipc.read_record_batch(pa.ipc.read_message(message), schema)


def pack_link(end: int, digest: bytes) -> bytes:
    """Return an entry of chain.bin: where the message ends in uploads.arrows, and the hash up to there."""
    return _CHAIN_ENTRY.pack(end, digest)


def first_link(description: bytes, labels: bytes) -> bytes:
    """Return where the chain begins: the hash of transcript.json and labels.arrow."""
    return link_of_digests(hashlib.sha256(description).digest(), hashlib.sha256(labels).digest())


def link_of_digests(description: bytes, labels: bytes) -> bytes:
    """Return the same from the hashes of the two files, for those who may not see the labels."""
    return hashlib.sha256(description + labels).digest()
