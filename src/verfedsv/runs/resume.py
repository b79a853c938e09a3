"""Where a training goes on that was stopped or killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from verfedsv.errors import InputError, TranscriptError
from verfedsv.federation import Federation, Steps
from verfedsv.runs.checkpoints import REMEDY, Checkpoint
from verfedsv.runs.config import Config
from verfedsv.runs.extent import left_out, planned_rounds
from verfedsv.runs.folder import CHECKPOINT
from verfedsv.runs.live import LiveShares
from verfedsv.shapley.result import count
from verfedsv.transcript import Record, Stamp, Transcript, Upload


@dataclass(frozen=True)
class ResumePoint:
    """Where a training goes on: `steps` and `n_records` are done.

    A training that can be repeated goes on from its checkpoint: what it recorded after that is computed again and
    compared with the transcript. One on the real clock, which is never the same again, goes on from the last record, at
    the time `begin`, with models that may be older.
    """

    steps: Steps
    n_records: int
    begin: float

    @classmethod
    def find(cls, transcript: Transcript, checkpoint: Checkpoint, config: Config) -> ResumePoint:
        """Return it; raise an error if transcript, checkpoint and plan do not fit each other."""
        section = config.training
        n_there = transcript.n_records
        if n_there < checkpoint.n_records:
            raise TranscriptError(
                f"the checkpoint was written after {checkpoint.n_records} records, of which the transcript has only "
                f"{n_there}: others were lost, as in a power failure. Delete {CHECKPOINT} to start over; what the "
                "transcript has is found there, and what it lost is recorded again"
            )
        whole, after = (_count(transcript.records(1 + first)) for first in (0, checkpoint.n_records))
        n_planned = planned_rounds(section, transcript.description.n_samples)
        n_left_out = left_out(config, transcript) if section.is_repeatable else 0
        if whole[None] + n_left_out > n_planned:
            raise TranscriptError(
                f"the transcript has {count(whole[None], 'round')}, and the configuration plans "
                f"{n_planned - n_left_out:,}: it is of another training, or was added to"
            )
        clients = transcript.clients
        steps = Steps([whole[name] - after[name] for name in clients], whole[None] - after[None])
        if section.mode == "synchronous":
            steps.of_clients = [0] * len(clients)
        elif steps.n_stamps:
            steps.n_stamps += n_left_out
        is_counted = checkpoint.steps.tolist() == steps.of_clients
        is_timed = checkpoint.n_rounds == steps.n_stamps
        if not section.is_repeatable:  # rounds before the first upload are not recorded, nor is their number known
            is_timed = steps.n_stamps <= checkpoint.n_rounds <= n_planned
        if not (is_counted and is_timed):
            raise InputError(
                f"{CHECKPOINT} does not fit the transcript: it counts {count(checkpoint.n_rounds, 'round')} in "
                f"{count(checkpoint.n_records, 'record')}, where the transcript has {steps.n_stamps:,}, or other "
                f"uploads of clients. {REMEDY}"
            )
        begin = max([0.0, *(record.time for record in transcript.records(max(1, n_there)))])
        if section.is_repeatable:
            return cls(steps, checkpoint.n_records, begin)
        return cls(Steps([whole[name] for name in clients], checkpoint.n_rounds + after[None]), n_there, begin)


def _count(records: Iterable[Record]) -> Counter[str | None]:
    """Return how many uploads of each client there are, and, for None, how many rounds ended."""
    return Counter(
        None if isinstance(record, Stamp) else record.client for record in records if isinstance(record, Upload | Stamp)
    )


def take_up(
    federation: Federation, live: LiveShares, transcript: Transcript, checkpoint: Checkpoint, *, is_repeatable: bool
) -> None:
    """Bring the parties of a training to where it goes on."""
    if checkpoint.n_rounds:
        try:
            federation.restore(checkpoint.state)
        except InputError as error:
            raise InputError(f"{CHECKPOINT} cannot be used: {error}. {REMEDY}") from None
        live.take_up(checkpoint.live, checkpoint.n_rounds)
    if not is_repeatable:
        # What was uploaded after the checkpoint is not uploaded again: the server has it from the transcript.
        for record in transcript.records(1 + checkpoint.n_records):
            if isinstance(record, Upload):
                federation.server.upload(record.client, record.samples, record.embeddings)
