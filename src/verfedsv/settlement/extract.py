"""Extracts: what one client uploaded, and what ties that to the whole transcript, without the uploads of others.

The hash chain leaves out the numbers of uploads and has a digest of each instead. So an extract holds every message of
the transcript with gaps where those numbers were, the numbers of the one client, and the hash of the labels: enough to
compute the chain again to its head, and to see that the client's uploads are the ones in it.

An extract is a binary file, all numbers little-endian:

    MAGIC, and the version (8 bytes)
    size (8 bytes), and that many bytes of JSON: client, description (the text of transcript.json), labels_sha256, head
    number (8 bytes) of beginnings, the size of each (8 bytes each), and the beginnings
    number (8 bytes) of messages, a header of each (48 bytes each), and the pieces of all messages
    the client's uploads: of each its samples (uint32) and its embeddings

A message is one of the beginnings, its Arrow metadata, which most messages share with others, and then three pieces
with two gaps between them. Its header has its kind and the number of its beginning (4 bytes each), and the sizes of the
pieces and of the gaps (8 bytes each).
"""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.errors import InputError, TranscriptError
from verfedsv.transcript import Description, Transcript, Upload
from verfedsv.transcript import format as fmt
from verfedsv.transcript.description import Precision
from verfedsv.transcript.format import Kind
from verfedsv.transcript.framing import UNREADABLE
from verfedsv.transcript.meaning import Rules
from verfedsv.transcript.rows import Rows, read_rows
from verfedsv.transcript.streams import Entry
from verfedsv.transcript.verification import Verified
from verfedsv.untrusted import read_json

MAGIC, VERSION = b"verfedsv extract", 2
_NUMBER = struct.Struct("<Q")
_LONGEST_BEGINNING = 2**14
"""Metadata of a message take about 1.5 kB."""

_HEADER = np.dtype([("kind", "<u4"), ("beginning", "<u4"), ("pieces", "<u8", 3), ("gaps", "<u8", 2)])
_FIELDS = {"client", "description", "labels_sha256", "head"}


@dataclass(frozen=True, eq=False, slots=True)
class Part:
    """A message with gaps: the bytes before, between and after them, and the sizes of the gaps.

    `beginning` precedes the pieces. Messages share it: joined to each, 50 bytes of a file could take 16 kB of memory.
    """

    kind: Kind
    pieces: Sequence[bytes | memoryview]
    gaps: Sequence[int]
    beginning: bytes = b""

    @classmethod
    def of(cls, entry: Entry) -> Part:
        """Return a message of a transcript without the numbers of uploads."""
        view, ranges = memoryview(entry.message), list(entry.ranges)
        ranges += [(len(view), len(view))] * (3 - len(ranges))
        gaps = [ranges[index + 1][0] - ranges[index][1] for index in (0, 1)]
        return cls(entry.kind, [view[start:stop] for start, stop in ranges], gaps)

    def message(self) -> tuple[pa.Buffer, tuple[tuple[int, int], ...]]:
        """Return the message with zeros in its gaps, and where its pieces begin and end."""
        ranges, end = [], 0
        pieces = [self.beginning + bytes(self.pieces[0]), *self.pieces[1:]]
        for piece, gap in zip(pieces, [*self.gaps, 0], strict=True):
            ranges.append((end, end + len(piece)))
            end += len(piece) + gap
        # Zeros that nobody reads or writes take no memory, however many the extract says there are.
        content = np.zeros(end, np.uint8)
        for piece, (start, stop) in zip(pieces, ranges, strict=True):
            content[start:stop] = np.frombuffer(piece, np.uint8)
        n_pieces = 1 + sum(gap > 0 for gap in self.gaps)
        return pa.py_buffer(content), tuple(ranges[:n_pieces])


