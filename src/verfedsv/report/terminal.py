"""Values of clients as a table in the terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.bar import Bar
from rich.table import Table
from rich.text import Text

from verfedsv.shapley import ShapleyResult

_BAR_WIDTH = 24


def values_table(clients: Sequence[str], result: ShapleyResult, title: str | None = None) -> Table:
    """Return a table of the clients by falling value: value, share, error, and a bar for the value.

    Bars begin at zero, which lies further right when a value is negative; those of negative values are red.
    """
    table = Table(title=title, title_justify="left", title_style="bold", header_style="bold", box=None, pad_edge=False)
    table.add_column("client", overflow="fold")
    table.add_column("value", justify="right")
    table.add_column("share", justify="right")
    table.add_column("error", justify="right")
    table.add_column("", width=_BAR_WIDTH)
    low, high = min(0.0, float(result.values.min())), max(0.0, float(result.values.max()))
    for m in (-result.values).argsort(kind="stable"):
        value = float(result.values[m])
        table.add_row(
            # Text, not a string: a name is never read as markup.
            Text(clients[m]),
            f"{value:.4e}",
            f"{result.shares[m]:.2%}",
            f"{result.errors[m]:.0e}",
            Bar(
                size=high - low or 1.0,
                begin=min(value, 0.0) - low,
                end=max(value, 0.0) - low,
                width=_BAR_WIDTH,
                color="cyan" if value >= 0 else "red",
            ),
        )
    return table
