"""The valuation in the folder of a run, and how the run is to be valued if there is none."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from verfedsv.errors import InputError
from verfedsv.files import read_whole
from verfedsv.runs.folders import VALUATION, read_config_of
from verfedsv.settings import ValuationSettings
from verfedsv.shapley.result import count
from verfedsv.transcript import Transcript
from verfedsv.valuation import Valuation


def find_valuation(folder: Path, transcript: Transcript) -> Valuation | None:
    """Return the valuation in a folder if it is of all that the transcript has; None if there is none, or an older one.

    Raises InputError if it is of rounds that the transcript does not have: those were lost, or it is another one.
    """
    valuation = read_valuation(folder)
    if valuation is None or valuation.head == transcript.head:
        return valuation
    if not transcript.contains(valuation.head):
        there = f"{count(valuation.n_rounds, 'round')} of {count(len(valuation.clients), 'client')}"
        here = f"{count(transcript.n_rounds, 'round')} of {count(len(transcript.clients), 'client')}"
        raise InputError(
            f"{folder / VALUATION} is of {there} that are not in the transcript, which has {here}: it lost rounds, or "
            f"is another one. Bring the right one back, or delete {VALUATION} to go by the transcript that is there"
        )
    return None


def read_valuation(folder: Path) -> Valuation | None:
    """Return the valuation in a folder, of whatever transcript; None if there is none."""
    path = folder / VALUATION
    if not path.exists():
        return None
    try:
        return Valuation.from_json(read_whole(path))
    except OSError as error:
        why = str(error.strerror)
    except InputError as error:
        why = str(error).split(";")[0]  # what follows is for those who call from_json
    raise InputError(f"{path} cannot be used: {why}. Delete it, and the run is valued again")


def options_for(folder: Path) -> dict[str, Any]:
    """Return how the transcript in a folder is to be valued: as its configuration says, or as it was, or by default.

    The configuration comes first because it is what `verfedsv run` goes by. A damaged valuation counts as none; a
    damaged configuration does not, and raises InputError.
    """
    config = read_config_of(folder)
    if config is not None:
        return dict(config.valuation)
    try:
        before = read_valuation(folder)
    except InputError:
        return {}
    return {} if before is None else options_of(before.settings)


def options_of(settings: ValuationSettings) -> dict[str, Any]:
    """Return the arguments of `value` for the same valuation; raise InputError if they are not all known."""
    if settings.rows not in ("all", "gradient", "no-gradient"):
        raise InputError(
            f"the valuation is of samples chosen by number ({settings.rows}), which it does not list, so nobody can "
            "repeat it; value by 'all', 'gradient' or 'no-gradient'"
        )
    return asdict(settings)