@dataclass(frozen=True, eq=False)
class Extract:
    """One client's part of a transcript: the text of transcript.json, and the hash of the labels.

    `parts` are the messages of the transcript in order, `own` the numbers of the client's uploads, one after the other;
    `head` is the last link of the chain, in hexadecimal.
    """

    client: str
    description: str
    labels_sha256: str
    head: str
    parts: Sequence[Part]
    own: bytes | memoryview = field(repr=False)

    def to_bytes(self) -> bytes:
        """Return the content of the file."""
        about = {name: getattr(self, name) for name in sorted(_FIELDS)}
        header = json.dumps(about, ensure_ascii=False).encode()
        beginnings: dict[bytes, int] = {}
        headers = np.zeros(len(self.parts), _HEADER)
        pieces: list[bytes | memoryview] = []
        for index, part in enumerate(self.parts):
            first, *others = part.beginning + bytes(part.pieces[0]), *part.pieces[1:]
            size = min(len(first), 8 + struct.unpack_from("<I", first, 4)[0])  # of its metadata
            number = beginnings.setdefault(bytes(first[:size]), len(beginnings))
            own = [first[size:], *others]
            headers[index] = part.kind, number, [len(piece) for piece in own], part.gaps
            pieces += own
        sizes = b"".join(_NUMBER.pack(len(beginning)) for beginning in beginnings)
        return b"".join(
            [
                *(MAGIC, _NUMBER.pack(VERSION), _NUMBER.pack(len(header)), header),
                *(_NUMBER.pack(len(beginnings)), sizes, *beginnings),
                *(_NUMBER.pack(len(headers)), headers.tobytes(), *pieces),
                self.own,
            ]
        )

    @classmethod
    def from_bytes(cls, content: bytes) -> Extract:
        """Return the extract in a file; raise InputError if it is not one."""
        rest = _Bytes(content)
        try:
            if rest.take(len(MAGIC)) != MAGIC:
                raise InputError("this is not an extract that verfedsv wrote")
            version = rest.number()
            if version != VERSION:
                raise InputError(
                    f"this is an extract of format version {version}; this verfedsv reads version {VERSION}. Use the "
                    "version of verfedsv that wrote it"
                )
            about = read_json(bytes(rest.take(rest.number())), "the beginning of the extract")
            if not isinstance(about, dict) or about.keys() != _FIELDS or {*map(type, about.values())} != {str}:
                raise InputError("the extract is damaged: fields of its beginning are missing or unknown")
            sizes = rest.array(np.dtype("<u8"))
            if sizes.max(initial=0) > _LONGEST_BEGINNING:
                raise InputError("the extract is damaged: the metadata of a message are too long")
            beginnings = [bytes(rest.take(int(size))) for size in sizes]
            parts = _Parts(beginnings, rest.array(_HEADER), rest)
        except (ValueError, IndexError, struct.error) as error:
            raise InputError(f"the extract is damaged: {error}") from None
        return cls(parts=parts, own=rest.rest, **about)

    def verify(self) -> VerifiedExtract:
        """Return the verified content; raise TranscriptError, naming the round, if something was changed."""
        try:
            return _verify(self)
        except UNREADABLE as error:
            raise TranscriptError(f"the extract was changed: it cannot be read ({error})") from None


@dataclass(frozen=True, eq=False)
class VerifiedExtract:
    """What an extract proves: what was agreed, what was verified of the transcript, and the client's uploads."""

    description: Description
    verified: Verified
    uploads: tuple[Upload, ...]


def make_extract(transcript: Transcript, client: str) -> Extract:
    """Return one client's part of a transcript; raise InputError if there is no such client."""
    names = transcript.clients
    if client not in names:
        raise InputError(f"there is no client {client!r}; there are {', '.join(map(repr, names))}")
    transcript.verify()
    description, labels = transcript.origin
    entries = [entry for entry in transcript.entries() if entry.kind is not Kind.START]
    own = b"".join(
        part.tobytes()
        for entry in entries
        if entry.rows is not None
        for row in _rows_of(entry.rows, client)
        for part in (entry.rows.samples.row(row), entry.rows.embeddings.row(row))
    )
    parts = [Part.of(entry) for entry in entries]
    return Extract(client, description.decode(), hashlib.sha256(labels).hexdigest(), transcript.head, parts, own)


def _rows_of(rows: Rows, client: str) -> list[int]:
    """Return the indices of a client's uploads."""
    return [row for row in rows.uploads if rows.clients[row] == client]


def _verify(extract: Extract) -> VerifiedExtract:
    description = Description.from_json(extract.description.encode())
    if extract.parts and description.mode is None:
        raise TranscriptError("the extract was changed: its description is of a transcript without uploads")
    _check_order((part.kind for part in extract.parts), description.segment_rounds)
    precision = description.precision or "float64"
    number = np.dtype(precision)
    rules = Rules(description)
    labels = bytes.fromhex(extract.labels_sha256)
    origin = fmt.link_of_digests(hashlib.sha256(extract.description.encode()).digest(), labels)
    found, own = Verified(origin, origin, rules.roster), _Bytes(extract.own)
    uploads: list[Upload] = []
    for part in extract.parts:
        message, ranges = part.message()
        found.link = fmt.next_link(found.link, message, ranges)
        if part.kind not in fmt.RECORDS:
            _check_plain(part.kind, message, ranges, precision)
            continue
        where = f"round {found.n_rounds + 1}"
        rows = _read_rows(message, ranges, precision, where)
        rules.check_frame(part.kind, rows, where)
        for row in _rows_of(rows, extract.client):
            upload = _own_upload(own, rows, row, number, where)
            rules.check_upload(extract.client, upload.samples, upload.embeddings, where)
            uploads.append(upload)
        found.count(rows, description.n_classes or 1, rules.roster)
    if extract.client not in rules.roster.clients:
        raise TranscriptError(f"the extract was changed: there is no client {extract.client!r} in the transcript")
    if description.n_planned is not None and found.n_rounds > description.n_planned:
        raise TranscriptError(f"there are {found.n_rounds:,} rounds, and {description.n_planned:,} were agreed")
    if len(own.rest):
        raise TranscriptError("the extract has more uploads than the transcript")
    head = found.link.hex() if extract.parts else ""
    if (extract.head, extract.labels_sha256) != (head, labels.hex()):
        raise TranscriptError("the extract was changed: its description, the hash of its labels, or a message")
    return VerifiedExtract(description, found, tuple(uploads))


