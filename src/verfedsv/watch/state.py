"""What the page shows, as plain data of bounded size, mostly in the words of the report; the script only sets texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np

from verfedsv.federation.evaluation import MEASURES
from verfedsv.line_styles import line_style
from verfedsv.report import wording
from verfedsv.report.curves import Curve, thin
from verfedsv.report.metrics import series
from verfedsv.report.summary import Summary
from verfedsv.report.tables import Table, contributions
from verfedsv.texts import LONGEST_NAME, count, shortened

FORMAT, VERSION = "verfedsv watch", 1

N_LISTED = 200
"""How many clients are listed: those with the largest values, and up to five with negative ones."""

N_DRAWN = 10
"""How many clients have a line in the chart over rounds."""

_MOST_POINTS = 300
_LONGEST_TEXT = 2000

Status = Literal["waiting", "following", "finished"]


@dataclass(frozen=True)
class Line:
    """A line of a chart, with its colour and dashes; `last` is its last number as text."""

    label: str
    colour: str
    dash: str
    last: str
    rounds: tuple[int, ...]
    values: tuple[float, ...]


@dataclass(frozen=True)
class Drawing:
    """A chart of lines over rounds; `unit` is "%" if values are fractions; with `has_zero`, the axis includes zero."""

    title: str
    unit: Literal["", "%"]
    has_zero: bool
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class State:
    """The page. Before anything is valued, `n_rounds` is 0 and there is no table.

    `n_planned` is the planned number of rounds, None if unknown. `recorded` says when something was last recorded, and
    `stalled` that this was long ago. All charts go from 0 to `last_round`, which may be after the last valued round.
    """

    run: str
    status: Status
    message: str
    problems: tuple[str, ...] = ()
    recorded: str = ""
    stalled: str = ""
    last_round: int = 0
    n_evaluations: int = 0
    title: str = ""
    charts: tuple[Drawing, ...] = ()
    n_rounds: int = 0
    n_planned: int | None = None
    n_clients: int = 0
    headline: str = ""
    numerical_error: str = ""
    is_doubtful: bool = False
    alarms: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    balance: str = ""
    server: str = ""
    caption: str = ""
    table: Table | None = None

    def to_json(self) -> str:
        """Return the state as one line of JSON; what is unknown is null."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def with_values(
    state: State,
    summary: Summary | None = None,
    metrics: Mapping[str, Curve] | None = None,
    *,
    is_sampled: bool = False,
) -> State:
    """Return the state with values and metrics, as far as there are any, and its texts shortened.

    `is_sampled` says that only some of the samples were valued.
    """
    summary = None if summary is None else summary.with_short_names()
    state = replace(
        state,
        run=shortened(state.run, LONGEST_NAME),
        title="Who contributed how much" + ("" if state.status == "finished" else ", so far"),
        message=_in_a_line(state.message),
        problems=tuple(map(_in_a_line, state.problems)),
        charts=tuple(_drawings(summary, metrics or {})),
    )
    if summary is None:
        return state
    omitted = _omitted(summary, is_sampled)
    return replace(
        state,
        last_round=max(state.last_round, summary.n_rounds),
        n_rounds=summary.n_rounds,
        n_planned=summary.n_planned,
        n_clients=len(summary.clients),
        headline=wording.headline(summary),
        numerical_error=_in_a_line(_numerical_error(summary, omitted)),
        is_doubtful=wording.is_doubtful(summary),
        alarms=tuple(summary.verdict.texts("alarm")),
        warnings=_warnings(summary),
        balance=wording.balance(summary.books),
        server=wording.server(summary),
        caption=_caption(summary, state.status),
        table=contributions(_without_ranges(summary) if omitted else summary, "watch", N_LISTED),
    )


def _caption(summary: Summary, status: Status) -> str:
    """Return the caption of the table."""
    text = wording.VALUE if status == "finished" else wording.VALUE.replace("all rounds", "all rounds so far")
    missing = len(summary.clients) - len(wording.first(summary, N_LISTED))
    text = text if summary.has_shares else f"{wording.NO_SHARES} {text}"
    return f"{text} {missing:,} more clients are not listed." if missing else text


def _warnings(summary: Summary) -> tuple[str, ...]:
    """Return the doubts, except that the run is unfinished, and the notes of the run on its data."""
    return tuple(
        _in_a_line(reason.text)
        for reason in summary.verdict.reasons
        if (reason.weight == "doubt" and reason.kind != "extent") or reason.kind == "data"
    )


def _omitted(summary: Summary, is_sampled: bool) -> list[str]:
    """Return what was omitted to keep up with a training."""
    lines = []
    if is_sampled:
        lines.append(f"{summary.n_samples:,} of {count(summary.n_recorded, 'sample')} were drawn at random and valued")
    if summary.n_games < summary.n_rounds:
        steps = f"in {summary.n_games:,} steps, the last ones unchecked"
        lines.append(f"about {summary.n_rounds:,} rounds were valued {steps}")
    return lines


def _numerical_error(summary: Summary, omitted: Sequence[str]) -> str:
    """Return a sentence on the numerical error, which is unknown if something was omitted."""
    if not omitted:
        return wording.numerical_error(summary)
    return (
        f"To keep up with the training, {', and '.join(omitted)}: a first impression with an unknown error. "
        "The report (verfedsv report) checks and values everything."
    )


def _without_ranges(summary: Summary) -> Summary:
    """Return a summary without ranges."""
    clients = (
        replace(client, share_low=None, share_high=None, decrease_low=None, decrease_high=None)
        for client in summary.clients
    )
    return replace(summary, clients=tuple(clients))


def _drawings(summary: Summary | None, metrics: Mapping[str, Curve]) -> Iterable[Drawing]:
    if summary is not None:
        shown = [(client.name, client.cumulative) for client in summary.clients[:N_DRAWN] if client.cumulative]
        title = "How much each client lowered the loss, up to each round"
        yield _drawing(title, "loss", shown, has_zero=True)
    for name, lines in series(metrics, None if summary is None else summary.losses).items():
        yield _drawing(wording.measure_title(name), name, [line[1:] for line in lines])


def _drawing(title: str, measure: str, curves: Iterable[tuple[str, Curve]], *, has_zero: bool = False) -> Drawing:
    """Return a chart of curves of a measure, such as 'loss'."""
    lines = []
    for number, (label, points) in enumerate(curves):
        kept = thin(np.array(points.values), _MOST_POINTS)
        last = points.values[-1] if points.values else None
        drawn = line_style(number)
        lines.append(
            Line(
                label=shortened(label, LONGEST_NAME),
                colour=drawn.colour,
                dash=drawn.dashes,
                last="unknown" if last is None else wording.measured(measure, last),
                rounds=tuple(points.rounds[k] for k in kept),
                values=tuple(points.values[k] for k in kept),
            )
        )
    return Drawing(title, "%" if MEASURES[measure].is_fraction else "", has_zero, tuple(lines))


def _in_a_line(text: str) -> str:
    return shortened(text.replace("\n", " "), _LONGEST_TEXT)
