"""What records and labels must be, beyond bytes that hash as they should: what a `Recorder` would have written.

The reader, `verify`, audits and a recorder that goes on all check by this module, so that nothing else has to.
"""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pyarrow as pa

from verfedsv.errors import InputError, TranscriptError
from verfedsv.losses import Array, get_loss
from verfedsv.transcript import format as fmt
from verfedsv.transcript.rows import Rows

_SPARSE = 64
"""Repeated numbers are found by marking, ten times as fast as by sorting, if that takes at most 64 marks for each."""


class Rules:
    """Checks the messages of a transcript, one after the other.

    `last_time` is the time of the one before the next: minus infinity if there is none, None if it is not known.
    """

    def __init__(self, description: fmt.Description, last_time: float | None = -math.inf) -> None:
        self._about = description
        self._n_classes = description.n_classes or 1
        self._clients = frozenset(description.clients)
        self._check_shape = self._check_round if description.mode == "synchronous" else self._check_one
        self._last_time, self._is_first = last_time, False

    def check(self, rows: Rows, place: str) -> None:
        """Raise TranscriptError, naming `place` and client, unless the rows are what a recorder would have written."""
        self.check_frame(rows, place)
        try:
            self._check_numbers(rows)
        except ValueError as error:
            raise _invalid(place, error) from None

    def check_frame(self, rows: Rows, place: str) -> None:
        """Check all but the numbers of uploads, for those who have not got them."""
        try:
            self._check_times(rows)
            self._check_shape(rows)
        except ValueError as error:
            raise _invalid(place, error) from None

    def check_upload(self, client: str, samples: Array, embeddings: Array, place: str) -> None:
        """Check the numbers of one upload."""
        try:
            self._check_samples(client, samples)
            _check_finite(client, embeddings)
        except ValueError as error:
            raise _invalid(place, error) from None

    def _check_times(self, rows: Rows) -> None:
        time = rows.times[0]
        if not abs(time) <= fmt.LATEST or rows.times.count(time) != len(rows):
            raise ValueError(f"a record has one time, in seconds, of at most 1e15; received {_first(rows.times)}")
        if self._last_time is not None and time < self._last_time:
            raise ValueError(f"time runs backwards, from {self._last_time} to {time}")
        self._last_time, self._is_first = time, self._last_time == -math.inf

    def _check_round(self, rows: Rows) -> None:
        """Check a synchronous round: one row for each client, those absent without numbers, and a time stamp."""
        *names, last = rows.clients
        if last is not None or None in names:
            raise ValueError("a synchronous round has the uploads of its clients, and one time stamp after them")
        if len(names) != len(self._clients) or set(names) != self._clients:
            raise ValueError(self._say_who_is_wrong(names))
        if all(digest is None for digest in rows.digests[:-1]):
            raise ValueError("a synchronous round needs at least one upload")
        lengths, n_numbers = rows.samples.lengths, rows.embeddings.lengths
        n_samples = max(lengths)
        for row, name in enumerate(names):
            if lengths[row] != (0 if rows.digests[row] is None else n_samples):
                raise ValueError(f"client {name!r}: all uploads of a round have the same batch of {n_samples} samples")
            self._check_width(name, lengths[row], n_numbers[row])
        if n_samples == 0 or lengths[-1] or n_numbers[-1] or rows.digests[-1] is not None:
            raise ValueError("an upload has at least one sample, and a time stamp has neither samples nor a digest")
        self._check_offsets(rows, n_samples)

    def _say_who_is_wrong(self, names: list[str | None]) -> str:
        for name, times in Counter(names).items():
            if name not in self._clients:
                return f"client {name!r} is unknown"
            if times > 1:
                return f"client {name!r} is there more than once"
        missing = next(name for name in self._about.clients if name not in names)
        return f"client {missing!r} is missing, and was not declared absent"

    def _check_one(self, rows: Rows) -> None:
        """Check an asynchronous record: one upload, or one time stamp."""
        if len(rows) != 1:
            raise ValueError("an asynchronous record is one upload or one time stamp")
        (client,), (n_samples,), (n_numbers,) = rows.clients, rows.samples.lengths, rows.embeddings.lengths
        if client is None:
            if n_samples or n_numbers or rows.digests[0] is not None:
                raise ValueError("a time stamp has neither samples nor embeddings")
            if self._is_first and rows.offsets[0] is None:
                raise ValueError("a transcript begins with an upload, not with a bare time stamp")
            self._check_offsets(rows, self._about.n_samples)
            return
        if client not in self._clients:
            raise ValueError(f"client {client!r} is unknown")
        if n_samples == 0 or rows.digests[0] is None:
            raise ValueError(f"client {client!r}: an upload has at least one sample, and a digest")
        self._check_width(client, n_samples, n_numbers)
        if rows.offsets[0] is not None:
            raise ValueError(f"client {client!r}: only a time stamp has an offset")

    def _check_width(self, client: str | None, n_samples: int, n_numbers: int) -> None:
        if n_numbers != n_samples * self._n_classes:
            expected = f"{n_samples} samples of {self._n_classes} classes"
            raise ValueError(f"client {client!r}: {n_numbers} embeddings for {expected}")

    def _check_offsets(self, rows: Rows, n_samples: int) -> None:
        *of_uploads, own = rows.offsets
        if any(offset is not None for offset in of_uploads):
            raise ValueError("only a time stamp has an offset")
        if own is None:
            return
        if len(own) != n_samples * self._n_classes:
            expected = f"{n_samples} samples of {self._n_classes} classes"
            raise ValueError(f"the offset has {len(own)} numbers for {expected}")
        if not is_usable(own):
            raise ValueError(f"the offset must be finite and below {fmt.LARGEST_EMBEDDING:g} in size")

    def _check_numbers(self, rows: Rows) -> None:
        present = [row for row, digest in enumerate(rows.digests) if digest is not None]
        if not present:
            return
        batches = rows.samples.numbers.reshape(len(present), -1)
        if len(present) > 1:
            is_other = (batches[1:] != batches[0]).any(axis=1)
            if is_other.any():
                client = rows.clients[present[1 + int(is_other.argmax())]]
                first = rows.clients[present[0]]
                raise ValueError(
                    f"client {client!r}: all uploads of a round have the same samples in the same order, and these are "
                    f"others than those of client {first!r}"
                )
        self._check_samples(rows.clients[present[0]], batches[0])
        if not is_usable(rows.embeddings.numbers):
            for row in present:
                _check_finite(rows.clients[row], rows.embeddings.row(row))

    def _check_samples(self, client: str | None, samples: Array) -> None:
        n_samples = self._about.n_samples
        is_sparse = n_samples > _SPARSE * len(samples)
        ordered = np.sort(samples) if is_sparse else samples
        largest = int(ordered[-1] if is_sparse else samples.max())
        if largest >= n_samples:
            raise ValueError(f"client {client!r}: sample {largest} is none of 0 to {n_samples - 1}")
        if is_sparse:
            repeats = bool((ordered[1:] == ordered[:-1]).any())
        else:
            is_seen = np.zeros(n_samples, dtype=bool)
            is_seen[samples] = True
            repeats = int(np.count_nonzero(is_seen)) < len(samples)
        if repeats:
            raise ValueError(f"client {client!r}: a sample is there more than once")


