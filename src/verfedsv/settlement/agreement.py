"""Whether a run was trained and valued as agreed, and how to repeat its valuation."""

from __future__ import annotations

from typing import Any

from verfedsv.errors import InputError
from verfedsv.runs.config import Config
from verfedsv.runs.folder import RunFolder
from verfedsv.settings import ROWS, ValuationSettings
from verfedsv.transcript import Stamp, Transcript


def say_others(
    settings: ValuationSettings, agreed: ValuationSettings, config: Config | None, *, has_offset: bool
) -> list[str]:
    """Return in what a run was not trained or valued as agreed, a sentence each.

    That is other settings of the valuation, and a server with a part of its own in the sum where the configuration says
    that it has none: with it, the server can move value from one client to another.
    """
    others = settings.differences(agreed)
    said = [f"the values were not computed with the agreed settings: {', '.join(others)}"] if others else []
    if has_offset and config is not None and not config.training.intercept:
        said.append("it was agreed that the server has no intercept, and the transcript has a part of its own (offset)")
    return said


def say_others_of(folder: RunFolder, transcript: Transcript, settings: ValuationSettings) -> list[str]:
    """Return the same of a run and the settings that it was valued with."""
    config, agreed = folder.config_of(transcript), folder.agreed_settings(transcript)
    return say_others(settings, agreed, config, has_offset=has_offset(transcript))


def has_offset(transcript: Transcript) -> bool:
    """Return whether the server has a part of its own in any round."""
    return any(isinstance(record, Stamp) and record.offset is not None for record in transcript)


def refuse_others(folder: RunFolder, transcript: Transcript, settings: ValuationSettings, *, accepted: bool) -> None:
    """Raise InputError if a run was not trained, or not valued with these settings, as agreed, unless accepted."""
    for other in () if accepted else say_others_of(folder, transcript, settings):
        raise InputError(f"{other}; train and value the run as agreed, or add --accept-settings")


def options_of(settings: ValuationSettings) -> dict[str, Any]:
    """Return the arguments of `value` for the same valuation; raise InputError if they are not all known."""
    if settings.rows not in ROWS:
        raise InputError(
            f"the valuation is of samples chosen by number ({settings.rows}), which it does not list, so nobody can "
            "repeat it; value by 'all', 'gradient' or 'no-gradient'"
        )
    return settings.as_dict()
