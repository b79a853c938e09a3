"""How far a training is: what was recorded, what was planned, and whether it is still going on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from verfedsv.errors import InputError
from verfedsv.federation import SynchronousPlan
from verfedsv.runs.config import TrainingSection
from verfedsv.runs.folders import CONFIG
from verfedsv.runs.reading import parse_config, read_text
from verfedsv.shapley.result import count
from verfedsv.transcript import Transcript
from verfedsv.transcript.reader import folder_of
from verfedsv.transcript.storage import is_being_written

Unit = Literal["round", "time stamp"]


@dataclass(frozen=True)
class Extent:
    """So many rounds, or time stamps, are recorded of so many that were planned, None if no plan is known.

    `is_running` says whether a recorder is open on the transcript, here or in another process. On Windows that cannot
    be told, and is False.
    """

    unit: Unit
    n_recorded: int
    n_planned: int | None
    is_running: bool

    @property
    def is_unfinished(self) -> bool:
        """Whether there is a plan, and less was recorded."""
        return self.n_planned is not None and self.n_recorded < self.n_planned

    def __str__(self) -> str:
        """Return how far it is in words.

        >>> str(Extent("round", 442, 4000, False)), str(Extent("time stamp", 1, None, False))
        ('442 of 4,000 rounds', '1 time stamp')
        """
        if self.n_planned is None or not self.is_unfinished:
            return count(self.n_recorded, self.unit)
        return f"{self.n_recorded:,} of {count(self.n_planned, self.unit)}"


def find_extent(folder: Path, transcript: Transcript) -> Extent:
    """Return how far the training is that a transcript in a folder is of; the plan is that of its config.toml."""
    unit: Unit = "time stamp" if transcript.description.mode == "asynchronous" else "round"
    return Extent(unit, transcript.n_rounds, _find_plan(folder, transcript), is_being_written(folder_of(folder)))


def refuse_running(extent: Extent, what: str) -> None:
    """Raise InputError, saying what is not done, if a training is still running."""
    if extent.is_running:
        raise InputError(
            f"the training is still running, {extent} so far, so it is not {what} yet: wait until it has ended, or "
            "stop it, or close its recorder"
        )


def _find_plan(folder: Path, transcript: Transcript) -> int | None:
    """Return how many rounds or time stamps a whole training would have recorded; None if that is not known."""
    path = folder / CONFIG
    if not path.exists():
        return None
    try:
        section = parse_config(read_text(path), path).training
        if section.mode != (transcript.description.mode or section.mode):
            return None
        return planned_rounds(section, transcript.description.n_samples) - left_out(section, transcript)
    except InputError:
        return None


def planned_rounds(section: TrainingSection, n_train: int) -> int:
    """Return the rounds or time stamps of a whole training on that many samples."""
    if section.mode == "asynchronous":
        return section.n_stamps
    if section.rounds is not None:
        return section.rounds
    return SynchronousPlan.of_epochs(section.epochs or 1, section.batch_size, n_train).n_rounds


def left_out(section: TrainingSection, transcript: Transcript) -> int:
    """Return how many time stamps came before the first upload of anybody, and were not recorded."""
    first = next(iter(transcript), None)
    if section.mode == "synchronous" or first is None:
        return 0
    return max(0, math.ceil(first.time / section.stamp_every - 1e-9) - 1)
