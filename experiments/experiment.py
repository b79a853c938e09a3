"""What an experiment is: settings for each data set, parts that are measured one by one, tables and figures."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Callable, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from pydantic import ValidationError
from scipy.stats import t as student

from experiments.lab import Settings
from verfedsv.arrays import Floats
from verfedsv.errors import InputError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

S = TypeVar("S", bound=Settings)

DATA = ("adult", "web", "covtype", "rcv1", "letter", "letter-halves", "sector")
"""The names of data sets in settings; those that are not in the catalogue have a `source` that is."""

OTHER_READING = " + 5 clients"
"""The end of the names of variants in which five clients join those of the paper's Table 2."""

OTHERWISE = ", other number of clients"
"""What is added to the item of their claims."""

Findings = Mapping[str, Any]
"""What one part of an experiment found, as JSON."""

Results = Mapping[str, Mapping[str, Findings]]
"""For each data set, the findings of each part, by name."""


@dataclass(frozen=True)
class Table:
    """Rows of text under a header; the first column has the labels of the rows. The page folds `is_detail` away."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""
    is_detail: bool = False


Verdict = Literal["yes", "in trend", "no"]
"""Whether a statement of the paper was reproduced, only in its direction, or not."""

Group = Literal["statement", "variant", "check", "false"]
"""How a claim counts: as a statement of the paper; as one in a setting that stands beside the protocol's; as a check
that could hardly fail; or as a statement that is false as printed, whatever was measured."""


@dataclass(frozen=True)
class Claim:
    """A statement of the paper on a data set, what we found, and whether that agrees; None if nothing can be said.

    The verdict is on values as they were estimated; it `is_open` if their stated errors would allow another, which is
    None if that was not examined. Claims of the same `item`, a table or figure of the paper, are one row of the
    summary.
    """

    item: str
    data: str
    what: str
    paper: str
    ours: str
    verdict: Verdict | None
    group: Group = "statement"
    is_open: bool | None = None


@dataclass(frozen=True)
class Experiment(Generic[S]):
    """A table or figure of the paper.

    `about` says what is measured, or returns that for the settings of the data sets that are shown.

    `parts` returns what to measure for a data set: functions by name, which take no arguments, may share expensive
    results, and return JSON content. Names of parts that are repeated end in "seed 0", "seed 1" and so on. If it
    `is_timed`, parts need the machine for themselves. With another `version`, earlier results are discarded: raise it
    with changes of the code that change what is found.
    """

    name: str
    title: str
    about: str | Callable[[Sequence[S]], str]
    settings_type: type[S]
    parts: Callable[[str, S], Mapping[str, Callable[[], Findings]]]
    tables: Callable[[Results], Sequence[Table]]
    claims: Callable[[Results], Sequence[Claim]] = lambda _results: ()
    draw: Callable[[Results, Figure], None] | None = None
    is_timed: bool = False
    version: int = 1

    @cached_property
    def _content(self) -> dict[str, Any]:
        """The content of the settings file beside the experiment."""
        return _read(self.name.replace("-", "_"))

    def describe(self, settings: Sequence[S]) -> str:
        """Return what is measured with the settings of some data sets."""
        return self.about if isinstance(self.about, str) else self.about(settings)

    @property
    def script(self) -> str:
        """The name of the file that defines the experiment."""
        tables = self.tables.func if isinstance(self.tables, partial) else self.tables
        return f"{tables.__module__.rpartition('.')[2]}.py"

    @property
    def data(self) -> tuple[str, ...]:
        """The data sets that have settings."""
        return tuple(self._content["data"])

    @property
    def notes(self) -> str:
        """Comments on the full results: where they differ from the paper's, and why."""
        return str(self._content.get("notes", ""))

    def settings(self, data: str, *, quick: bool = False) -> S:
        """Return the settings for a data set: the protocol's, overridden by the experiment's, then by those of `quick`.

        Each has settings for all data sets, overridden by those for one.
        """
        sources = [_read("protocol"), self._content]
        if quick:
            sources += [{**source.get("quick", {}), "data": source.get("quick", {})} for source in sources]
        merged: dict[str, Any] = {}
        for source in sources:
            merged |= {**source.get("all", {}), **source["data"].get(data, {})}
        try:
            return self.settings_type(**merged)
        except ValidationError as error:
            # A misspelt name is why another is missing.
            first = min(error.errors(), key=lambda x: x["type"] != "extra_forbidden")
            what = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
            if first["type"] == "extra_forbidden":
                what = f"unknown setting {first['loc'][-1]!r}; allowed are {', '.join(self.settings_type.model_fields)}"
            where = f"{self.name.replace('-', '_')}.toml and protocol.toml"
            raise InputError(f"settings for {data} in experiments/{where}: {what}") from None


def _read(name: str) -> dict[str, Any]:
    path = Path(__file__).with_name(f"{name}.toml")
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"experiments/{path.name} is not TOML: {error}") from None
    data, quick = content.get("data", {}), content.get("quick", {})
    known = (("", content, ("notes", "all", "data", "quick")), ("data.", data, DATA), ("quick.", quick, ("all", *DATA)))
    for prefix, sections, names in known:
        if unknown := [name for name in sections if name not in names]:
            allowed = ", ".join(f"{prefix}{name}" for name in names)
            raise InputError(f"experiments/{path.name}: unknown section {prefix}{unknown[0]}; allowed are {allowed}")
    return content


def title_of(data: str) -> str:
    """Return the name of a data set as the paper writes it."""
    return "RCV1" if data == "rcv1" else data.capitalize()


def by_seed(seeds: int, measure: Callable[[int], Findings], prefix: str = "") -> dict[str, Callable[[], Findings]]:
    """Return a part for each seed."""
    return {f"{prefix}seed {seed}": partial(measure, seed) for seed in range(seeds)}


