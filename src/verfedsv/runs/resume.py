"""Where a training goes on that was stopped or killed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice

from verfedsv.errors import TranscriptError
from verfedsv.federation import Federation, Steps, Tape
from verfedsv.runs.checkpoints import Checkpoint
from verfedsv.runs.folders import CHECKPOINT
from verfedsv.runs.live import LiveShares
from verfedsv.transcript import Recorder, Stamp, Transcript


@dataclass(frozen=True)
class ResumePoint:
    """Where a training goes on: `steps` and `n_records` are done, `n_skipped` further records are there already.

    A training that can be repeated goes on from its checkpoint: what it recorded after that is computed again and found
    in the transcript. One on the real clock, which is never the same again, goes on from the last record, at the time
    `begin`, with models that may be older.
    """

    steps: Steps
    n_records: int
    n_skipped: int
    begin: float

    @classmethod
    def find(cls, transcript: Transcript, checkpoint: Checkpoint, *, is_repeatable: bool) -> ResumePoint:
        """Return it; raise TranscriptError if the transcript has lost what the checkpoint counts."""
        n_uploads = dict.fromkeys(transcript.description.clients, 0)
        n_stamps, n_stamps_after, begin = 0, 0, 0.0
        for number, record in enumerate(transcript):
            if isinstance(record, Stamp):
                n_stamps += 1
                n_stamps_after += number >= checkpoint.n_records
            else:
                n_uploads[record.client] += 1
            begin = record.time
        # A synchronous round is one record, with its uploads and its time stamp.
        is_synchronous = transcript.description.mode == "synchronous"
        n_there = n_stamps if is_synchronous else n_stamps + sum(n_uploads.values())
        n_before = checkpoint.n_records
        if n_there < n_before:
            raise TranscriptError(
                f"the checkpoint was written after {n_before} records, of which the transcript has only {n_there}: "
                f"others were lost, as in a power failure. Delete {CHECKPOINT} to start over; what the transcript has "
                "is found there, and what it lost is recorded again"
            )
        if is_repeatable:
            steps = Steps(checkpoint.steps.tolist(), checkpoint.n_rounds)
            return cls(steps, n_before, n_there - n_before, begin)
        # Stamps before the first upload count as time, but are not recorded.
        return cls(Steps(list(n_uploads.values()), checkpoint.n_rounds + n_stamps_after), n_there, 0, begin)

    def tape(self, recorder: Recorder) -> Tape:
        """Return a tape that goes on from here."""
        return Tape(recorder, self.n_skipped, n_records=self.n_records)


def take_up(
    federation: Federation, live: LiveShares, transcript: Transcript, checkpoint: Checkpoint, *, is_repeatable: bool
) -> None:
    """Bring the parties of a training to where it goes on."""
    if checkpoint.n_rounds:
        federation.restore(checkpoint.state)
        live.take_up(checkpoint.live, checkpoint.n_rounds)
    if not is_repeatable:
        # What was uploaded after the checkpoint is not uploaded again: the server has it from the transcript.
        for record in islice(transcript, checkpoint.n_records, None):
            if not isinstance(record, Stamp):
                federation.server.upload(record.client, record.samples, record.embeddings)
