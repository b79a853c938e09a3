"""The files of a transcript and their hashes. docs/transcript.md describes them for readers without this package.

    transcript.json         what is known before the first record: clients, loss, sizes, settings
    labels.arrow            the labels, and which samples receive gradients
    uploads-00001.arrows    the first segment: an Arrow stream with one record batch per record
    chain-00001.bin         for each message of that stream: where it ends, its kind, and a hash up to there
    tensors/HASH.npy        parameters of the server's head, by the SHA-256 of the file
    head.pt2                the head as a program that torch exported, if it is not made of common layers

While recording, only transcript.json is rewritten: by joins and leaves before the first record, and by the first
record, which shows mode and precision.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from enum import IntEnum
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from verfedsv.arrays import Array
from verfedsv.transcript.description import DESCRIPTION as DESCRIPTION
from verfedsv.transcript.description import Precision
from verfedsv.transcript.framing import Layout, find_layout, metadata_of

FOLDER = "transcript"
"""The folder within a run that holds its transcript."""

LABELS, TENSORS, PROGRAM = "labels.arrow", "tensors", "head.pt2"

LATEST = 1e15
"""Seconds, before or after 0. In larger numbers seconds would be lost to rounding."""

LARGEST_CHAIN = LARGEST_TENSOR = LARGEST_PROGRAM = LARGEST_LABELS = 2**30
"""Size limits of files in bytes; that of labels under a loss of the user's own."""

END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""What a sealed segment ends with."""


class Kind(IntEnum):
    """The kind of a message, as its entry in the chain states it."""

    START = 0  # of a segment: no bytes, and the last link of the segment before
    SCHEMA = 1
    UPLOAD = 2
    ROUND = 3  # a time stamp; in synchronous training with the uploads of its round
    JOIN = 4
    LEAVE = 5
    END = 6  # the end marker of a sealed segment


RECORDS = Kind.UPLOAD, Kind.ROUND, Kind.JOIN, Kind.LEAVE


def uploads_file(segment: int) -> str:
    """Return the name of the stream of a segment; the first is segment 1."""
    return f"uploads-{segment:05}.arrows"


def chain_file(segment: int) -> str:
    """Return the name of the chain of a segment."""
    return f"chain-{segment:05}.bin"


def tensor_file(digest: str) -> str:
    """Return the name of the file that holds a parameter of the head."""
    return f"{TENSORS}/{digest}.npy"


_SEGMENT_FILE = re.compile(r"uploads-(.*)\.arrows|chain-(.*)\.bin", re.IGNORECASE | re.DOTALL)


def segment_of(name: str) -> int | None:
    """Return the number of the segment that a file belongs to, by its name; None for other files.

    0 if the name only resembles one: whoever reads `uploads-*.arrows` would take the file for a segment.
    """
    found = _SEGMENT_FILE.fullmatch(name)
    if found is None:
        return None
    digits = found[1] or found[2] or ""
    segment = int(digits) if re.fullmatch("[0-9]{5,18}", digits) else 0
    return segment if name in (uploads_file(segment), chain_file(segment)) else 0


def is_file_of_transcript(name: str) -> bool:
    """Return whether a file belongs to a transcript, by its name; those in `TENSORS` are not considered."""
    return name in (DESCRIPTION, LABELS, PROGRAM) or segment_of(name) is not None


def files_of(folder: Path) -> list[Path]:
    """Return the paths of a transcript's files in a folder, without those in `TENSORS`, in the order of their names."""
    if not folder.is_dir():
        return []
    return sorted(path for path in folder.iterdir() if is_file_of_transcript(path.name))


@cache
def upload_schema(precision: Precision) -> pa.Schema:
    """Return the schema of a segment; docs/transcript.md describes its columns."""
    number = pa.float32() if precision == "float32" else pa.float64()
    return pa.schema(
        [
            pa.field("kind", pa.string(), nullable=False),
            pa.field("client", pa.string()),
            pa.field("time", pa.float64(), nullable=False),
            pa.field("offset", pa.large_list(number)),
            pa.field("state", pa.list_(pa.binary(32))),
            pa.field("digest", pa.binary(32)),
            pa.field("samples", pa.large_list(pa.uint32()), nullable=False),
            pa.field("embeddings", pa.large_list(number), nullable=False),
        ]
    )


_N_NODES, _N_BUFFERS = 12, 26
SAMPLES_NODE, EMBEDDINGS_NODE = 9, 11
TIME, OFFSET, STATE, DIGEST, SAMPLES, EMBEDDINGS = _NUMBERS = 7, 11, 15, 17, 21, 25
"""Depth first in that schema: how many arrays and buffers there are, and which hold the numbers of a column."""


_ALIGNMENT = 64
"""Arrow begins columns at multiples of at most this number of bytes."""


