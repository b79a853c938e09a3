"""Extracts: what one client uploaded, and what ties that to the whole transcript, without the uploads of others.

The hash chain leaves out the numbers of uploads and has a digest of each instead. So an extract holds every message of
the transcript with gaps where those numbers were, the numbers of the one client, and the hash of the labels: enough to
compute the chain again to its head, and to see that the client's uploads are the ones in it.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from verfedsv.errors import InputError, TranscriptError
from verfedsv.settlement.documents import check_format, parse
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.framing import UNREADABLE
from verfedsv.transcript.meaning import Rules
from verfedsv.transcript.rows import Rows

FORMAT, VERSION = "verfedsv extract", 1
_UNREADABLE = *UNREADABLE, AttributeError, OverflowError
"""What anything but bytes of messages, in the place of them, leads to."""


@dataclass(frozen=True)
class OwnUpload:
    """What the client uploaded: sample numbers, and for each the embeddings, (samples, classes)."""

    samples: list[int]
    embeddings: list[list[float]]


@dataclass(frozen=True)
class Record:
    """A message: its bytes (in base64) before, between and after the gaps, the sizes of these, and its link.

    `uploads` are those of the one client whose numbers belong into the gaps: one, or none, as when it was absent.
    """

    frame: list[str]
    gaps: list[int]
    uploads: list[OwnUpload]
    link: str

    def message(self) -> tuple[pa.Buffer, list[tuple[int, int]]]:
        """Return the message with zeros in its gaps, and where what is between them begins and ends."""
        if not all(type(gap) is int and gap >= 0 for gap in self.gaps):
            raise ValueError("the sizes of gaps must be whole numbers")
        pieces = [base64.b64decode(piece, validate=True) for piece in self.frame]
        ranges, end = [], 0
        for piece, gap in zip(pieces, [*self.gaps, 0], strict=True):
            ranges.append((end, end + len(piece)))
            end += len(piece) + gap
        # Zeros that nobody reads or writes take no memory, however many the extract says there are.
        content = np.zeros(end, np.uint8)
        for piece, (start, stop) in zip(pieces, ranges, strict=True):
            content[start:stop] = np.frombuffer(piece, np.uint8)
        return pa.py_buffer(content), ranges


@dataclass(frozen=True)
class Extract:
    """One client's part of a transcript. `description` is the text of transcript.json; the labels are but a hash."""

    client: str
    description: str
    labels_sha256: str
    records: Sequence[Record]

    def to_json(self) -> str:
        """Return the extract as JSON."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(content, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Extract:
        """Return the extract in a file; raise InputError if it is none."""
        return cls.from_fields(parse(text, FORMAT))

    @classmethod
    def from_fields(cls, content: Mapping[str, Any]) -> Extract:
        """Return the extract in fields of JSON; raise InputError if they are none."""
        rest = check_format(content, FORMAT, VERSION)
        try:
            records = [_record(record) for record in rest["records"]]
            return cls(**{**_known(cls, rest), "records": records})
        except InputError:
            raise
        except KeyError as error:
            raise InputError(f"the extract is damaged: {error} is missing") from None
        except (TypeError, ValueError, AttributeError):
            raise InputError("the extract is damaged: some of it is of the wrong kind") from None

    def verify(self) -> Verified:
        """Return what the extract leads to; raise TranscriptError, naming the place, if it does not fit together."""
        try:
            return _verify(self)
        except _UNREADABLE as error:
            raise TranscriptError(f"the extract was changed: it cannot be read ({error})") from None


@dataclass(frozen=True)
class Verified:
    """Where the chain of an extract ends, what it is of, and how many uploads of its client, in how many rounds.

    From `n_absent` of these rounds the client was declared absent. `has_offset` says whether the server has a part of
    its own in any.
    """

    head: str
    description: fmt.Description
    n_uploads: int
    n_rounds: int
    n_absent: int
    has_offset: bool


def make_extract(transcript: Transcript, client: str) -> Extract:
    """Return one client's part of a transcript; raise InputError if there is no such client."""
    names = transcript.description.clients
    if client not in names:
        raise InputError(f"there is no client {client!r}; there are {', '.join(map(repr, names))}")
    transcript.verify()
    description, labels = transcript.origin
    n_classes = transcript.description.n_classes or 1
    records = [_cut(message, batch, link, client, n_classes) for message, batch, link in transcript.messages()]
    return Extract(client, description.decode(), hashlib.sha256(labels).hexdigest(), records)


def _cut(message: pa.Buffer, batch: pa.RecordBatch | None, link: bytes, client: str, n_classes: int) -> Record:
    """Return a message without the uploads of others."""
    ranges = fmt.frame_ranges(message, batch)
    frame = [base64.b64encode(memoryview(message)[start:stop]).decode() for start, stop in ranges]
    gaps = [start - stop for (_, stop), (start, _) in pairwise(ranges)]
    uploads = [
        OwnUpload(row["samples"].as_py(), np.asarray(row["embeddings"].values).reshape(-1, n_classes).tolist())
        for row in _rows_of(batch, client)
    ]
    return Record(frame, gaps, uploads, link.hex())


