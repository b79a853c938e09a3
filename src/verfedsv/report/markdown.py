"""A summary as Markdown, for wikis, tickets and mails: the sentences and tables of the page, without charts."""

from __future__ import annotations

import re
from html import escape as escape_html

from verfedsv.report import tables, wording
from verfedsv.report.amounts import place_text
from verfedsv.report.summary import Summary
from verfedsv.texts import printable

BEGINNING = "# Who contributed how much"

_MOST_GROUPS = 10
_LINKING = re.compile(r"(:(?=//)|w(?=ww\.)|@)", re.IGNORECASE)


def to_markdown(summary: Summary) -> str:
    """Return the report as Markdown. The same summary gives the same bytes."""
    parts = [
        f"{BEGINNING}: {escape(summary.run)}" if summary.run else BEGINNING,
        *(f"> **{escape(alarm)}**" for alarm in summary.verdict.texts("alarm")),
        escape(wording.headline(summary)),
        escape(wording.balance(summary.books)),
        *(f"> **{escape(doubt)}**" for doubt in summary.verdict.texts("doubt")),
        *map(escape, [wording.numerical_error(summary), wording.measured_on(summary), *summary.verdict.texts("note")]),
        *_contributions(summary),
        *_ranking(summary),
        *_payouts(summary),
        "## Value over rounds",
        escape(wording.OVER_ROUNDS["cumulative"]),
        *_table(tables.quarters(summary)),
        *_training(summary),
        *(part for chapter in tables.details(summary) for part in _chapter(chapter)),
        "## Five terms",
        "\n".join(f"- **{term}.** {escape(meaning)}" for term, meaning in wording.glossary(summary).items()),
        f"{escape(wording.origin(summary))} `{summary.head}`.",
    ]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    r"""Return a text that Markdown shows as it is: no markup, no HTML, no end of a line or of a cell, no link.

    Many programs turn addresses into links, and notify whoever is named after an @, in plain text too. An invisible
    word joiner prevents both.

    >>> escape("<b>|*bank*"), escape("a\nb"), escape("www.x.org @all").count("\N{WORD JOINER}")
    ('&lt;b&gt;\\|\\*bank\\*', 'a�b', 2)
    """
    plain = escape_html(printable(text.replace("\N{NO-BREAK SPACE}", " ")), quote=False)
    plain = _LINKING.sub("\\1\N{WORD JOINER}", plain)
    return re.sub(r"([\\`*_\[\]|#~!$])", r"\\\1", plain)


def _payouts(summary: Summary) -> list[str]:
    settlement = summary.settlement
    if settlement is None:
        return []
    warning = wording.payout_warning(summary)
    return [
        "## Payouts",
        *([f"> **{escape(warning)}**"] if warning else []),
        escape(wording.settlement(settlement)),
        *_table(tables.payouts(settlement)),
        escape(" ".join(settlement.sentences)),
    ]


def _contributions(summary: Summary) -> list[str]:
    sentences = "\n".join(
        f"- Place {place_text(client, summary)}: **{escape(client.name)}** {escape(wording.predicate(client, summary))}"
        for client in summary.clients
    )
    negative = wording.negative(summary)
    note = [f"> **What a negative share means.** {escape(negative)}"] if negative else []
    server = [escape(wording.server(summary))] if summary.books.server else []
    return [
        "## Contributions",
        escape(wording.shares(summary)),
        sentences,
        *note,
        *_table(tables.contributions(summary)),
        *server,
    ]


def _ranking(summary: Summary) -> list[str]:
    parts = ["## Ranking", escape(wording.ranking(summary))]
    lines = [f"- {escape(line)}" for line in wording.group_lines(summary, _MOST_GROUPS)]
    return [*parts, *(["\n".join(lines)] if lines else [])]


def _training(summary: Summary) -> list[str]:
    table = tables.training(summary)
    return ["## How training went", wording.training(summary), *_table(table)] if table.rows else []


def _chapter(chapter: tables.Chapter) -> list[str]:
    text = [escape(chapter.text)] if chapter.text else []
    return [f"## {chapter.title}", *text, *([] if chapter.table is None else _table(chapter.table))]


def _table(table: tables.Table) -> list[str]:
    """Return the caption of a table, and the table with numbers aligned to the right."""
    marks = ["---:" if heading.kind == "number" else "---" for heading in table.headings]
    rows = [*table.rows, *filter(None, [table.total])]
    lines = [[escape(heading.text) for heading in table.headings], marks]
    lines += [[escape(cell.text) for cell in row] for row in rows]
    return [escape(f"{table.caption.rstrip('.')}."), "\n".join(f"| {' | '.join(line)} |" for line in lines)]
