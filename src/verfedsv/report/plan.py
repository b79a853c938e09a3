"""How many rounds a training was to have: what is recorded may be less, if it was stopped or is still running."""

from __future__ import annotations

import math
from pathlib import Path

from verfedsv.errors import InputError
from verfedsv.federation import SynchronousPlan
from verfedsv.runs.config import TrainingSection
from verfedsv.runs.folders import CONFIG
from verfedsv.runs.reading import parse_config, read_text
from verfedsv.transcript import Transcript


def find_plan(folder: Path, transcript: Transcript) -> int | None:
    """Return how many rounds or time stamps the config.toml of a run asks for; None if that is not known."""
    path, description = folder / CONFIG, transcript.description
    if not path.exists():
        return None
    try:
        training = parse_config(read_text(path), path).training
        first = next(iter(transcript), None)
        if first is None or training.mode != description.mode:
            return None
        return planned_rounds(training, description.n_samples, first.time)
    except InputError:
        return None


def planned_rounds(training: TrainingSection, n_samples: int, first_time: float = 0.0) -> int:
    """Return how many rounds or time stamps a training of that many samples records if nothing stops it.

    Time stamps before the first upload of anybody, at `first_time`, are not recorded.
    """
    if training.mode == "asynchronous":
        # As in training, a duration that is a multiple of the stamps' distance does not lose one to rounding.
        n_stamps = int((training.duration or 0) / training.stamp_every + 1e-9)
        return n_stamps - max(0, math.ceil(first_time / training.stamp_every - 1e-9) - 1)
    if training.rounds is not None:
        return training.rounds
    return SynchronousPlan.of_epochs(training.epochs or 1, training.batch_size, n_samples).n_rounds
