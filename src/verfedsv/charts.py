"""Charts of plain numbers, by Altair: bars with errors, and lines over rounds.

They know nothing of valuations or reports, so `Valuation.plot` and the report share them. Altair and vl-convert, 84 MB,
are the extra `report`: import this module only where something is drawn. Names are data here and never part of an
expression.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from typing import Any
from unicodedata import east_asian_width

import numpy as np
from numpy.typing import NDArray

from verfedsv.errors import InputError, how_to_install
from verfedsv.line_styles import COLOURS, DASHES, line_style
from verfedsv.texts import LONGEST_NAME, shortened

try:
    import altair as alt
    import vl_convert
except ModuleNotFoundError as error:
    if error.name not in ("altair", "vl_convert"):
        raise
    hint = how_to_install("report")
    raise InputError(f"charts need Altair: {hint}; a report in Markdown, -o report.md, has none") from None

Floats = NDArray[np.float64]

_INK, _GRID, _POSITIVE, _NEGATIVE = "#1d2733", "#dfe4ea", COLOURS[0], COLOURS[1]
_MOST_BARS = 30
_ROOM = 24
# From 6.2 to 6.4, tooltips of the nearest point show undefined in place of a name (pull request 9707 of Vega-Lite).
_VEGA_LITE = "6.1"


def bars(names: Sequence[str], amounts: Floats, ends: Floats, *, as_shares: bool = True) -> alt.LayerChart:
    """Return a bar chart, the largest first, with error bars between the `ends`, (names, 2), unless these are NaN.

    `pick_bars` says which are drawn.
    """
    order = pick_bars(amounts)
    labels = tell_apart([names[m] for m in order])
    rows = [
        {"label": label, "name": shortened(names[m], LONGEST_NAME), "amount": float(amounts[m])}
        | ({} if np.isnan(ends[m]).any() else {"low": float(ends[m, 0]), "high": float(ends[m, 1])})
        for label, m in zip(labels, order, strict=True)
    ]
    form, fine, title = ("~%", ".3%", "share") if as_shares else (".3~g", ".4~g", "total value")
    titles = {"amount": title, "low": "at least", "high": "at most"}
    tooltip = [alt.Tooltip("name:N", title="client")]
    tooltip += [alt.Tooltip(f"{name}:Q", title=text, format=fine) for name, text in titles.items()]
    # Names are cut here and not by Vega, which cuts through letters of two UTF-16 units and then cannot draw them. With
    # a given domain, and without stacking, no name becomes a key of a JavaScript object, which has "constructor".
    base = alt.Chart(alt.InlineData(values=rows)).encode(
        y=alt.Y(
            "label:N",
            scale=alt.Scale(domain=labels),
            sort=None,
            title=None,
            axis=alt.Axis(labelLimit=0, labelPadding=6, domain=False),
        ),
        tooltip=tooltip,
    )
    colour = alt.condition("datum.amount < 0", alt.value(_NEGATIVE), alt.value(_POSITIVE))
    drawn = base.mark_bar(height=14, aria=False).encode(
        x=alt.X("amount:Q", stack=None, title=title, axis=alt.Axis(format=form, tickCount=5)), color=colour
    )
    # Vega warns of scales of layers without numbers.
    errors = _error_bars(base, title) if any("low" in row for row in rows) else []
    return _styled([drawn, *errors], width=520, height=26 * len(rows))


def _error_bars(base: alt.Chart, title: str) -> list[alt.Chart]:
    """Return the lines from `low` to `high`, and their caps."""
    known = base.transform_filter("isValid(datum.low)")
    line = known.mark_rule(color=_INK, strokeWidth=1.5, aria=False).encode(x=alt.X("low:Q", title=title), x2="high:Q")
    caps = [
        known.mark_tick(color=_INK, thickness=1.5, size=9, aria=False)
        .encode(x=alt.X(f"{end}:Q", title=title))
        .properties(name=f"end_{end}")
        for end in ("low", "high")
    ]
    return [line, *caps]


def pick_bars(amounts: Floats) -> list[int]:
    """Return the indices of the amounts to draw, the largest first; of more than 30, the 25 largest and 5 smallest."""
    order = [int(m) for m in np.argsort(-amounts, kind="stable")]
    return order if len(order) <= _MOST_BARS else order[: _MOST_BARS - 5] + order[-5:]


def tell_apart(names: Sequence[str]) -> list[str]:
    """Return names shortened to the room beside bars; those that then look the same are numbered.

    >>> tell_apart(["bank", "hospital of the far north", "hospital of the far north-east"])
    ['bank', 'hospital of the far nor…', 'hospital of the far nor… (2)']
    """
    labels: list[str] = []
    seen = Counter[str]()
    for name in names:
        # Letters of eastern scripts are twice as wide.
        most = _ROOM // (1 + any(east_asian_width(letter) in "WF" for letter in name))
        label = shortened(name, most)
        seen[label] += 1
        labels.append(label if seen[label] == 1 else f"{label} ({seen[label]})")
    return labels


def line_row(number: int, name: str, round_number: int, amount: float) -> dict[str, Any]:
    """Return a point of the line with that number, for `lines`."""
    shown = {"line": number, "name": shortened(name, LONGEST_NAME), "round": round_number, "value": amount}
    return shown | line_style(number)._asdict()


def lines(
    title: str,
    rows: Sequence[dict[str, Any]] = (),
    *,
    of: str = "client",
    form: str = ".3~g",
    zero: bool = True,
    hover: bool = True,
) -> alt.LayerChart:
    """Return a chart of lines over rounds, of rows of `line_row`. The data are named, so that a page can replace them.

    `of` is what a line stands for, `form` the format of numbers. With `zero`, the vertical axis includes 0. With
    `hover`, the point nearest to the pointer shows its numbers.
    """
    base = alt.Chart(alt.InlineData(name="lines", values=list(rows))).encode(
        x=alt.X("round:Q", title="round", axis=alt.Axis(grid=False, tickMinStep=1, format=",d", tickCount=6)),
        y=alt.Y("value:Q", title=title, scale=alt.Scale(zero=zero), axis=alt.Axis(format=form, tickCount=5)),
        color=alt.Color("colour:N", scale=None),
        detail="line:N",
    )
    dash = alt.StrokeDash(
        "dash:O", scale=alt.Scale(domain=list(range(len(DASHES))), range=list(map(list, DASHES))), legend=None
    )
    drawn = base.mark_line(strokeWidth=1.8, aria=False).encode(strokeDash=dash)
    return _styled([drawn, _points(base, of)] if hover else [drawn], width=640, height=280)


def _points(base: alt.Chart, of: str) -> alt.Chart:
    """Return the points of a chart of lines, of which only the one nearest to the pointer is visible."""
    nearest = alt.selection_point("nearest", on="pointerover", nearest=True, empty=False, clear="pointerout")
    points: alt.Chart = (
        base.mark_point(size=60, filled=True, aria=False)
        .encode(
            opacity=alt.condition(nearest, alt.value(1), alt.value(0)),
            tooltip=[
                alt.Tooltip("name:N", title=of),
                alt.Tooltip("round:Q", title="round", format=",d"),
                alt.Tooltip("value:Q", format=".5~g"),
            ],
        )
        .add_params(nearest)
        .properties(name="points")
    )
    return points


@cache
def runtime() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, 0.9 MB, which defines `vegaEmbed`."""
    script: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=_VEGA_LITE)
    return script


def to_svg(chart: alt.LayerChart) -> str:
    """Return a chart as SVG; text in it is escaped by Vega."""
    drawn: str = vl_convert.vegalite_to_svg(chart.properties(background="transparent").to_dict(), vl_version=_VEGA_LITE)
    return drawn


def _styled(layers: Sequence[alt.Chart], **size: int) -> alt.LayerChart:
    text: dict[str, Any] = {"labelColor": _INK, "titleColor": _INK, "titleFontWeight": "normal"}
    chart: alt.LayerChart = (
        alt.LayerChart(layer=list(layers))
        .properties(**size)
        .configure(font="system-ui, sans-serif")
        .configure_axis(**text, labelFontSize=12, titleFontSize=12, gridColor=_GRID, domainColor=_GRID, ticks=False)
        .configure_view(stroke=None)
    )
    return chart
