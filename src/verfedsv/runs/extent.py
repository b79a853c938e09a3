"""How far a training is: what was recorded, what was planned, and whether it is still going on."""

from __future__ import annotations

import math
from dataclasses import dataclass

from verfedsv.errors import InputError
from verfedsv.federation import SynchronousSchedule
from verfedsv.runs.config import Config, TrainingSection
from verfedsv.shapley.result import count
from verfedsv.transcript import Transcript


@dataclass(frozen=True)
class Extent:
    """The numbers of recorded and planned rounds; `n_planned` is None without a plan.

    `is_running` is whether a recorder is open on the transcript, here or in another process; always False on Windows.
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


def refuse_running(extent: Extent, what: str) -> None:
    """Raise InputError, saying what is not done, if a training is still running."""
    if extent.is_running:
        raise InputError(
            f"the training is still running, {extent} so far, so it is not {what} yet: wait until it has ended, "
            "stop it, or close its recorder"
        )


def planned_rounds(section: TrainingSection, n_train: int) -> int:
    """Return the number of rounds of a complete training on that many samples."""
    if section.mode == "asynchronous":
        return section.n_stamps
    if section.rounds is not None:
        return section.rounds
    return SynchronousSchedule.of_epochs(section.epochs or 1, section.batch_size, n_train).n_rounds


def skipped_rounds(config: Config, transcript: Transcript) -> int:
    """Return how many rounds ended before the first upload, and were not recorded.

    At most those that end within the shortest period of a client: a stopped training is not complete because its
    recorded times begin later.
    """
    first, section = next(iter(transcript), None), config.training
    if section.mode == "synchronous" or first is None:
        return 0
    own = {client.name: client.period for client in config.client}
    periods = [own.get(name) or section.period for name in transcript.clients]
    n_ended = math.ceil(min(first.time, *periods) / section.stamp_every - 1e-9) - 1
    return max(0, min(n_ended, section.n_stamps - 1))
