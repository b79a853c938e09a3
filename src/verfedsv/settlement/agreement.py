"""Whether a run was trained and valued as agreed.

That is, as its configuration says, or, if it has none, valued by the defaults of `value`.
"""

from __future__ import annotations

from pathlib import Path

from verfedsv.errors import InputError
from verfedsv.runs.config import ValuationSection
from verfedsv.runs.folders import CONFIG
from verfedsv.runs.reading import parse_config
from verfedsv.settings import ValuationSettings


def say_other_settings(settings: ValuationSettings, configuration: str | None) -> str | None:
    """Return which settings of a valuation are not the agreed ones, and how; None if all are.

    `configuration` is the text of the run's config.toml. With settings chosen after the fact, values can be moved: a
    rank, a lambda or a seed that favours a client can always be found.
    """
    section = ValuationSection() if configuration is None else parse_config(configuration, Path(CONFIG)).valuation
    others = settings.differences(ValuationSettings.of(dict(section)))
    if not others:
        return None
    source = f"the defaults, and there is no {CONFIG}" if configuration is None else f"those of {CONFIG}"
    return f"the settings of the valuation are not {source}: {', '.join(others)}"


def say_other_intercept(configuration: str | None, *, has_offset: bool) -> str | None:
    """Return that a server has a part of its own in the sum, and a configuration says that it has none; None if not.

    With a part of its own a server can move value from one client to another.
    """
    if configuration is None or not has_offset or parse_config(configuration, Path(CONFIG)).training.intercept:
        return None
    return f"{CONFIG} says that the server has no intercept, and the transcript has a part of its own (offset)"


def refuse_others(settings: ValuationSettings, configuration: str | None, *, has_offset: bool, accepted: bool) -> None:
    """Raise InputError if a run was not trained and valued with the agreed settings, unless that was accepted."""
    if accepted:
        return
    others = say_other_settings(settings, configuration)
    if others is not None:
        raise InputError(f"{others}; value the run with the agreed settings, or add --accept-settings")
    own = say_other_intercept(configuration, has_offset=has_offset)
    if own is not None:
        raise InputError(f"{own}; train as was agreed, or add --accept-settings")
