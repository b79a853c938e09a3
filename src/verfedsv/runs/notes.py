"""What users should know of a run's data and training: notes.json, a list of sentences, and a loss that still falls."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from verfedsv.errors import InputError
from verfedsv.files import write_whole
from verfedsv.losses import Floats
from verfedsv.runs.folders import NOTES
from verfedsv.runs.reading import read_text
from verfedsv.texts import shortened
from verfedsv.untrusted import read_json

_LITTLE, _LEAST_ROUNDS = 0.02, 5
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


def still_falling(losses: Floats) -> float | None:
    """Return which part of the whole decrease of the loss came in the last tenth of the rounds; None if that is little.

    `losses`, (rounds + 1,), begin before the first round. Little is at most 2 %. Means over the last two tenths are
    compared, as single rounds go up and down. Below 20 rounds it is the last round that is compared with the one
    before, and what it took off is little in proportion: of 5 rounds it is a fifth, and at most 4 %. Of less than 5
    rounds, nothing is said.
    """
    n_rounds, decrease = len(losses) - 1, float(losses[0] - losses[-1])
    if n_rounds < _LEAST_ROUNDS or decrease <= 0:
        return None
    last = last_rounds(n_rounds)
    part = float(losses[-2 * last : -last].mean() - losses[-last:].mean()) / decrease
    return part if part * n_rounds > _LITTLE * 10 * last else None


def last_rounds(n_rounds: int) -> int:
    """Return how many rounds are the last tenth, at least one."""
    return max(1, n_rounds // 10)


def say_falling(part: float | None, n_rounds: int) -> list[str]:
    """Return that the loss was still falling, as `still_falling` found it, if it was."""
    if part is None:
        return []
    last = last_rounds(n_rounds)
    rounds = "round" if last == 1 else f"{last:,} rounds"
    said = f"the loss was still falling at the end: the last {rounds} took off {100 * part:.1f} % of the whole decrease"
    return [f"{said}, and a longer training may have other values and shares"]