def check_labels(batch: pa.RecordBatch, description: fmt.Description) -> None:
    """Raise TranscriptError unless labels.arrow has a label that fits the loss, and a mark, for each sample."""
    try:
        _check_label_columns(batch, description.n_samples)
        check_fit(labels_of(batch), description.loss, description.n_classes)
    except (ValueError, InputError) as error:
        raise TranscriptError(f"{fmt.LABELS} is not valid: {error}") from None


def labels_of(batch: pa.RecordBatch) -> Array:
    """Return the labels in a record batch, (samples,) or (samples, classes)."""
    column = batch.column("label")
    if pa.types.is_fixed_size_list(column.type):
        return np.asarray(column.values).reshape(len(column), -1)
    return np.asarray(column)


def check_fit(labels: Array, loss: str, n_classes: int | None) -> None:
    """Raise InputError unless a loss can use the labels; without `n_classes`, with as many as they show."""
    known = get_loss(loss)
    if n_classes is None:
        n_classes = 1
        if known.name == "softmax":
            is_number = labels.dtype.kind in "biuf" and np.isfinite(labels).all()
            n_classes = max(2, int(labels.max()) + 1) if is_number else 2
        elif known.name == "squared" and labels.ndim == 2:
            n_classes = labels.shape[1]
    known.encode(labels, n_classes)


def _check_label_columns(batch: pa.RecordBatch, n_samples: int) -> None:
    if batch.schema.names != ["label", "receives_gradient"]:
        raise ValueError("its columns must be 'label' and 'receives_gradient'")
    if batch.num_rows != n_samples:
        raise ValueError(f"it has {batch.num_rows} rows, and there are {n_samples} samples")
    label, receives = batch.columns
    kind = label.type
    numbers = label
    if pa.types.is_fixed_size_list(kind) and kind.list_size > 0:
        kind, numbers = kind.value_type, label.values
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise ValueError(f"labels must be numbers; received {label.type}")
    if not pa.types.is_boolean(receives.type):
        raise ValueError(f"receives_gradient must be true or false; received {receives.type}")
    if label.null_count or numbers.null_count or receives.null_count:
        raise ValueError("labels or marks are missing")


def _check_finite(client: str | None, embeddings: Array) -> None:
    if not is_usable(embeddings):
        raise ValueError(f"client {client!r}: embeddings must be finite and below {fmt.LARGEST_EMBEDDING:g} in size")


def is_usable(numbers: Array) -> bool:
    """Return whether embeddings are finite, and not too large to compute with."""
    # One pass each, and no array in between: NaN is neither below nor above.
    ends = (float(numbers.min()), float(numbers.max())) if numbers.size else (0.0, 0.0)
    return ends[0] > -fmt.LARGEST_EMBEDDING and ends[1] < fmt.LARGEST_EMBEDDING


def _first(values: list[float]) -> str:
    return ", ".join(map(repr, values[:3])) + (", ..." if len(values) > 3 else "")


def _invalid(place: str, error: ValueError) -> TranscriptError:
    return TranscriptError(f"the transcript is not valid: {place}, {error}")