def digests_of(uploads: Iterable[tuple[Array, Array]]) -> list[bytes]:
    """Return the hash of each upload: of its samples (uint32), then its embeddings, as contiguous arrays.

    Samples equal to those of the upload before are not hashed again: in float32, that saves almost half of the work.
    """
    result, before, begun = [], None, hashlib.sha256()
    for samples, embeddings in uploads:
        is_same = samples is before or (before is not None and np.array_equal(samples, before))
        if not is_same:
            before, begun = samples, hashlib.sha256(samples.data)
        digest = begun.copy()
        digest.update(embeddings.data)
        result.append(digest.digest())
    return result


def next_link(previous: bytes, message: pa.Buffer | memoryview | bytes, ranges: Iterable[tuple[int, int]]) -> bytes:
    """Return the next link of the chain: the hash of the one before and of these `ranges` of the message.

    They leave out the numbers of uploads, as the message holds a hash of each upload: so every byte is hashed once, and
    a client can prove its own uploads without showing those of others.
    """
    digest = hashlib.sha256(previous)
    content = memoryview(message)
    for start, stop in ranges:
        digest.update(content[start:stop])
    return digest.digest()


class Form(NamedTuple):
    """What messages with the same metadata share; ranges are in bytes from the beginning of a message.

    `frame` is all but the numbers of uploads, which a link hashes. `fixed` is all but the numbers of any column, which
    decides whether Arrow can read the message.
    """

    layout: Layout
    frame: tuple[tuple[int, int], ...]
    fixed: tuple[tuple[int, int], ...]


def form_of(message: pa.Buffer, precision: Precision) -> Form:
    """Return the form of a message; raise one of `UNREADABLE` if it is compressed, or does not fill the buffer."""
    form = read_form(metadata_of(message), precision)
    if form.layout.size != message.size:
        raise ValueError("it does not end where its entry does")
    return form


@lru_cache(maxsize=256)  # messages of the same clients and sizes have the same metadata
def read_form(metadata: bytes, precision: Precision) -> Form:
    """Return the form of messages with this metadata; see `form_of`."""
    layout = find_layout(metadata)
    frame = frame_ranges(layout, precision)
    numbers = sorted(layout.buffers[buffer] for buffer in _NUMBERS if layout.buffers[buffer][1])
    edges = [0, *(layout.head + edge for start, size in numbers for edge in (start, start + size)), layout.size]
    return Form(layout, frame, tuple(zip(edges[0::2], edges[1::2], strict=True)))


def frame_ranges(layout: Layout, precision: Precision) -> tuple[tuple[int, int], ...]:
    """Return the ranges of a message that are not numbers of uploads, in bytes from its beginning.

    Raises ValueError unless these ranges, with the digests in them, determine all of the message, provided that
    `read_rows` accepts it; docs/transcript.md has the proof.
    """
    if (len(layout.nodes), len(layout.buffers)) != (_N_NODES, _N_BUFFERS):
        raise ValueError("the columns are not those of a transcript")
    extents = sorted((start, start + size) for start, size in layout.buffers if size != 0)
    extents = [(0, 0), *extents, (layout.body, layout.body)]
    if any(a > b for a, b in extents) or any(not 0 <= b - a < _ALIGNMENT for (_, a), (b, _) in pairwise(extents)):
        raise ValueError("columns overlap, or are too far apart")
    edges = [0, layout.size]
    size_of_embedding = np.dtype(precision).itemsize
    for node, buffer, width in ((SAMPLES_NODE, SAMPLES, 4), (EMBEDDINGS_NODE, EMBEDDINGS, size_of_embedding)):
        (n_numbers, _), (start, size) = layout.nodes[node], layout.buffers[buffer]
        if not 0 <= size - n_numbers * width < _ALIGNMENT:
            raise ValueError("a column has another length than it should have")
        if n_numbers:
            edges += [layout.head + start, layout.head + start + n_numbers * width]
    edges.sort()
    return tuple(zip(edges[0::2], edges[1::2], strict=True))


_SCHEMAS = {
    "float32": "c941d7269b09254979fa08ba7e5b7fffa56f2e686288e9ba4ae1bf7153cbc553",
    "float64": "2b21e0eb135a0b0f95a7a25741bc2a62ca025a7d4db57d00e85dca3ebf61b450",
}
"""The SHA-256 of the schema message of each precision, as pyarrow 17 to 26 write it."""


def check_schema(message: pa.Buffer, precision: Precision) -> None:
    """Raise ValueError unless the first message of a stream is the schema, byte by byte.

    Other readers might understand a schema that is merely equivalent in another way, or not at all.
    """
    if hashlib.sha256(message).hexdigest() != _SCHEMAS[precision]:
        raise ValueError("the columns are not those of a transcript")


def first_link(description: bytes, labels: bytes) -> bytes:
    """Return the first link of the chain: the hash of transcript.json and labels.arrow."""
    return link_of_digests(hashlib.sha256(description).digest(), hashlib.sha256(labels).digest())


def link_of_digests(description: bytes, labels: bytes) -> bytes:
    """Return the first link from the hashes of the two files, for those who may not see the labels."""
    return hashlib.sha256(description + labels).digest()
