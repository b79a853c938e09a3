import numpy as np
import pytest

from tests.report.valuations import make_large_summary, make_summary
from verfedsv.report import tables
from verfedsv.report.html import to_html
from verfedsv.report.markdown import escape, to_markdown
from verfedsv.report.summary import Payout, SettlementSummary
from verfedsv.report.tables import Column

PAID = SettlementSummary("10.00", "EUR", (), (Payout("bank", "7.50", "7.40", "7.60", "cap"),))


def all_tables(summary):
    return [
        tables.contributions(summary),
        tables.quarters(summary),
        tables.payouts(summary.settlement),
        *(section.table for section in tables.details(summary)),
    ]


def test_pages_and_markdown_show_the_same_tables():
    """Every heading and every cell is in both."""
    summary = make_summary([3.0, 1.0], 0.01, completed=True, settlement=PAID, settings=[("data", "name", "adult")])
    page, text = to_html(summary), to_markdown(summary)
    for table in all_tables(summary):
        assert f'<table id="{table.id}"' in page
        assert f"| {' | '.join(heading.text for heading in table.headings)} |" in text
        for row in table.rows:
            assert f"| {' | '.join(escape(cell.text) for cell in row)} |" in text
            assert all(f">{cell.text}</" in page.replace("&#39;", "'") for cell in row if cell.text)


def test_a_column_is_shown_where_it_says():
    """A column appears in every medium that it names."""
    columns = [Column("Name", str, "name"), Column("Twice", lambda n: f"{2 * n}", on=("terminal",))]
    assert [len(tables.make_table("x", "", [1, 2], columns, medium).headings) for medium in ("report", "terminal")] == [
        1,
        2,
    ]
    assert tables.make_table("x", "", [1, 2], columns, "terminal").rows[1] == (("2", None), ("4", None))


@pytest.mark.parametrize("medium", ["report", "watch", "terminal"])
def test_there_are_no_columns_of_shares_where_there_are_none(medium):
    """If the clients raised the loss, only values are shown."""
    for values, is_there in (([0.3, 0.1], True), ([0.1, -0.4], False)):
        headings = [heading.text for heading in tables.contributions(make_summary(values), medium).headings]
        assert ("Share" in headings) == is_there
        assert "Total value" in headings


def test_of_many_clients_those_that_did_harm_are_listed():
    """They are listed whatever the limit is, and the caption says that a table was cut."""
    summary = make_large_summary(200)
    rows = tables.contributions(summary, "watch", 20).rows
    assert len(rows) == 21
    assert rows[-1][0].text == summary.clients[-1].name
    assert tables.quarters(summary, 50).caption.endswith("(the first 50 clients; all are in the JSON)")


def test_errors_are_rounded_up():
    """At their last digit, wherever they are printed; the worst case is a total over all rounds like the others."""
    summary = make_summary([0.25, 0.2], 0.00361, completed=True)
    (*_, error, _bar) = tables.contributions(summary, "terminal").rows[0]
    assert error.text == "± 0.015"  # 0.01444
    errors, completion, _, facts = (chapter.table for chapter in tables.details(summary))
    assert [cell.text for cell in errors.rows[0][2:]] == ["0", "0.015", "0.015", "1.45\N{NO-BREAK SPACE}%"]
    assert [cell.text for cell in completion.rows[0][2:4]] == ["0.0020", "0.40\N{NO-BREAK SPACE}%"]
    assert next(row[2].text for row in facts.rows if row[1].text == "worst-case error").startswith("48 (")


def test_payouts_have_minus_signs():
    """Hyphens are for JSON and CSV."""
    paid = SettlementSummary("10.00", "EUR", (), (Payout("shop", "-7.50", "-7.60", "-7.40", "", "-75.00%", "-75.00%"),))
    text = "".join(cell.text for medium in ("report", "terminal") for cell in tables.payouts(paid, medium).rows[0])
    assert "-" not in text
    assert "\N{MINUS SIGN}7.60 to \N{MINUS SIGN}7.40" in text


def test_errors_of_shares_are_how_far_they_can_be_off():
    """Two shares can be off by the same; 0.305 / (0.305 + 0.08) is the most for the first."""
    summary = make_summary([0.3, 0.1], np.array([0.005, 0.02]))
    assert [row[2].text for row in tables.contributions(summary, "terminal").rows] == ["± 4.23%", "± 4.23%"]