def _read_rows(message: pa.Buffer, ranges: tuple[tuple[int, int], ...], precision: Precision, where: str) -> Rows:
    """Return the rows of a message whose gaps are where the numbers of uploads were, and nowhere else."""
    form = fmt.form_of(message, precision)
    if ranges != form.frame:
        raise TranscriptError(f"the extract was changed: {where}")
    # Rows whose columns lie in a gap would cost nothing in the file, and seconds to read.
    if form.layout.nodes[0][0] > sum(stop - start for start, stop in ranges):
        raise ValueError("it has more rows than the extract has bytes")
    return read_rows(message, precision)


def _check_order(kinds: Iterable[Kind], segment_rounds: int) -> None:
    """Raise ValueError unless messages form segments: a schema, records, and an end marker after the last round."""
    before, n_rounds = Kind.END, 0
    for kind in kinds:
        is_begin = before is Kind.END
        n_rounds = (0 if is_begin else n_rounds) + (kind is Kind.ROUND)
        is_full = n_rounds == segment_rounds
        if (kind is Kind.SCHEMA) != is_begin or n_rounds > segment_rounds or (kind is Kind.END and not is_full):
            raise ValueError("its messages are not in the order of a transcript")
        before = kind
    if before is Kind.SCHEMA:
        raise ValueError("its last segment has no record")


def _check_plain(kind: Kind, message: pa.Buffer, ranges: tuple[tuple[int, int], ...], precision: Precision) -> None:
    """Raise ValueError unless a message is the schema or the end of a segment, and is hashed completely."""
    if ranges != ((0, message.size),):
        raise ValueError("it has gaps in a message without uploads")
    if kind is Kind.SCHEMA:
        fmt.check_schema(message, precision)
    elif kind is not Kind.END or message.to_pybytes() != fmt.END_OF_STREAM:
        raise ValueError("it has a message that no transcript has")


def _own_upload(own: _Bytes, rows: Rows, row: int, number: np.dtype[Any], where: str) -> Upload:
    """Return the next upload of the client; raise TranscriptError unless it has the digest of that row."""
    client, n_samples = str(rows.clients[row]), rows.samples.lengths[row]
    samples = np.frombuffer(own.take(n_samples * 4), np.uint32)
    embeddings = np.frombuffer(own.take(rows.embeddings.lengths[row] * number.itemsize), number)
    if fmt.digests_of([(samples, embeddings)]) != [rows.digest(row)]:
        raise TranscriptError(f"the upload in the extract is not the one of the transcript: {where}, client {client!r}")
    return Upload(client, rows.times[row], samples, embeddings.reshape(n_samples, -1))


class _Parts(Sequence[Part]):
    """The messages of a file, each made when it is needed: a sparse file may state more than memory can hold."""

    def __init__(self, beginnings: Sequence[bytes], headers: NDArray[Any], rest: _Bytes) -> None:
        sizes = headers["pieces"]
        if sizes.max(initial=0) > len(rest.rest):
            raise ValueError("it ends too early")
        is_known = np.isin(headers["kind"], (Kind.SCHEMA, *fmt.RECORDS, Kind.END))
        if not (is_known & (headers["beginning"] < len(beginnings))).all():
            raise ValueError("it has a message that no transcript has")
        ends = np.cumsum(sizes.sum(axis=1, dtype=np.uint64), dtype=np.uint64)
        self._beginnings, self._headers, self._starts = beginnings, headers, np.append(np.uint64(0), ends)
        self._content = rest.take(int(self._starts[-1]))

    def __len__(self) -> int:
        return len(self._headers)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[number] for number in range(len(self))[index]]
        number = range(len(self))[index]
        kind, beginning, sizes, gaps = self._headers[number].tolist()
        own = _Bytes(self._content[int(self._starts[number]) :])
        return Part(Kind(kind), [own.take(int(size)) for size in sizes], [*map(int, gaps)], self._beginnings[beginning])


class _Bytes:
    """Bytes that are read one part after the other; reading beyond the end is a ValueError."""

    def __init__(self, content: bytes | memoryview) -> None:
        self.rest = memoryview(content)

    def take(self, size: int) -> memoryview:
        if size > len(self.rest):
            raise ValueError("it ends too early")
        part, self.rest = self.rest[:size], self.rest[size:]
        return part

    def number(self) -> int:
        return int(_NUMBER.unpack(self.take(_NUMBER.size))[0])

    def array(self, kind: np.dtype[Any]) -> NDArray[Any]:
        """Return an array that its number of items precedes."""
        n_items = self.number()
        return np.frombuffer(self.take(n_items * kind.itemsize), kind)
