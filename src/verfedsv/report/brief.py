"""The first part of a summary in the terminal."""

from __future__ import annotations

from collections.abc import Iterator

from rich.text import Text

from verfedsv.report import wording
from verfedsv.report.summary import Summary
from verfedsv.texts import LONGEST_NAME, shortened

_MOST_CLIENTS, _MOST_GROUPS = 10, 10
_STYLES = {"good": "", "plain": "", "bad": "yellow"}


def brief(summary: Summary) -> Iterator[Text]:
    """Yield the lines of a report that nobody should miss. They are texts, so that no name is read as markup."""
    yield Text(wording.headline(summary), style="bold")
    yield from (Text(warning, style="yellow") for warning in wording.warnings(summary))
    yield Text(wording.verdict(summary), style=_STYLES[wording.tone(summary)])
    yield from (Text(note) for note in wording.notes(summary))
    first = wording.first(summary, _MOST_CLIENTS)
    for client in first:
        yield Text.assemble(
            "  ", (shortened(client.name, LONGEST_NAME), "bold"), " ", wording.predicate(client, summary)
        )
    if len(first) < len(summary.clients):
        yield Text(f"  and {len(summary.clients) - len(first)} more")
    yield Text(wording.ranking(summary))
    yield from (Text(f"  {line}") for line in wording.group_lines(summary, _MOST_GROUPS))
    if summary.settlement is not None and (warning := wording.payout_warning(summary)):
        yield Text(warning, style="yellow")