def _rows_of(batch: pa.RecordBatch | None, client: str) -> Iterator[dict[str, Any]]:
    """Yield the uploads of a client in a batch, column by column."""
    if batch is None:
        return
    digests = batch.column("digest")
    for row, name in enumerate(batch.column("client").to_pylist()):
        if name == client and digests[row].is_valid:
            yield {column: batch.column(column)[row] for column in ("digest", "samples", "embeddings")}


def _verify(extract: Extract) -> Verified:
    description = fmt.Description.from_json(extract.description.encode())
    if extract.client not in description.clients:
        raise TranscriptError(f"the extract was changed: there is no client {extract.client!r} in the transcript")
    if extract.records and description.mode is None:
        raise TranscriptError("the extract was changed: its description is of a transcript without uploads")
    schema = fmt.upload_schema(description.precision or "float64")
    rules = Rules(description)
    content = hashlib.sha256(extract.description.encode()).digest()
    labels = bytes.fromhex(extract.labels_sha256)
    if labels.hex() != extract.labels_sha256:
        raise TranscriptError("the extract was changed: the hash of its labels is not written as it was")
    head = fmt.link_of_digests(content, labels)
    n_uploads = n_rounds = n_absent = 0
    has_offset = False
    for index, record in enumerate(extract.records):
        place = f"round {n_rounds + 1}, client {extract.client!r}" if index else "its description or labels"
        message, ranges = record.message()
        batch = None if index == 0 else _read_batch(message, schema, ranges)
        rows = None if batch is None else Rows.of(batch)
        head = fmt.frame_hash(head, message, ranges)
        if head.hex() != record.link or ranges != fmt.frame_ranges(message, batch):
            raise TranscriptError(f"the extract was changed: {place}")
        if batch is None or rows is None:
            fmt.check_schema(message, schema)
            continue
        rules.check_frame(rows, f"round {n_rounds + 1}")
        _check_uploads(record, batch, extract.client, description.n_classes or 1, place)
        for upload in record.uploads:
            samples, embeddings = np.array(upload.samples), np.array(upload.embeddings)
            rules.check_upload(extract.client, samples, embeddings, f"round {n_rounds + 1}")
        n_uploads += len(record.uploads)
        n_absent += extract.client in rows.absent
        has_offset |= rows.offsets[-1] is not None
        n_rounds += rows.clients[-1] is None
    return Verified(head.hex() if extract.records else "", description, n_uploads, n_rounds, n_absent, has_offset)


def _read_batch(message: pa.Buffer, schema: pa.Schema, ranges: Sequence[tuple[int, int]]) -> pa.RecordBatch:
    """Return the batch in a message; raise ValueError if it has more rows than there are bytes outside of its gaps.

    Rows whose columns lie in a gap would cost nothing in the file, and seconds to read.
    """
    batch = fmt.read_message(message, schema)
    if batch.num_rows > sum(stop - start for start, stop in ranges):
        raise ValueError("it has more rows than the extract has bytes")
    return batch


def _check_uploads(record: Record, batch: pa.RecordBatch, client: str, n_classes: int, place: str) -> None:
    """Raise TranscriptError unless the uploads of the client are all there, and are those of the transcript."""
    rows = list(_rows_of(batch, client))
    if len(rows) != len(record.uploads):
        raise TranscriptError(f"the extract does not have the uploads that the transcript has: {place}")
    for row, upload in zip(rows, record.uploads, strict=True):
        if not _is_of(upload, row, n_classes):
            raise TranscriptError(f"the upload in the extract is not the one of the transcript: {place}")


def _is_of(upload: OwnUpload, row: dict[str, Any], n_classes: int) -> bool:
    """Return whether an upload is that of a row: as many numbers, written as they are, with the row's digest."""
    blanks = [np.asarray(row[name].values) for name in ("samples", "embeddings")]
    samples, embeddings = np.array(upload.samples, np.uint32), np.array(upload.embeddings, blanks[1].dtype)
    return (
        samples.shape == blanks[0].shape
        and embeddings.shape == blanks[1].reshape(-1, n_classes).shape
        and len(samples) == len(embeddings)
        # To the last digit: a fraction or a text would be rounded to the number that was uploaded.
        and repr(samples.tolist()) == repr(upload.samples)
        and repr(embeddings.tolist()) == repr(upload.embeddings)
        and fmt.digest_of(samples, embeddings) == row["digest"].as_py()
    )


def _record(content: dict[str, Any]) -> Record:
    uploads = [OwnUpload(**_known(OwnUpload, upload)) for upload in content["uploads"]]
    return Record(**{**_known(Record, content), "uploads": uploads})


def _known(kind: type, content: Mapping[str, Any]) -> dict[str, Any]:
    """Return all fields of a class; raise KeyError if one is missing, InputError if there are others."""
    names = [field.name for field in fields(kind)]
    unknown = sorted(set(content) - set(names))
    if unknown:
        raise InputError(f"the extract has a field {unknown[0][:60]!r}, which is none of an extract")
    return {name: content[name] for name in names}
