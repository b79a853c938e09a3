"""Whether a run was trained and valued as agreed, and how to repeat its valuation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from verfedsv.errors import InputError
from verfedsv.runs.config import Config
from verfedsv.runs.folder import RunFolder
from verfedsv.settings import ROWS, ValuationSettings
from verfedsv.settlement.survey import Survey
from verfedsv.transcript import Transcript


def say_others(
    settings: ValuationSettings, agreed: ValuationSettings, config: Config | None, has_offset: Callable[[], bool]
) -> Iterator[str]:
    """Yield in what a run was not trained or valued as agreed, a sentence each.

    That is other settings of the valuation, and a server with a part of its own in the sum where the configuration
    excludes it: with it, the server can move value from one client to another. `has_offset` is called only then.
    """
    if others := settings.differences(agreed):
        yield f"the values were not computed with the agreed settings: {', '.join(others)}"
    if config is not None and not config.training.intercept and has_offset():
        yield "it was agreed that the server has no intercept, and the transcript has a part of its own (offset)"


def refuse_others(folder: RunFolder, transcript: Transcript, settings: ValuationSettings, *, accepted: bool) -> None:
    """Raise InputError if a run was not trained, or not valued with these settings, as agreed, unless accepted."""
    if accepted:
        return
    config, agreed = folder.config_of(transcript), transcript.description.valuation
    for other in say_others(settings, agreed, config, lambda: Survey.of(transcript).has_offset):
        raise InputError(f"{other}; train and value the run as agreed, or add --accept-settings")


def options_of(settings: ValuationSettings) -> dict[str, Any]:
    """Return the arguments of `value` for the same valuation; raise InputError if they are not determined."""
    if settings.rows not in ROWS:
        raise InputError(
            f"the valuation is of samples chosen by index ({settings.rows}), which it does not list, so nobody can "
            "repeat it; value by 'all', 'gradient' or 'no-gradient'"
        )
    return settings.as_dict()
