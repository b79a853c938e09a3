"""Whether a run was trained and valued as agreed.

That is, as its configuration says, or, if it has none, valued by the defaults of `value`.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from verfedsv.errors import InputError
from verfedsv.runs.config import ValuationSection
from verfedsv.runs.folders import CONFIG
from verfedsv.runs.reading import parse_config
from verfedsv.valuation.result import Settings

_NOT_CONFIGURED = {"n_permutations": None, "rows": "all"}
"""Settings that no configuration has, by default."""


def say_other_settings(settings: Settings, configuration: str | None) -> str | None:
    """Return which settings of a valuation are not the agreed ones, and how; None if all are.

    `configuration` is the text of the run's config.toml. With settings chosen after the fact, values can be moved: a
    rank, a lambda or a seed that favours a client can always be found.
    """
    section = ValuationSection() if configuration is None else parse_config(configuration, Path(CONFIG)).valuation
    agreed: dict[str, Any] = {**_NOT_CONFIGURED, **dict(section)}
    others = [
        f"{name} is {_shown(used)} and not {_shown(agreed[name])}"
        for name, used in asdict(settings).items()
        if used != agreed[name]
    ]
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


def refuse_others(settings: Settings, configuration: str | None, *, has_offset: bool, accepted: bool) -> None:
    """Raise InputError if a run was not trained and valued with the agreed settings, unless that was accepted."""
    if accepted:
        return
    others = say_other_settings(settings, configuration)
    if others is not None:
        raise InputError(f"{others}; value the run with the agreed settings, or add --accept-settings")
    own = say_other_intercept(configuration, has_offset=has_offset)
    if own is not None:
        raise InputError(f"{own}; train as was agreed, or add --accept-settings")


def _shown(setting: Any) -> str:
    return "not given" if setting is None else str(setting)[:40]
