"""The first part of a summary in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from verfedsv.report import wording
from verfedsv.report.summary import Summary

_MOST_CLIENTS, _MOST_GROUPS = 10, 10


def brief(summary: Summary) -> Iterator[Text]:
    """Yield the lines of a report that nobody should miss. They are texts, so that no name is read as markup."""
    summary = summary.with_short_names()
    yield from (Text(alarm, style="bold red") for alarm in wording.alarms(summary.books))
    yield Text(wording.headline(summary), style="bold")
    yield Text(wording.balance(summary.books))
    yield from (Text(warning, style="yellow") for warning in wording.warnings(summary))
    yield Text(wording.numerical_error(summary), style="yellow" if wording.is_doubtful(summary) else "")
    yield from (Text(note) for note in wording.notes(summary))
    if summary.has_shares:
        yield Text(wording.SHARES)
    first = wording.first(summary, _MOST_CLIENTS)
    for client in first:
        yield Text.assemble("  ", (client.name, "bold"), " ", wording.predicate(client, summary))
    if len(first) < len(summary.clients):
        yield Text(f"  and {len(summary.clients) - len(first)} more")
    if said := wording.server(summary):
        yield Text(said)
    yield Text(wording.ranking(summary))
    yield from (Text(f"  {line}") for line in wording.group_lines(summary, _MOST_GROUPS))
    if summary.settlement is not None and (warning := wording.payout_warning(summary)):
        yield Text(warning, style="bold red")
