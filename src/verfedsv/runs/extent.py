"""How far a training is: what was recorded, what was planned, and whether it is still going on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

from verfedsv.errors import InputError
from verfedsv.federation import SynchronousSchedule
from verfedsv.runs.config import Config, TrainingSection
from verfedsv.runs.folders import read_config_of
from verfedsv.shapley.result import count
from verfedsv.transcript import Transcript
from verfedsv.transcript.reader import folder_of
from verfedsv.transcript.storage import is_being_written


@dataclass(frozen=True)
class Extent:
    """So many rounds are recorded of so many that were planned, None if no plan is known.

    `is_running` says whether a recorder is open on the transcript, here or in another process. On Windows that cannot
    be told, and is False.
    """

    n_recorded: int
    n_planned: int | None
    is_running: bool

    @property
    def is_unfinished(self) -> bool:
        """Whether there is a plan, and less was recorded."""
        return self.n_planned is not None and self.n_recorded < self.n_planned

    @property
    def is_finished(self) -> bool | None:
        """Whether all that was planned is recorded; None if no plan is known, unless the training is running."""
        if self.is_running:
            return False
        return None if self.n_planned is None else not self.is_unfinished

    def __str__(self) -> str:
        """Return how far it is in words.

        >>> str(Extent(442, 4000, False)), str(Extent(1, None, False))
        ('442 of 4,000 rounds', '1 round')
        """
        if self.n_planned is None or not self.is_unfinished:
            return count(self.n_recorded, "round")
        return f"{self.n_recorded:,} of {count(self.n_planned, 'round')}"


def find_extent(folder: Path, transcript: Transcript) -> Extent:
    """Return how far the training is that a transcript in a folder is of; the plan is that of its config.toml."""
    return Extent(transcript.n_rounds, _find_plan(folder, transcript), is_being_written(folder_of(folder)))


def refuse_running(extent: Extent, what: str) -> None:
    """Raise InputError, saying what is not done, if a training is still running."""
    if extent.is_running:
        raise InputError(
            f"the training is still running, {extent} so far, so it is not {what} yet: wait until it has ended, or "
            "stop it, or close its recorder"
        )


def _find_plan(folder: Path, transcript: Transcript) -> int | None:
    """Return how many rounds a whole training would have recorded; None if that is not known."""
    config = read_config_of(folder)
    if config is None or config.training.mode != (transcript.description.mode or config.training.mode):
        return None
    return planned_rounds(config.training, transcript.description.n_samples) - left_out(config, transcript)


def planned_rounds(section: TrainingSection, n_train: int) -> int:
    """Return the rounds of a whole training on that many samples."""
    if section.mode == "asynchronous":
        return section.n_stamps
    if section.rounds is not None:
        return section.rounds
    return SynchronousSchedule.of_epochs(section.epochs or 1, section.batch_size, n_train).n_rounds


def left_out(config: Config, transcript: Transcript) -> int:
    """Return how many rounds ended before the first upload of anybody, and were not recorded.

    No more than would end before the shortest period of a client has passed: recorded times that begin later do not
    make a training whole that was stopped.
    """
    first, section = next(iter(transcript), None), config.training
    if section.mode == "synchronous" or first is None:
        return 0
    own = {client.name: client.period for client in config.client}
    periods = [own.get(name) or section.period for name in transcript.clients]
    n_ended = math.ceil(min(first.time, *periods) / section.stamp_every - 1e-9) - 1
    return max(0, min(n_ended, section.n_stamps - 1))
