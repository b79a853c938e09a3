"""What an experiment is: settings for each data set, parts that are measured one by one, and what to show of them."""

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
"""What one part of an experiment found, as JSON can hold it."""

Results = Mapping[str, Mapping[str, Findings]]
"""For each data set, what each part found, by the names of the parts."""


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the first column says what the row is."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Claim:
    """A figure of ours beside what the paper reports, or what is asked of it."""

    what: str
    ours: str
    wanted: str
    holds: bool


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """A table or figure of the paper.

    `parts` returns what there is to measure for a data set, by name: functions that take no arguments, share what is
    expensive between them, and return what JSON can hold.
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
        """What the settings file beside the experiment says."""
        file = Path(__file__).with_name(f"{self.name.replace('-', '_')}.toml")
        return tomllib.loads(file.read_text(encoding="utf-8"))

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets that there are settings for."""
        return tuple(self._content["data"])

    @property
    def notes(self) -> str:
        """What there is to say of the full results: where they differ from the paper's, and why."""
        return str(self._content.get("notes", ""))

    def settings(self, data: str, *, quick: bool = False) -> S:
        """Return the settings for a data set: those for all, then its own, then what `quick` changes."""
        content = self._content
        merged = {**content.get("all", {}), **content["data"][data]}
        if quick:
            merged |= {**content.get("quick", {}).get("all", {}), **content.get("quick", {}).get(data, {})}
        try:
            return self.settings_type(**merged)
        except ValidationError as error:
            raise InputError(f"{self.name}.toml, {data}: {error}") from None


def plot_each(draw: Callable[[Mapping[str, Findings], Axes], None]) -> Callable[[Results, Figure], None]:
    """Return what draws the results of each data set on a plot of its own, side by side."""

    def draw_all(results: Results, figure: Figure) -> None:
        figure.set_size_inches(3.2 * len(results), 2.8)
        plots = figure.subplots(1, len(results), squeeze=False)[0]
        for axes, (name, found) in zip(plots, results.items(), strict=True):
            axes.set_title(name.capitalize())
            draw(found, axes)

    return draw_all
