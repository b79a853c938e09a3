"""Whether a run was valued as agreed: as its configuration says, or, if it has none, by the defaults of `value`."""

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


def refuse_other_settings(settings: Settings, configuration: str | None, *, accepted: bool) -> None:
    """Raise InputError if a valuation was not made with the agreed settings, unless that was accepted."""
    others = None if accepted else say_other_settings(settings, configuration)
    if others is not None:
        raise InputError(f"{others}; value the run with the agreed settings, or add --accept-settings")


def _shown(setting: Any) -> str:
    return "not given" if setting is None else str(setting)[:40]
