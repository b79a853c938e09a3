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

from verfedsv.errors import InputError, TranscriptError
from verfedsv.losses import LOSSES, Array
from verfedsv.transcript.framing import read_plain
from verfedsv.transcript.names import check_names
from verfedsv.untrusted import read_json

NAME, VERSION = "verfedsv transcript", 1
FILES = DESCRIPTION, LABELS, UPLOADS, CHAIN = "transcript.json", "labels.arrow", "uploads.arrows", "chain.bin"

Mode = Literal["synchronous", "asynchronous"]
Precision = Literal["float32", "float64"]

LATEST = 1e15
"""Seconds, before or after 0. Where numbers are so large that seconds are lost in them, time would stand still."""

LARGEST_EMBEDDING = 1e12
"""What an embedding may be in size. One that is larger comes from a training that diverged, or from a client that wants
nobody's value to be known: errors of rounding grow with it, for everybody."""

_NUMBERS = ("samples", "embeddings")
_CHAIN_ENTRY = struct.Struct("<Q32s")


@dataclass(frozen=True)
class Description:
    """What transcript.json says. Mode, classes of embeddings and precision are None until the first upload.

    `classes` are the names of the classes, in the order of the numbers that stand for them, if labels were texts.
    """

    clients: tuple[str, ...]
    loss: str
    n_samples: int
    created: str
    package: str
    mode: Mode | None = None
    n_classes: int | None = None
    precision: Precision | None = None
    classes: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        try:
            _check_description(self)
        except ValueError as error:
            raise TranscriptError(f"{DESCRIPTION} is not valid: {error}") from None

    def to_json(self) -> bytes:
        """Return the bytes of transcript.json."""
        fields = {"format": NAME, "version": VERSION, **asdict(self)}
        return (json.dumps(fields, indent=2, ensure_ascii=False) + "\n").encode()

    @classmethod
    def from_json(cls, text: bytes) -> Description:
        """Return the description in transcript.json; raise TranscriptError if this package cannot read it."""
        try:
            fields = read_json(text, DESCRIPTION)
        except InputError as error:
            raise TranscriptError(f"the transcript is damaged: {error}") from None
        if not isinstance(fields, dict) or fields.get("format") != NAME:
            raise TranscriptError(f"{DESCRIPTION} is damaged, or not the description of a transcript")
        version = fields.get("version")
        if type(version) is not int or version != VERSION:
            raise TranscriptError(
                f"the transcript has format version {str(version)[:20]}; this verfedsv reads version {VERSION}. "
                "Install the version of verfedsv that wrote it (see 'package' there), or a newer one"
            )
        rest: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in fields.items()
            if name not in ("format", "version")
        }
        try:
            return cls(**rest)
        except TypeError:
            raise TranscriptError(f"{DESCRIPTION} is damaged: fields are missing or unknown") from None


def _check_description(about: Description) -> None:
    """Raise ValueError unless every field is what a recorder would have written."""
    check_names(about.clients)
    if not isinstance(about.loss, str) or about.loss not in LOSSES:
        raise ValueError(f"unknown loss {about.loss!a}; allowed are {', '.join(map(repr, LOSSES))}")
    _check_whole("n_samples", about.n_samples, 1, 2**32)
    if not all(isinstance(text, str) for text in (about.created, about.package)):
        raise ValueError("created and package must be texts")
    _check_first_upload(about)
    _check_class_names(about)


def _check_first_upload(about: Description) -> None:
    """Check what the first upload shows."""
    shown = about.mode, about.n_classes, about.precision
    if all(field is None for field in shown):
        return
    for field, allowed in ((about.mode, get_args(Mode)), (about.precision, get_args(Precision))):
        if not isinstance(field, str) or field not in allowed:
            raise ValueError(f"mode or precision is {field!a}, which is none of {', '.join(map(repr, allowed))}")
    # How many classes a loss takes: logistic loss has one number per sample.
    least, most = {"logistic": (1, 1), "softmax": (2, 2**31)}.get(about.loss, (1, 2**31))
    _check_whole("n_classes", about.n_classes, least, most)


def _check_class_names(about: Description) -> None:
    if about.classes is None:
        return
    names = about.classes
    if not isinstance(names, tuple) or not all(isinstance(name, str) and name for name in names):
        raise ValueError("classes must be a list of names")
    if about.loss == "squared" or len(set(names)) < len(names) or len(names) < 2:
        raise ValueError("classes are two or more different names of the classes of logistic or softmax loss")
    if len(names) > (2 if about.loss == "logistic" else about.n_classes or len(names)):
        raise ValueError(f"there are {len(names)} names of classes, more than there are classes")


def _check_whole(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}; received {str(value)[:60]!a}")


@cache
def upload_schema(precision: Precision) -> pa.Schema:
    """Return the schema of uploads.arrows. A row without a client is a time stamp.

    `embeddings` and `offset` hold the classes of a sample side by side. `digest` is the SHA-256 of the bytes of
    `samples` and of `embeddings`; a row with a client and without a digest says that the client was absent.
    """
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

    Raises ValueError unless these parts, with the digests in them, settle everything that the message holds, if
    `Rows.of` takes the batch as well. docs/transcript.md says why they do.
    """
    edges = [0, message.size]
    if batch is not None:
        _check_buffers(message, batch)
        for name in _NUMBERS:
            values = batch.column(name).values
            if len(values) > 0:
                start = values.buffers()[1].address - message.address
                edges += [start, start + len(values) * values.type.bit_width // 8]
    edges.sort()
    return list(zip(edges[0::2], edges[1::2], strict=True))


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
        raise ValueError("columns overlap")


def check_schema(message: pa.Buffer, schema: pa.Schema) -> None:
    """Raise ValueError unless the first message of a stream says that the others are of that schema."""
    if not pa.ipc.read_schema(read_plain(message)).equals(schema):
        raise ValueError("the columns are not those of a transcript")


def read_message(message: pa.Buffer, schema: pa.Schema) -> pa.RecordBatch:
    """Return the record batch in a message, its numbers being views of the message.

    Whatever the bytes are, this returns a valid batch or raises one of `UNREADABLE`; nothing is unpacked.
    """
    batch = pa.ipc.read_record_batch(read_plain(message), schema)
    batch.validate(full=True)
    return batch


def pack_link(end: int, digest: bytes) -> bytes:
    """Return an entry of chain.bin: where the message ends in uploads.arrows, and the hash up to there."""
    return _CHAIN_ENTRY.pack(end, digest)


def first_link(description: bytes, labels: bytes) -> bytes:
    """Return where the chain begins: the hash of transcript.json and labels.arrow."""
    return link_of_digests(hashlib.sha256(description).digest(), hashlib.sha256(labels).digest())


def link_of_digests(description: bytes, labels: bytes) -> bytes:
    """Return the same from the hashes of the two files, for those who may not see the labels."""
    return hashlib.sha256(description + labels).digest()
