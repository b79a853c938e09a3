"""What users should know of a run's data and training: notes.json, a list of sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from verfedsv.files import write_whole

_MOST_NOTES, _LONGEST_NOTE = 20, 500


def write_notes(path: Path, lines: Sequence[str]) -> None:
    """Write notes to a file, if there are some, or were."""
    if lines or path.exists():
        write_whole(path, (json.dumps(list(lines), indent=2, ensure_ascii=False) + "\n").encode())


def describe_progress(figures: Sequence[Mapping[str, float]], start: float, advice: str) -> list[str]:
    """Return what to do, `advice`, if the last of some evaluations has a larger loss than there was at the start."""
    if not figures or figures[-1]["train_loss"] <= start:
        return []
    return [f"the loss is larger than at the start: {advice}"]
