"""Values of clients as a table in the terminal."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from rich.table import Table
from rich.text import Text

from verfedsv.losses import Floats
from verfedsv.report.amounts import Amounts, Range
from verfedsv.report.numbers import digits
from verfedsv.report.summary import known
from verfedsv.texts import printable
from verfedsv.valuation import Valuation

_EIGHTHS = " ▏▎▍▌▋▊▉"
_NONE = "-"
_WIDEST_BAR, _SHORTEST_NAME = 24, 12


def values_table(result: Valuation, width: int = 80) -> Table:
    """Return a table of the clients by falling value: share and value with their errors, and a bar for the value.

    Values and their errors are those over all rounds. The error of a share is how far it can be off if every value is
    off by at most its error. In a terminal of `width` columns, the bars and then the names give way; where it is
    narrower still, values come below shares. No number is left out.
    """
    clients, totals, errors = result.clients, result.values * result.n_rounds, result.errors * result.n_rounds
    parts = result.shares if result.values.sum() > 0 else np.full(len(clients), np.nan)  # not shares of a damage
    amounts = Amounts(
        [Range(v, known(v - e), known(v + e)) for v, e in zip(totals.tolist(), errors.tolist(), strict=True)]
    )
    shares = _with_errors([_as_share(share) for share in parts], _share_errors(result), _as_share_error)
    values = _with_errors([amounts.value(total) for total in totals.tolist()], errors, partial(digits, n_digits=2))
    longest = max(map(len, clients))
    details = {"share ± error": shares, "total value ± error": values}
    if min(longest, _SHORTEST_NAME) + sum(_room(*column) for column in details.items()) > width:
        both = [Text("\n").join(cells) for cells in zip(shares, values, strict=True)]
        details = {"share, total value": both}
    room_for_names = width - sum(_room(*column) for column in details.items())
    names = min(longest, max(4, room_for_names))
    room = min(room_for_names - names - 2, _WIDEST_BAR)
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("client", overflow="ellipsis", no_wrap=True, max_width=max(6, names))
    for name, cells in details.items():
        table.add_column(name, no_wrap=True, min_width=_room(name, cells) - 2)
    if room > 4:
        table.add_column("", no_wrap=True)
    low, high = min(0.0, float(totals.min())), max(0.0, float(totals.max()))
    for m in (-totals).argsort(kind="stable"):
        total = float(totals[m])
        drawn = [Text(bar(total, low, high, room), style="cyan" if total >= 0 else "red")] if room > 4 else []
        # Text, not a string: a name is never read as markup.
        table.add_row(Text(shown(clients[m], names)), *(cells[m] for cells in details.values()), *drawn)
    return table


def _with_errors(numbers: Sequence[str], errors: Floats, write: Callable[[float], str]) -> list[Text]:
    """Return numbers with their errors, one below the other; where there is no number, there is no error."""
    written = ["unknown" if np.isnan(error) else write(error) for error in errors]
    widths = max(map(len, numbers)), max(map(len, written))
    return [
        Text.assemble(number.rjust(widths[0]), ("" if number == _NONE else f" ± {error.rjust(widths[1])}", "dim"))
        for number, error in zip(numbers, written, strict=True)
    ]


def _room(header: str, cells: Sequence[Text]) -> int:
    """Return the width of a column, with the space beside it."""
    return max(len(header), *(line.cell_len for cell in cells for line in cell.split())) + 2


def _as_share(share: float) -> str:
    return _NONE if np.isnan(share) else f"{share:.2%}"


def _as_share_error(error: float) -> str:
    """Return the error of a share, rounded up.

    >>> _as_share_error(0.056), _as_share_error(0.05601), _as_share_error(2.6e-5), _as_share_error(0.0)
    ('5.60%', '5.61%', '<0.01%', '0.00%')
    """
    step = 1e-4 if error < 1 else 1e-2
    upward = math.ceil(error / step * (1 - 1e-9)) * step
    return f"{'<' if 0 < error < step else ''}{upward:.{2 if error < 1 else 0}%}"


def _share_errors(result: Valuation) -> Floats:
    """Return how far shares can be off, (clients,).

    NaN for all if the error of some client is unknown: shares are parts of a sum with that client, and bounds of shares
    are then of those among the others.
    """
    if not np.isfinite(result.errors).all():
        return np.full(len(result.clients), np.nan)
    errors: Floats = np.abs(result.share_bounds - result.shares[:, np.newaxis]).max(axis=1)
    return errors


def side_by_side(results: Mapping[str, Valuation], width: int = 80) -> Table:
    """Return a table of the clients of several valuations, in the order of the first one's values: share and error.

    An error is how far a share can be off. In a narrow terminal the bars, and then the names, give way.
    """
    first = next(iter(results.values()))
    shares = np.array([result.shares for result in results.values()])
    errors = np.array([_share_errors(result) for result in results.values()])
    known = np.nan_to_num(shares)
    low, high = min(0.0, float(known.min())), max(0.0, float(known.max()))
    room_for_names = width - 18 * len(results)
    names = min(max(map(len, first.clients)), max(4, room_for_names))
    room = min((room_for_names - names - 2) // len(results) - 2, _WIDEST_BAR // 2)
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("client", overflow="ellipsis", no_wrap=True, max_width=max(6, names))
    for name in results:
        table.add_column(name, justify="right", no_wrap=True, min_width=16)
        if room > 4:
            table.add_column("", no_wrap=True)
    for m in (-first.values).argsort(kind="stable"):
        cells = [Text(shown(first.clients[m], names))]
        for share, error in zip(shares[:, m], errors[:, m], strict=True):
            size = "unknown" if np.isnan(error) else _as_share_error(error)
            cells.append(Text.assemble(_as_share(share), (f" ± {size}", "dim")))
            if room > 4:
                drawn = bar(float(np.nan_to_num(share)), low, high, room)
                cells.append(Text(drawn, style="red" if share < 0 else "cyan"))
        table.add_row(*cells)
    return table


def shown(name: str, width: int) -> str:
    r"""Return a name as a terminal may show it: without control characters, and cut in the middle if it is too long.

    >>> shown("hospital of the north", 12), shown("\x1b[31mred", 12)
    ('hospit…north', '�[31mred')
    """
    plain = printable(name)
    if len(plain) <= width:
        return plain
    last = (width - 1) // 2
    return f"{plain[: width - 1 - last]}…{plain[-last:] if last else ''}"


def bar(value: float, low: float, high: float, width: int) -> str:
    """Return a bar from zero to `value` on a scale from `low` to `high`; negative values run to the left.

    >>> bar(0.5, 0.0, 1.0, 8), bar(-1.0, -1.0, 1.0, 8)
    ('████', '████')
    >>> bar(1.0, -1.0, 1.0, 8)
    '    ████'
    """
    if high == low:
        return ""
    zero = round(width * -low / (high - low))
    if value >= 0:
        eighths = round(8 * (width - zero) * value / (high or 1))
        return (" " * zero + "█" * (eighths // 8) + _EIGHTHS[eighths % 8]).rstrip()
    length = round(zero * value / low)
    return " " * (zero - length) + "█" * length
