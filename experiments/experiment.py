"""What an experiment is: settings for each data set, parts that are measured one by one, tables and figures."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from pydantic import ValidationError

from experiments.lab import Settings
from verfedsv.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

S = TypeVar("S", bound=Settings)

Findings = Mapping[str, Any]
"""What one part of an experiment found, as JSON."""

Results = Mapping[str, Mapping[str, Findings]]
"""For each data set, the findings of each part, by name."""


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the first column has the labels of the rows."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Claim:
    """One of our numbers beside the paper's, or beside what it should be."""

    what: str
    ours: str
    wanted: str
    holds: bool


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """A table or figure of the paper.

    `parts` returns what to measure for a data set: functions by name, which take no arguments, may share expensive
    results, and return JSON content.
    """

    name: str
    title: str
    about: str
    settings_type: type[S]
    parts: Callable[[str, S], Mapping[str, Callable[[], Findings]]]
    tables: Callable[[Results], Sequence[Table]]
    claims: Callable[[Results], Sequence[Claim]] = lambda _results: ()
    draw: Callable[[Results, Figure], None] | None = None

    @cached_property
    def _content(self) -> dict[str, Any]:
        """The content of the settings file beside the experiment."""
        file = Path(__file__).with_name(f"{self.name.replace('-', '_')}.toml")
        return tomllib.loads(file.read_text(encoding="utf-8"))

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets that have settings."""
        return tuple(self._content["data"])

    @property
    def notes(self) -> str:
        """Comments on the full results: where they differ from the paper's, and why."""
        return str(self._content.get("notes", ""))

    def settings(self, data: str, *, quick: bool = False) -> S:
        """Return the settings for a data set: those for all, overridden by its own, then by those of `quick`."""
        content = self._content
        merged = {**content.get("all", {}), **content["data"][data]}
        if quick:
            merged |= {**content.get("quick", {}).get("all", {}), **content.get("quick", {}).get(data, {})}
        try:
            return self.settings_type(**merged)
        except ValidationError as error:
            raise InputError(f"{self.name}.toml, {data}: {error}") from None


def plot_each(draw: Callable[[Mapping[str, Findings], Axes], None]) -> Callable[[Results, Figure], None]:
    """Return a function that draws the results of the data sets side by side."""

    def draw_all(results: Results, figure: Figure) -> None:
        figure.set_size_inches(3.2 * len(results), 2.8)
        plots = figure.subplots(1, len(results), squeeze=False)[0]
        for axes, (name, found) in zip(plots, results.items(), strict=True):
            axes.set_title(name.capitalize())
            draw(found, axes)

    return draw_all