def by_variant_and_seed(
    measure: Callable[[str, S, int], Findings], name: str, settings: S
) -> dict[str, Callable[[], Findings]]:
    """Return a part for each seed of the settings, and of each of their variants."""
    todo: dict[str, Callable[[], Findings]] = {}
    for label, changed in settings.with_variants().items():
        todo |= by_seed(changed.seeds, partial(measure, name, changed), label and f"{label}, ")
    return todo


def variants_of(measured: Mapping[str, Findings]) -> dict[str, list[Findings]]:
    """Return the findings of all seeds of the settings, under an empty name, and of each variant."""
    prefixes = dict.fromkeys(name.rpartition("seed ")[0] for name in measured if seed_of(name) is not None)
    return {prefix.removesuffix(", "): starting(measured, f"{prefix}seed ") for prefix in prefixes}


def readings_of(measured: Mapping[str, Findings]) -> dict[str, list[Findings]]:
    """Return the findings of the settings, under an empty name, and those by the other reading of how many clients."""
    return {x: found for x, found in variants_of(measured).items() if not x or x.endswith(OTHER_READING)}


def group_of(label: str) -> Group:
    """Return how claims on the settings, or on a variant of them, count."""
    return "variant" if label else "statement"


def seed_of(part: str) -> int | None:
    """Return the seed of a part, or None if it has none."""
    found = re.search(r"seed (\d+)$", part)
    return None if found is None else int(found[1])


def starting(measured: Mapping[str, Findings], prefix: str) -> list[Findings]:
    """Return the findings of the parts whose names start with a prefix."""
    return [part for name, part in measured.items() if name.startswith(prefix)]


def middle_and_ends(values: ArrayLike) -> Floats:
    """Return low ends, medians and high ends over seeds, the first axis: quartiles, or of fewer than five all of it."""
    array = np.asarray(values, float)
    ends = [0.25, 0.5, 0.75] if len(array) >= 5 else [0.0, 0.5, 1.0]
    return np.asarray(np.quantile(array, ends, axis=0))


def seeds_text(found: Sized) -> str:
    """Return how many seeds were measured, as text."""
    return f"{len(found)} seed{'' if len(found) == 1 else 's'}"


def of_seeds(text: str, some: Sized, all_of_row: Sized) -> str:
    """Return the text of a cell, followed by its number of seeds if the others of its row are of more."""
    return text if len(some) == len(all_of_row) else f"{text} ({seeds_text(some)})"


def largest_stated(errors: Sequence[ArrayLike]) -> str:
    """Return the largest of the stated errors of some seeds, or "unknown" if any of them is; "-" without seeds."""
    if not errors:
        return "-"
    largest = float(np.max([np.max(np.asarray(of_seed, float)) for of_seed in errors]))
    return "unknown" if np.isnan(largest) else two_digits(largest)


def spread(values: ArrayLike, digits: int = 2, unit: str = "") -> str:
    """Return the median and, in brackets, the quartiles, or of fewer than five values the lowest and the highest.

    >>> spread([1.0, 2.0, 4.0], 1, " %")
    '2.0 % (1.0 to 4.0)'
    """
    low, middle, high = (f"{x:z.{digits}f}" for x in middle_and_ends(np.ravel(values)))
    text = f"{middle}{unit}"
    return text if low == high else f"{text} ({low} to {high})"


def two_digits(value: float) -> str:
    """Return a number in two digits, or as a whole number if it is large.

    >>> two_digits(0.123), two_digits(5312.4)
    ('0.12', '5,312')
    """
    return f"{value:,.0f}" if abs(value) >= 10 else f"{value:.2g}"


def magnitude(value: float) -> str:
    """Return the size of a residual: one digit and a power of ten, or a plain 0 if it is exactly that."""
    return f"{value:.0e}" if value else "0"


@dataclass(frozen=True)
class Exponent:
    """The exponent of a power law, fitted for each seed, and its 95 % confidence interval over seeds (Student's t)."""

    middle: float
    low: float
    high: float

    @classmethod
    def fit(cls, sizes: ArrayLike, values: ArrayLike) -> Exponent | None:
        """Return the exponent of values, (seeds, sizes); None if any is not positive."""
        x, y = np.asarray(sizes, float), np.atleast_2d(np.asarray(values, float))
        if not (y > 0).all():
            return None
        return cls.of(np.polyfit(np.log(x), np.log(y).T, 1)[0])

    @classmethod
    def of(cls, slopes: Floats) -> Exponent:
        """Return the mean of the seeds' exponents, and its interval."""
        if len(slopes) == 1:
            return cls(slopes[0], -np.inf, np.inf)
        half = student.ppf(0.975, len(slopes) - 1) * slopes.std(ddof=1) / np.sqrt(len(slopes))
        return cls(slopes.mean(), slopes.mean() - half, slopes.mean() + half)

    @property
    def is_proportional(self) -> bool:
        """Whether the whole interval is within 0.75 to 1.25."""
        return self.low >= 0.75 and self.high <= 1.25

    def __str__(self) -> str:
        return f"{self.middle:.2f}" + (f" ({self.low:.2f} to {self.high:.2f})" if np.isfinite(self.low) else "")


def plot_each(draw: Callable[[Mapping[str, Findings], Axes], None]) -> Callable[[Results, Figure], None]:
    """Return a function that draws the results of the data sets side by side."""

    def draw_all(results: Results, figure: Figure) -> None:
        figure.set_size_inches(3.2 * len(results), 2.8)
        plots = figure.subplots(1, len(results), squeeze=False)[0]
        for axes, (name, found) in zip(plots, results.items(), strict=True):
            axes.set_title(title_of(name))
            draw(found, axes)

    return draw_all
