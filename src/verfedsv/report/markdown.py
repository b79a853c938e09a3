"""A summary as Markdown: for wikis, tickets and mails. It has the page's sentences and tables, and no charts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from verfedsv.report import amounts, explanations, numbers, wording
from verfedsv.report.amounts import Amounts
from verfedsv.report.summary import ClientSummary, Summary
from verfedsv.texts import printable

BEGINNING = "# Who contributed how much: "

_MOST_GROUPS = 10
_LINKING = re.compile(r"(:(?=//)|w(?=ww\.)|@)", re.IGNORECASE)


def to_markdown(summary: Summary) -> str:
    """Return the report as Markdown. The same summary gives the same bytes."""
    values = Amounts.of(summary)
    parts = [
        f"{BEGINNING}{escape(summary.run)}",
        *(f"> **{escape(alarm)}**" for alarm in wording.alarms(summary.books)),
        escape(wording.headline(summary)),
        escape(wording.balance(summary.books)),
        *(f"> **{escape(warning)}**" for warning in wording.warnings(summary)),
        *map(escape, [wording.numerical_error(summary), wording.measured_on(summary), *wording.notes(summary)]),
        *_contributions(summary, values),
        *_ranking(summary),
        *_payouts(summary),
        "## Value over rounds",
        escape(explanations.OVER_ROUNDS["cumulative"]),
        _table(
            ["Client", *(f"Round {at:,}" for at in summary.quarters)],
            ([client.name, *map(values.value, client.quarters)] for client in summary.clients),
        ),
        *_training(summary),
        "## What the errors consist of",
        escape(explanations.errors(summary)),
        _table(
            ["Client", "Total value", "Error of computing", "Error of completion", "Together", "Of the value"],
            (_error_row(client, summary, values) for client in summary.clients),
        ),
        *_completion(summary),
        "## What was sent",
        escape(explanations.communication(summary)),
        _table(["Client", "Uploads", "Embeddings", "Size"], map(_upload_row, summary.clients)),
        "## Data and settings",
        _table(
            ["Part", "Setting", "Was"],
            ([fact.part, fact.name, fact.text] for fact in explanations.facts(summary)),
            texts=(1, 2),
        ),
        "## Five terms",
        "\n".join(f"- **{term}.** {escape(meaning)}" for term, meaning in explanations.GLOSSARY.items()),
        f"{escape(explanations.origin(summary))} `{summary.head}`.",
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
    warning = wording.payout_warning(summary)
    rows = [[line.client, line.amount, wording.payout_range(line), line.note] for line in known.payouts]
    table = _table(
        ["Client", f"Payout, {known.currency}", "Range", "Note"], [*rows, ["Sum", known.budget, "", ""]], (3,)
    )
    return [
        "## Payouts",
        *([f"> **{escape(warning)}**"] if warning else []),
        escape(wording.settlement(known)),
        table,
        escape(" ".join(known.sentences)),
    ]


def _contributions(summary: Summary, values: Amounts) -> list[str]:
    sentences = "\n".join(
        f"- Place {amounts.place_text(client, summary)}: **{escape(client.name)}** "
        f"{escape(wording.predicate(client, summary))}"
        for client in summary.clients
    )
    negative = wording.negative(summary)
    note = [f"> **What a share below zero means.** {escape(negative)}"] if negative else []
    shares = ["Share", wording.interval_header(summary)] if summary.has_shares else []
    header = ["Client", "Place", *shares, "Total value", "Value lies between", "Rounds below zero"]
    rows = (_client_row(client, summary, values) for client in summary.clients)
    caption = wording.VALUE
    server = [escape(wording.server(summary))] if summary.books.server else []
    intro = [wording.SHARES] if summary.has_shares else []
    return ["## Contributions", *intro, sentences, *note, caption, _table(header, rows), *server]


def _client_row(client: ClientSummary, summary: Summary, values: Amounts) -> list[str]:
    shares = [amounts.share_text(client), amounts.interval_text(client, summary)] if summary.has_shares else []
    negative = f"{client.n_negative_rounds:,} of {summary.n_rounds:,}"
    place = amounts.place_text(client, summary)
    return [client.name, place, *shares, values.value(client.decrease), values.ends(client), negative]


def _ranking(summary: Summary) -> list[str]:
    parts = ["## Who cannot be ranked", escape(wording.ranking(summary))]
    lines = [f"- {escape(line)}" for line in wording.group_lines(summary, _MOST_GROUPS)]
    return [part for part in (*parts, "\n".join(lines), escape(wording.ranked_by(summary))) if part]


def _training(summary: Summary) -> list[str]:
    rows = [
        [name.replace("_", " "), explanations.from_to(name, curve)]
        for name, curve in summary.metrics.items()
        if curve is not None
    ]
    if not rows:
        return []
    return [
        "## How training went",
        explanations.training(summary),
        _table(["Measured", "From and to"], rows, texts=(1,)),
    ]


def _completion(summary: Summary) -> list[str]:
    parts = ["## Embeddings that were not sent", escape(explanations.completion(summary))]
    rows = [
        [
            client.name,
            str(client.completion.rank),
            numbers.digits(client.completion.held_out_rmse, 2),
            numbers.maybe_percent(client.completion.relative_error),
            f"{client.completion.n_held_out:,}",
            f"{client.completion.n_unseen:,}",
        ]
        for client in summary.clients
        if client.completion is not None
    ]
    header = ["Client", "Patterns", "Typical error", "Of their size", "Set aside as a check", "Samples never seen"]
    return [*parts, _table(header, rows)] if rows else parts


def _error_row(client: ClientSummary, summary: Summary, values: Amounts) -> list[str]:
    sizes = (
        numbers.digits(summary.total(error), 2)
        for error in (client.estimator_error, client.completion_error, client.error)
    )
    return [client.name, values.value(client.decrease), *sizes, amounts.relative_error(client)]


def _upload_row(client: ClientSummary) -> list[str]:
    sent = client.uploads
    return [client.name, f"{sent.n_uploads:,}", f"{sent.n_embeddings:,}", numbers.size(sent.n_bytes)]


def _table(header: Sequence[str], rows: Iterable[Sequence[str]], texts: Sequence[int] = ()) -> str:
    """Return a table; numbers are aligned to the right, the first column and those of `texts` to the left."""
    marks = ["---" if column in (0, *texts) else "---:" for column in range(len(header))]
    text = [f"| {' | '.join(line)} |" for line in (header, marks)]
    return "\n".join(text + [f"| {' | '.join(map(escape, row))} |" for row in rows])
