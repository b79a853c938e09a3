import json

import numpy as np
import pytest
import vl_convert

from tests.report.valuations import make_valuation
from verfedsv.charts import bars, line_row, lines, pick_bars
from verfedsv.line_styles import COLOURS


def luminance(colour):
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, [0.2126, 0.7152, 0.0722]))


@pytest.mark.parametrize("page", ["#ffffff", "#14181d"])
def test_every_line_can_be_seen(page):
    """Colours of lines have a contrast of at least 3 to the light and to the dark page, as WCAG asks of graphics."""
    for colour in COLOURS:
        darker, lighter = sorted([luminance(colour), luminance(page)])
        assert (lighter + 0.05) / (darker + 0.05) >= 3


def rows_of(chart):
    """Return the data of a chart."""
    (rows,) = chart.to_dict()["datasets"].values()
    return rows


def test_a_valuation_plots_its_shares_with_error_bars():
    """The bars are the shares, the largest first, and the error bars their bounds."""
    valuation = make_valuation([1.0, 3.0, -0.5], 0.1)
    rows = rows_of(valuation.plot())
    assert [row["name"] for row in rows] == ["telco", "bank", "hospital"]
    np.testing.assert_allclose([row["amount"] for row in rows], valuation.shares[[1, 0, 2]])
    np.testing.assert_allclose([[row["low"], row["high"]] for row in rows], valuation.share_bounds[[1, 0, 2]])


def test_a_valuation_without_shares_plots_its_values():
    """If the loss rose, there is nothing to have a share of."""
    chart = make_valuation([-1.0, 0.5], 0.1).plot()
    assert [row["amount"] for row in rows_of(chart)] == [2.0, -4.0]
    assert chart.to_dict()["layer"][0]["encoding"]["x"]["title"] == "total value"


def test_unknown_errors_have_no_bar():
    """A bar without an error bar says that nobody knows."""
    (row,) = rows_of(bars(["bank"], np.array([1.0]), np.full((1, 2), np.nan)))
    assert row == {"label": "bank", "name": "bank", "amount": 1.0}


def test_names_that_read_the_same_when_cut_have_bars_of_their_own():
    """And names of letters that take two units each, as emoji do, can be drawn however long they are."""
    names = ["x" * 99 + "1", "x" * 99 + "2", "\N{BANK}" * 99, "\N{MATHEMATICAL DOUBLE-STRUCK CAPITAL A}" * 99]
    chart = bars(names, np.array([4.0, 3.0, 2.0, 1.0]), np.full((4, 2), np.nan))
    assert len({row["label"] for row in rows_of(chart)}) == 4
    assert vl_convert.vegalite_to_svg(chart.to_dict()).count("\N{HORIZONTAL ELLIPSIS}") >= 4


def test_of_many_bars_the_ends_are_drawn():
    """The 25 largest and the 5 smallest of 200: those that did harm are never left out first."""
    order = pick_bars(np.arange(200.0))
    assert order[:2] == [199, 198]
    assert order[-1] == 0
    assert len(order) == 30


def test_names_are_data_and_never_expressions():
    """Whatever a client is called, it stands among the data, without control characters."""
    name = "datum.x + '\x1b[31m"
    chart = lines("value", [line_row(0, name, 1, 2.0)]).to_dict()
    rest = json.dumps({key: value for key, value in chart.items() if key != "data"})
    assert "datum.x" not in rest
    assert chart["data"]["values"][0]["name"] == "datum.x + '\N{REPLACEMENT CHARACTER}[31m"
