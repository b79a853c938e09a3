"""notes.json: what users should know of a run's data and training, a list of sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from verfedsv.files import write_whole

FALLING, LAST_PART = 0.02, 0.1
"""A loss is still falling if more than that part of its whole decrease came in that last part of the rounds."""


def write_notes(path: Path, lines: Sequence[str]) -> None:
    """Write notes to a file, if there are some, or were."""
    if lines or path.exists():
        write_whole(path, (json.dumps(list(lines), indent=2, ensure_ascii=False) + "\n").encode())


def describe_progress(figures: Sequence[Mapping[str, float]], start: float, advice: str) -> list[str]:
    """Return what there is to say of how the loss went from its `start` to the last of some evaluations.

    `advice` is what to do about a training that diverged.
    """
    if not figures:
        return []
    last = figures[-1]
    n_rounds, loss = int(last["n_rounds"]), last["train_loss"]
    if not loss <= start:
        return [f"the loss is larger than at the start: {advice}"]
    earlier = [found for found in figures if found["n_rounds"] <= (1 - LAST_PART) * n_rounds]
    if not earlier:
        return []
    fall, n_last = earlier[-1]["train_loss"] - loss, n_rounds - int(earlier[-1]["n_rounds"])
    if fall * LAST_PART * n_rounds / n_last <= FALLING * (start - loss):  # evaluations may be further apart
        return []
    sentence = (
        f"the loss was still falling at the end, by {fall:.2g} to {loss:.4g} in the last {n_last:,} of {n_rounds:,} "
        "rounds: more of them would change values and shares"
    )
    return [sentence]
