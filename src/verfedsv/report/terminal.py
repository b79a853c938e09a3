"""Tables in the terminal, and the first part of a report there."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import rich.table
from rich.bar import Bar
from rich.cells import cell_len
from rich.console import Group, JustifyMethod, RenderableType
from rich.padding import Padding
from rich.text import Text

from verfedsv.report import wording
from verfedsv.report.summary import Summary
from verfedsv.report.tables import Cell, Kind, Table, contributions, payouts
from verfedsv.texts import printable
from verfedsv.valuation.verdict import Weight

_MOST_CLIENTS, _MOST_GROUPS = 20, 10
_WIDEST_BAR, _NARROWEST_BAR, _NARROWEST_TEXT, _SHORTEST_NAME = 24, 5, 20, 12


def brief(summary: Summary, width: int = 80) -> Iterator[RenderableType]:
    """Yield the most important lines of a report, as rich texts: no name is read as markup."""
    summary = summary.with_short_names()
    yield from (labelled(text, "alarm") for text in summary.verdict.texts("alarm"))
    yield Text(wording.headline(summary), style="bold")
    yield Text(wording.balance(summary.books))
    yield from (labelled(text, "doubt") for text in summary.verdict.texts("doubt"))
    yield Text(wording.numerical_error(summary), style="yellow" if wording.is_doubtful(summary) else "")
    yield from (labelled(text, "note") for text in summary.verdict.texts("note"))
    yield Text(wording.shares(summary))
    table = contributions(summary, "terminal", _MOST_CLIENTS)
    yield to_rich(table, width)
    if len(table.rows) < len(summary.clients):
        yield Text(f"and {len(summary.clients) - len(table.rows)} more")
    if said := wording.server(summary):
        yield Text(said)
    yield Text(wording.ranking(summary))
    yield from (Text(f"  {line}") for line in wording.group_lines(summary, _MOST_GROUPS))
    if summary.settlement is not None:
        if warning := wording.payout_warning(summary):
            yield Text(warning, style="bold red")
        yield to_rich(payouts(summary.settlement, "terminal"), width)


def labelled(text: str, weight: Weight) -> Text:
    """Return a reason not to trust values, or another note, after a label that says how serious it is."""
    return Text(f"{weight}: {text}", style="bold red" if weight == "alarm" else "yellow")


def to_rich(table: Table, width: int = 80) -> RenderableType:
    """Return a table that fits `width` columns without cutting numbers.

    If there is not enough room, bars are left out and names shortened; then texts move below the table; then each row
    becomes a paragraph.
    """
    return _drawn(table, width) or _with_texts_below(table, width) or _paragraphs(table)


def _with_texts_below(table: Table, width: int) -> RenderableType | None:
    """Return a table with its texts below it, each after the name of its row; None if there is not enough room."""

    def cells(row: Sequence[Cell], *, of_texts: bool = False) -> tuple[Cell, ...]:
        return tuple(cell for heading, cell in table.pairs(row) if (heading.kind == "text") == of_texts)

    headings = tuple(heading for heading in table.headings if heading.kind != "text")
    total = cells(table.total) if table.total else ()
    drawn = _drawn(replace(table, headings=headings, rows=tuple(map(cells, table.rows)), total=total), width)
    if drawn is None:
        return None
    name = [heading.kind for heading in table.headings].index("name")
    below = [(row[name].text, cell.text) for row in table.rows for cell in cells(row, of_texts=True) if cell.text]
    return Group(drawn, *(Text(f"{shown(client, _SHORTEST_NAME)}: {printable(text)}") for client, text in below))


def _drawn(table: Table, width: int) -> RenderableType | None:
    """Return a table as columns; None if there is not enough room even with short names."""
    title = tuple(Cell(heading.text) for heading in table.headings)
    lines = [title, *table.rows, *([table.total] if table.total else [])]
    kinds = [heading.kind for heading in table.headings]
    widths = {k: max(_width(kind, line[k]) for line in lines) for k, kind in enumerate(kinds) if kind != "bar"}
    longest = widths.pop(kinds.index("name"))
    room = width - sum(widths.values())
    if room < min(longest, _SHORTEST_NAME):
        return None
    names, n_bars = min(longest, room), max(1, kinds.count("bar"))
    bar = min((room - names) // n_bars - 2, _WIDEST_BAR // n_bars)
    scale = [0.0, *(row[k].number or 0.0 for row in table.rows for k, kind in enumerate(kinds) if kind == "bar")]
    shown = [k for k, kind in enumerate(kinds) if kind != "bar" or bar >= _NARROWEST_BAR]
    drawn = rich.table.Table(header_style="bold", box=None, padding=0, pad_edge=False)
    for k in shown:
        justify: JustifyMethod = "right" if kinds[k] == "number" else "left"
        drawn.add_column(_cell(kinds[k], _small(title[k].text), names), justify=justify, no_wrap=kinds[k] != "text")
    for row in table.rows:
        drawn.add_row(
            *(
                _bar(row[k].number or 0.0, min(scale), max(scale), bar)
                if kinds[k] == "bar"
                else _cell(kinds[k], row[k].text, names)
                for k in shown
            )
        )
    if table.total:
        drawn.add_row(*(_cell(kinds[k], table.total[k].text, names) for k in shown), style="bold")
    return drawn


def _width(kind: Kind, cell: Cell) -> int:
    """Return the width of a cell with the space before it; texts can be wrapped."""
    length = cell_len(cell.text)
    return {"name": length, "error": length + 1, "text": min(_NARROWEST_TEXT, length) + 2}.get(kind, length + 2)


def _cell(kind: Kind, text: str, names: int) -> RenderableType:
    """Return a cell with the space before it, as rich text: no name is read as markup."""
    if kind == "name":
        return Text(shown(text, names))
    if kind == "error":
        return Text(f" {text}", style="dim")
    return Padding(Text(printable(text)), (0, 0, 0, 2)) if kind == "text" else Text(f"  {text}")


def _small(heading: str) -> str:
    return heading[:1].lower() + heading[1:]


def _bar(amount: float, low: float, high: float, width: int) -> RenderableType:
    """Return a bar from zero to an amount, to the left if it is negative."""
    colour = "red" if amount < 0 else "cyan"
    bar = Bar(high - low or 1.0, min(amount, 0.0) - low, max(amount, 0.0) - low, width=width, color=colour)
    return Padding(bar, (0, 0, 0, 2), expand=False)


def _paragraphs(table: Table) -> Group:
    """Return each row as a paragraph: its name, and a line for each column."""
    lines: list[Text] = []
    for row in [*table.rows, *([table.total] if table.total else [])]:
        names = [cell.text for heading, cell in table.pairs(row) if heading.kind == "name"]
        lines.append(Text(printable(names[0]), style="bold"))
        for heading, cell in table.pairs(row):
            if heading.kind == "error" and cell.text:
                lines[-1].append(f" {cell.text}", style="dim")
            elif heading.kind in ("number", "text") and cell.text:
                lines.append(Text(f"  {_small(heading.text)} {cell.text}"))
    return Group(*lines)


def shown(name: str, width: int) -> str:
    r"""Return a name for a terminal: without control characters, and cut in the middle if it is too long.

    >>> shown("hospital of the north", 12), shown("\x1b[31mred", 12)
    ('hospit…north', '�[31mred')
    """
    plain = printable(name)
    if len(plain) <= width:
        return plain
    last = (width - 1) // 2
    return f"{plain[: width - 1 - last]}…{plain[-last:] if last else ''}"
