"""What the page shows, as plain data of bounded size; all wording is the report's, and the script only sets texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np

from verfedsv.looks import look
from verfedsv.report import wording
from verfedsv.report.curves import Curve, thin
from verfedsv.report.metrics import series
from verfedsv.report.summary import Summary
from verfedsv.report.tables import Table, contributions
from verfedsv.shapley.result import count
from verfedsv.texts import LONGEST_NAME, shortened

FORMAT, VERSION = "verfedsv watch", 1

N_LISTED = 200
"""How many clients are listed; of more, those with the largest values and up to five that did harm."""

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
    """A chart of lines over rounds; `unit` is "%" where numbers are fractions."""

    title: str
    unit: Literal["", "%"]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class State:
    """All of the page. Before anything was valued, `n_rounds` is 0 and there is no table.

    `n_planned` is how many rounds the training is to have, None if that is not known. `recorded` says when something
    was recorded last, and `stalled` that this was long ago. All charts go from 0 to `last_round`, which may be later
    than the last that was valued.
    """

    run: str
    status: Status
    title: str
    message: str
    recorded: str
    stalled: str
    problems: tuple[str, ...]
    n_rounds: int
    last_round: int
    n_planned: int | None
    n_clients: int
    n_evaluations: int
    headline: str
    numerical_error: str
    is_doubtful: bool
    alarms: tuple[str, ...]
    warnings: tuple[str, ...]
    balance: str
    server: str
    caption: str
    table: Table | None
    charts: tuple[Drawing, ...]

    def to_json(self) -> str:
        """Return the state as one line of JSON; what is unknown is null."""
        content = {"format": FORMAT, "version": VERSION, **asdict(self)}
        return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True)
class Progress:
    """How far following a run is: `is_sampled` if a part of the samples was valued, `last_round` as measured."""

    run: str
    status: Status
    message: str
    problems: tuple[str, ...] = ()
    n_evaluations: int = 0
    recorded: str = ""
    stalled: str = ""
    is_sampled: bool = False
    last_round: int = 0


def build_state(progress: Progress, summary: Summary | None, metrics: Mapping[str, Curve]) -> State:
    """Return the state of the page; of a run that was not valued yet, without a summary."""
    summary = None if summary is None else summary.with_short_names()
    left_out = [] if summary is None else _left_out(summary, progress)
    return State(
        run=shortened(progress.run, LONGEST_NAME),
        status=progress.status,
        title="Who contributed how much" + ("" if progress.status == "finished" else ", so far"),
        message=_in_a_line(progress.message),
        recorded=progress.recorded,
        stalled=progress.stalled,
        problems=tuple(_in_a_line(problem) for problem in progress.problems),
        n_rounds=0 if summary is None else summary.n_rounds,
        last_round=max(progress.last_round, 0 if summary is None else summary.n_rounds),
        n_planned=None if summary is None else summary.n_planned,
        n_clients=0 if summary is None else len(summary.clients),
        n_evaluations=progress.n_evaluations,
        headline="" if summary is None else wording.headline(summary),
        numerical_error="" if summary is None else _in_a_line(_numerical_error(summary, left_out)),
        is_doubtful=summary is not None and wording.is_doubtful(summary),
        alarms=() if summary is None else tuple(summary.verdict.texts("alarm")),
        warnings=() if summary is None else _warnings(summary),
        balance="" if summary is None else wording.balance(summary.books),
        server="" if summary is None else wording.server(summary),
        caption="" if summary is None else _caption(summary, progress.status),
        table=None
        if summary is None
        else contributions(_without_ranges(summary) if left_out else summary, "watch", N_LISTED),
        charts=tuple(_drawings(summary, metrics)),
    )


def _caption(summary: Summary, status: Status) -> str:
    """Return what the table is of."""
    so_far = "" if status == "finished" else " that were valued so far"
    text = f"Total value: by how much the client lowered the loss, over all rounds{so_far}; below zero, it raised it."
    missing = len(summary.clients) - len(wording.first(summary, N_LISTED))
    text = text if summary.has_shares else f"{wording.NO_SHARES} {text}"
    return f"{text} {missing:,} more clients are not listed." if missing else text


def _warnings(summary: Summary) -> tuple[str, ...]:
    """Return what speaks against the values, but for how far the run is, and what the run noted of its data."""
    return tuple(
        _in_a_line(reason.text)
        for reason in summary.verdict.reasons
        if (reason.weight == "doubt" and reason.kind != "extent") or reason.kind == "data"
    )


def _left_out(summary: Summary, progress: Progress) -> list[str]:
    """Return what was left out to keep up with a training."""
    lines = []
    if progress.is_sampled:
        lines.append(f"{summary.n_samples:,} of {count(summary.n_recorded, 'sample')} were drawn at random and valued")
    if summary.n_games < summary.n_rounds:
        steps = f"in {summary.n_games:,} steps, the last ones unchecked"
        lines.append(f"about {summary.n_rounds:,} rounds were valued {steps}")
    return lines


def _numerical_error(summary: Summary, left_out: Sequence[str]) -> str:
    """Return how far the numbers may be off; where something was left out, that this is not known."""
    if not left_out:
        return wording.numerical_error(summary)
    return (
        f"To keep up with the training, {', and '.join(left_out)}: a first impression, and how far off is not known. "
        "The report (verfedsv report) checks and values everything."
    )


def _without_ranges(summary: Summary) -> Summary:
    """Return a summary in which nothing is known of how far values are off."""
    clients = (
        replace(client, share_low=None, share_high=None, decrease_low=None, decrease_high=None)
        for client in summary.clients
    )
    return replace(summary, clients=tuple(clients))


def _drawings(summary: Summary | None, metrics: Mapping[str, Curve]) -> Iterable[Drawing]:
    if summary is not None:
        shown = [(client.name, client.cumulative) for client in summary.clients[:N_DRAWN] if client.cumulative]
        yield _drawing("By how much each client lowered the loss, up to each round", "", shown)
    for title, lines in series(metrics, None if summary is None else summary.losses).items():
        yield _drawing(title.capitalize(), "%" if title == "accuracy" else "", [line[1:] for line in lines])


def _drawing(title: str, unit: Literal["", "%"], curves: Iterable[tuple[str, Curve]]) -> Drawing:
    lines = []
    for number, (label, points) in enumerate(curves):
        kept = thin(np.array(points.values), _MOST_POINTS)
        last = points.values[-1] if points.values else None
        drawn = look(number)
        lines.append(
            Line(
                label=shortened(label, LONGEST_NAME),
                colour=drawn.colour,
                dash=drawn.dashes,
                last="unknown" if last is None else wording.metric("accuracy" if unit else "loss", last),
                rounds=tuple(points.rounds[k] for k in kept),
                values=tuple(points.values[k] for k in kept),
            )
        )
    return Drawing(title, unit, tuple(lines))


def _in_a_line(text: str) -> str:
    return shortened(text.replace("\n", " "), _LONGEST_TEXT)
