"""A summary as Markdown: for wikis, tickets and mails. It has the page's sentences and tables, and no charts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from verfedsv.report import numbers, wording
from verfedsv.report.summary import ClientSummary, Summary
from verfedsv.texts import printable

_MOST_GROUPS = 10
_LINKING = re.compile(r"(:(?=//)|w(?=ww\.)|@)", re.IGNORECASE)


def to_markdown(summary: Summary) -> str:
    """Return the report as Markdown. The same summary gives the same bytes."""
    parts = [
        f"# Who contributed how much: {escape(summary.run)}",
        *map(escape, [wording.headline(summary), wording.verdict(summary), *wording.notes(summary)]),
        *_contributions(summary),
        *_ranking(summary),
        *_payouts(summary),
        "## Value over rounds",
        _table(
            ["Client", *(f"Round {at:,}" for at in summary.quarters)],
            ([c.name, *(wording.amount(x / summary.n_rounds, summary) for x in c.quarters)] for c in summary.clients),
        ),
        *_training(summary),
        "## What the errors consist of",
        escape(wording.errors(summary)),
        _table(
            ["Client", "Decrease of the loss", "Error of computing", "Error of completion", "Of the decrease"],
            (_error_row(client, summary) for client in summary.clients),
        ),
        *_completion(summary),
        "## What was sent",
        escape(wording.communication(summary)),
        _table(["Client", "Uploads", "Embeddings", "Size"], map(_upload_row, summary.clients)),
        "## Data and settings",
        _table(["Part", "Setting", "Was"], ([fact.part, fact.name, fact.text] for fact in wording.facts(summary))),
        "## Five terms",
        "\n".join(f"- **{term}.** {escape(meaning)}" for term, meaning in wording.GLOSSARY.items()),
        f"Made by {escape(summary.package)} from the transcript whose last hash is `{summary.head}`.",
    ]
    return "\n\n".join(parts) + "\n"


def escape(text: str) -> str:
    r"""Return a text that Markdown shows as it is: no markup, no HTML, no end of a line or of a cell, no link.

    Many programs make links of addresses, and call whoever is named after an @, in plain text too. A word joiner in
    these, which nobody sees, keeps them from that.

    >>> escape("<b>|*bank*"), escape("a\nb"), escape("www.x.org @all").count("\N{WORD JOINER}")
    ('&lt;b&gt;\\|\\*bank\\*', 'a�b', 2)
    """
    plain = printable(text.replace("\N{NO-BREAK SPACE}", " "))
    for letter, entity in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        plain = plain.replace(letter, entity)
    plain = _LINKING.sub("\\1\N{WORD JOINER}", plain)
    return re.sub(r"([\\`*_\[\]|#~!$])", r"\\\1", plain)


def _payouts(summary: Summary) -> list[str]:
    known = summary.settlement
    if known is None:
        return []
    rows = ([line.client, line.amount, wording.payout_range(line), line.note] for line in known.payouts)
    table = _table(["Client", f"Payout, {known.currency}", "Range", "Note"], rows)
    return ["## Payouts", escape(wording.settlement(known)), table, escape(" ".join(known.sentences))]


def _contributions(summary: Summary) -> list[str]:
    sentences = "\n".join(
        f"{place}. **{escape(client.name)}** {escape(wording.predicate(client, summary))}"
        for place, client in enumerate(summary.clients, 1)
    )
    note = [f"> **What a negative share means.** {escape(wording.NEGATIVE)}"] if wording.has_negative(summary) else []
    table = _table(
        ["Client", "Share", "Interval", "Decrease of the loss", "Its error"],
        (
            [
                client.name,
                wording.share_text(client),
                wording.interval_text(client),
                wording.amount(client.value, summary),
                wording.amount(client.error, summary),
            ]
            for client in summary.clients
        ),
    )
    return ["## Contributions", sentences, *note, table]


def _ranking(summary: Summary) -> list[str]:
    parts = ["## Who cannot be ranked", escape(wording.ranking(summary))]
    if summary.n_overlaps > 1:
        lines = [f"- {escape(wording.group_text(group, summary))}" for group in summary.groups[:_MOST_GROUPS]]
        more = summary.n_groups - len(lines)
        parts.append("\n".join(lines + ([f"- and {more} more groups"] if more else [])))
    return parts


def _training(summary: Summary) -> list[str]:
    rows = [
        [name.replace("_", " "), *map(numbers.digits, (curve.values[0], curve.values[-1]))]
        for name, curve in summary.metrics.items()
        if curve is not None
    ]
    if not rows:
        return []
    return ["## How training went", _table(["", "When first measured", "In the end"], rows)]


def _completion(summary: Summary) -> list[str]:
    parts = ["## Embeddings that were not sent", escape(wording.completion(summary))]
    rows = [
        [
            client.name,
            str(client.completion.rank),
            numbers.digits(client.completion.held_out_rmse, 2),
            numbers.maybe_percent(client.completion.relative_error),
            f"{client.completion.n_unseen:,}",
        ]
        for client in summary.clients
        if client.completion is not None
    ]
    return [*parts, _table(["Client", "Rank", "Error", "Of their size", "Samples never seen"], rows)] if rows else parts


def _error_row(client: ClientSummary, summary: Summary) -> list[str]:
    parts = (client.estimator_error, client.completion_error)
    sizes = (wording.scaled(error, summary) for error in parts)
    return [client.name, wording.amount(client.value, summary), *sizes, wording.relative(client)]


def _upload_row(client: ClientSummary) -> list[str]:
    sent = client.uploads
    return [client.name, f"{sent.n_uploads:,}", f"{sent.n_embeddings:,}", numbers.size(sent.n_bytes)]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---", *["---:"] * (len(header) - 1)]]
    text = [f"| {' | '.join(line)} |" for line in lines]
    return "\n".join(text + [f"| {' | '.join(map(escape, row))} |" for row in rows])
