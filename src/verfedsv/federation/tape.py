"""What the server records of a training, if anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import islice, zip_longest

import numpy as np

from verfedsv.arguments import as_whole
from verfedsv.arrays import Array
from verfedsv.errors import InputError, TranscriptError
from verfedsv.transcript import Recorder, Stamp, Upload
from verfedsv.transcript.records import Join, Leave, Record

SAME = 1e-9
"""Recomputed embeddings may differ by this fraction of the largest: another processor rounds sums differently."""


class Tape:
    """Writes records to a recorder, and compares those that its transcript already has.

    A killed training continues from its last checkpoint and repeats what came after; the transcript, which loses
    nothing, already has it. `n_records` counts the records of the training. If None is passed, it is the number in the
    transcript, and nothing is repeated. `parameters` returns those of the server's head, which the recorder reads
    itself at the end of each round.
    """

    def __init__(
        self,
        recorder: Recorder | None,
        *,
        n_records: int | None = 0,
        parameters: Callable[[], Mapping[str, Array]] = dict,
    ) -> None:
        self._parameters = parameters
        self._recorder = recorder
        self._recorded: Iterator[Record] = iter(())
        self._n_left = 0
        self._failure: BaseException | None = None
        n_there = 0
        if recorder is not None:
            transcript = recorder.transcript
            n_there = transcript.n_records
            if n_records is not None and n_records != n_there:
                self._n_left = as_whole("the number of records after the checkpoint", n_there - n_records, at_least=0)
                self._recorded = transcript.records(1 + n_records)
        self.n_records = n_there if n_records is None else n_records

    @property
    def is_repeating(self) -> bool:
        """Whether the next record is in the transcript already."""
        return self._n_left > 0

    def write(self, *record: Record) -> None:
        """Record an upload, the end of a round, a synchronous round with its uploads, or a client that joins or leaves.

        Before the first record, joining and leaving only change who takes part from the start. If a failure leaves a
        record behind that is not counted here, everything from then on fails with the same error.
        """
        self._check_failure()
        is_counted = self.n_records > 0 or not isinstance(record[0], Join | Leave)
        if self.is_repeating and is_counted:
            self._compare(*record)
        elif self._recorder is not None and not self.is_repeating:
            try:
                _write(self._recorder, *record)
            except InputError:  # refused: nothing was recorded
                raise
            except BaseException as error:
                self._failure = error
                if self._recorder.transcript.n_records == self.n_records:  # nor was anything here
                    self._failure = None
                raise
        self.n_records += is_counted

    def sync(self) -> None:
        """Flush what was recorded to the disk."""
        self._check_failure()
        if self._recorder is not None:
            self._recorder.sync()

    def _check_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _compare(self, *record: Record) -> None:
        """Raise TranscriptError unless the next record of the transcript is this one.

        A recorder writes the uploads of a synchronous round in the order in which clients joined.
        """
        self._n_left -= 1
        there = [*islice(self._recorded, len(record))]
        uploads = {part.client: part for part in there if isinstance(part, Upload)}
        for computed, following in zip_longest(record, there):
            recorded = uploads.get(computed.client, following) if isinstance(computed, Upload) else following
            difference = _difference(computed, recorded)
            if not difference and isinstance(recorded, Stamp) and recorded.state:
                difference = self._difference_of_heads(recorded.state)
            if difference:
                raise TranscriptError(
                    f"record {self.n_records + 1} of the transcript differs from what this training recomputes from "
                    f"its checkpoint: {difference}. The checkpoint, the transcript or the data were changed, or "
                    "computed by other software; nothing was overwritten. Restore the right files, or begin a new run "
                    "in another folder"
                )

    def _difference_of_heads(self, hashes: tuple[str, ...]) -> str:
        """Return how the recorded parameters of the head differ from those now; empty if they do not."""
        if self._recorder is None:
            return ""
        recorded, computed = self._recorder.transcript.head_state(hashes), self._parameters()
        if {*recorded} != {*computed}:
            return "the parameters of the head have other names"
        distance = max(_distance(array, computed[name]) for name, array in recorded.items())
        return "" if distance <= SAME else f"parameters of the head differ by {distance:.1e} of the largest"


def _write(recorder: Recorder, *record: Record) -> None:
    uploads, last = [part for part in record if isinstance(part, Upload)], record[-1]
    match last:
        case Stamp() if uploads:
            embeddings = {upload.client: upload.embeddings for upload in uploads}
            recorder.log(uploads[0].samples, embeddings, last.offset, absent=last.absent, time=last.time)
        case Stamp():
            recorder.stamp(last.offset, time=last.time)
        case Upload():
            recorder.update(last.client, last.samples, last.embeddings, time=last.time)
        case Join():
            recorder.join(last.client, time=last.time)
        case Leave():
            recorder.leave(last.client, time=last.time)


def _difference(computed: Record, recorded: Record | None) -> str:
    """Return how a record differs from the recomputed one; empty if it does not."""
    if recorded is None or _called(recorded) != _called(computed):
        return f"it is {'missing' if recorded is None else _called(recorded)}, not {_called(computed)}"
    if recorded.time != computed.time:
        return f"its time is {recorded.time:g}, not {computed.time:g}"
    distance, what = 0.0, ""
    if isinstance(recorded, Upload) and isinstance(computed, Upload):
        if not np.array_equal(recorded.samples, computed.samples):
            return f"the samples of {computed.client!r} differ"
        distance, what = _distance(recorded.embeddings, computed.embeddings), f"embeddings of {computed.client!r}"
    elif isinstance(recorded, Stamp) and isinstance(computed, Stamp):
        if (recorded.offset is None) != (computed.offset is None):
            return "only one of the two has an offset of the server"
        if recorded.offset is not None and computed.offset is not None:
            # A constant offset, (classes,), may have been recorded for each sample.
            own = np.broadcast_to(computed.offset, recorded.offset.shape)
            distance, what = _distance(recorded.offset, own), "offsets of the server"
    return "" if distance <= SAME else f"{what} differ by {distance:.1e} of the largest"


def _called(record: Record) -> str:
    if isinstance(record, Stamp):
        absent = f" without {', '.join(record.absent)}" if record.absent else ""
        return f"the end of a round{absent}"
    kind = {Upload: "an upload", Join: "the joining", Leave: "the leaving"}[type(record)]
    return f"{kind} of {record.client!r}"


def _distance(recorded: Array, computed: Array) -> float:
    """Return the largest difference as a fraction of the largest number; infinite if the shapes differ."""
    if recorded.shape != computed.shape:
        return np.inf
    difference, size = float(np.abs(recorded - computed).max()), float(np.abs(recorded).max())
    return 0.0 if difference == 0 else difference / size if size else np.inf
