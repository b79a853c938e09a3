"""A summary as one HTML file that needs no network, no server and, for the essentials, no script.

Altair's charts are drawn as SVG when the page is made; where scripts run, Vega replaces them by interactive ones. Its
script, bundled by vl-convert, interprets expressions rather than evaluating them as code, so the page can forbid the
network, `eval` and all scripts and style sheets but its own, which it names by their hashes (Content-Security-Policy).
Colours of SVG come from the style sheet: one drawing serves light, dark and print.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import asdict
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from verfedsv import charts
from verfedsv.charts import line_row
from verfedsv.federation.evaluation import MEASURES
from verfedsv.line_styles import N_STYLES, line_style
from verfedsv.report import tables, wording
from verfedsv.report.amounts import place_text
from verfedsv.report.curves import Curve, thin
from verfedsv.report.metrics import series
from verfedsv.report.summary import Summary
from verfedsv.texts import shortened

if TYPE_CHECKING:
    import altair as alt

N_SHOWN = 10
"""How many clients the chart over rounds shows at first, and how many have a sentence that is not folded."""

N_LISTED = 200
"""How many clients the tables of details list; the first table has all."""

MOST_ROWS = 30
"""How many rows a table shows; longer tables scroll, and say so."""

_MOST_DRAWN = 120
_WIDEST_NAME = 22
_LONGEST_TEXT = 500


def to_html(summary: Summary) -> str:
    """Return the report as HTML. The same summary gives the same bytes."""
    summary = summary.with_short_names()
    name_width = min(_WIDEST_NAME, max(len(client.name) for client in summary.clients))
    specs = {name: _fitting(chart) for name, chart in _figures(summary, hover=True).items()}
    return (
        _environment()
        .get_template("report.html")
        .render(
            summary=summary,
            words=wording,
            place_text=place_text,
            contributions=tables.contributions(summary),
            payouts=None if summary.settlement is None else tables.payouts(summary.settlement),
            quarters=tables.quarters(summary, N_LISTED),
            details=tables.details(summary, N_LISTED),
            most_rows=MOST_ROWS,
            drawings={name: charts.to_svg(chart) for name, chart in _figures(summary, hover=False).items()},
            series=series(summary.metrics, summary.losses),
            n_shown=N_SHOWN,
            first=wording.first(summary, N_SHOWN),
            n_points=max(len(client.cumulative.rounds) for client in summary.clients if client.cumulative),
            n_bars=len(charts.pick_bars(np.array([client.value for client in summary.clients]))),
            line_style=line_style,
            curves=_curves(summary),
            specs=specs,
            # Nothing of the run is in these three, so they are not escaped.
            style=f":root {{ --name: {name_width}ch; }}\n{_static('report.css')}",
            runtime=charts.runtime().replace("</script", "<\\/script"),
            script=_static("report.js"),
            hash=_hash,
        )
    )


@cache
def _environment() -> Environment:
    result = Environment(
        loader=PackageLoader("verfedsv.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    result.filters["text"] = partial(shortened, most=_LONGEST_TEXT)
    result.policies["json.dumps_kwargs"] = {"ensure_ascii": False, "allow_nan": False, "separators": (",", ":")}
    return result


def _static(name: str) -> str:
    return (files("verfedsv.report") / "templates" / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    """Return the hash by which a Content-Security-Policy names an inline style sheet or script."""
    return base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def _curves(summary: Summary) -> dict[str, Any]:
    """Return what the script draws: the curves of the summary, by their names there."""
    content, drawn = asdict(summary), series(summary.metrics, summary.losses)
    clients = [{kind: client[kind] for kind in ("cumulative", "per_round")} for client in content["clients"]]
    return {
        "clients": clients,
        "metrics": content["metrics"],
        "losses": content["losses"],
        "training": {name: [line[:2] for line in lines] for name, lines in drawn.items()},
        "styles": [line_style(number)._asdict() for number in range(N_STYLES)],
        "n_shown": N_SHOWN,
    }


def _figures(summary: Summary, *, hover: bool) -> dict[str, alt.LayerChart]:
    """Return the charts of a page by name; without `hover`, they have fewer points."""
    shown = [(client.name, client.cumulative) for client in summary.clients[:N_SHOWN] if client.cumulative]
    figures = {
        "shares": _bars(summary),
        "rounds": charts.lines("decrease in loss", _rows(shown, hover), hover=hover),
    }
    for name, lines in series(summary.metrics, summary.losses).items():
        measure = MEASURES[name]
        form = "~%" if measure.is_fraction else ".3~g"
        rows = _rows([line[1:] for line in lines], hover)
        chart = charts.lines(measure.title, rows, of="of", form=form, zero=False, hover=hover)
        figures[name] = chart.properties(height=220)
    return figures


def _bars(summary: Summary) -> alt.LayerChart:
    ranges = [
        (c.share, c.share_low, c.share_high) if summary.has_shares else (c.decrease, c.decrease_low, c.decrease_high)
        for c in summary.clients
    ]
    found = np.array(ranges, dtype=np.float64)  # NaN for None
    if summary.has_shares and summary.unknown:  # intervals are then of shares among the other clients, not of these
        found[:, 1:] = np.nan
    names = [client.name for client in summary.clients]
    return charts.bars(names, found[:, 0], found[:, 1:], as_shares=summary.has_shares)


def _rows(curves: Sequence[tuple[str, Curve]], hover: bool) -> list[dict[str, Any]]:
    """Return the points of some lines; none with `hover`, where the script takes them from the summary."""
    if hover:
        return []
    return [
        line_row(number, name, points.rounds[k], points.values[k])
        for number, (name, points) in enumerate(curves)
        for k in thin(np.array(points.values), _MOST_DRAWN)
    ]


def _fitting(chart: alt.LayerChart) -> dict[str, Any]:
    """Return the specification of a chart that fills its container."""
    spec: dict[str, Any] = chart.properties(width="container", background="transparent").to_dict()
    del spec["$schema"]  # of Altair's version, which is newer than the page's
    return spec
