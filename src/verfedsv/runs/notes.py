"""What users should know of a run's data and training: notes.json, a list of sentences."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from verfedsv.errors import InputError
from verfedsv.files import write_whole
from verfedsv.runs.folders import NOTES
from verfedsv.runs.reading import read_text
from verfedsv.texts import shortened
from verfedsv.untrusted import read_json

_MOST_NOTES, _LONGEST_NOTE = 20, 500


def write_notes(path: Path, lines: Sequence[str]) -> None:
    """Write notes to a file, if there are some, or were."""
    if lines or path.exists():
        write_whole(path, (json.dumps(list(lines), indent=2, ensure_ascii=False) + "\n").encode())


def read_notes(folder: Path) -> tuple[str, ...]:
    """Return the sentences that a run left on its data and training; none if there are none."""
    path = folder / NOTES
    if not path.exists():
        return ()
    remedy = "Delete it to go on without"
    if not path.is_file():
        raise InputError(f"{path} is not a regular file. {remedy}")
    found = read_json(read_text(path), str(path))
    if not isinstance(found, list) or not all(isinstance(note, str) for note in found):
        raise InputError(f"{path} is damaged: it is not a list of sentences. {remedy}")
    return tuple(shortened(note, _LONGEST_NOTE) for note in found[:_MOST_NOTES])


def describe_progress(figures: Sequence[Mapping[str, float]], start: float, advice: str) -> list[str]:
    """Return what to do, `advice`, if the last of some evaluations has a larger loss than there was at the start."""
    if not figures or figures[-1]["train_loss"] <= start:
        return []
    return [f"the loss is larger than at the start: {advice}"]
