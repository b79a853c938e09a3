"""`verfedsv settle`: what each client is paid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from verfedsv.cli.output import check_writable, explain_warnings, print_text, write_file
from verfedsv.cli.progress import explain_interrupt, interrupts
from verfedsv.cli.value import value_folder
from verfedsv.errors import InputError
from verfedsv.report.tables import shown
from verfedsv.settlement import Settlement
from verfedsv.settlement.documents import read_bytes
from verfedsv.settlement.explanation import explain
from verfedsv.settlement.folders import find_valuation, options_for
from verfedsv.settlement.payouts import settle_on
from verfedsv.settlement.rules import Negative, Rule
from verfedsv.settlement.terms import Terms
from verfedsv.transcript import Transcript
from verfedsv.valuation import Valuation


def settle(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a valuation (JSON).")],
    budget: Annotated[str, typer.Option(help="What is to be shared, such as 100000 or 2500.50.", metavar="AMOUNT")],
    currency: Annotated[str, typer.Option(help="Its currency, such as EUR.", metavar="CODE")],
    rule: Annotated[
        Rule,
        typer.Option(
            help="shares: in proportion to values. floor, cap: the same, but nobody less, or more, than an amount. "
            "shapley-positive: only positive values share."
        ),
    ] = "shares",
    negative: Annotated[
        Negative | None,
        typer.Option(
            help="What happens to negative values: they count as zero, are deducted (the client pays in), or nothing "
            "is settled. Has to be said if there are any."
        ),
    ] = None,
    floor: Annotated[
        str | None, typer.Option(help="For --rule floor: what each gets at least.", metavar="AMOUNT")
    ] = None,
    cap: Annotated[str | None, typer.Option(help="For --rule cap: what each gets at most.", metavar="AMOUNT")] = None,
    fixed_part: Annotated[
        str | None, typer.Option(help="Part of the budget that all share equally, such as 20%.", metavar="PERCENT")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the payouts to this file, .csv or .json.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the payouts as JSON and nothing else.")] = False,
) -> None:
    """Share a budget among the clients by their values: payouts to the cent, which add up to it exactly.

    Beside each payout is the range in which it would lie if the values were off by their errors. The valuation of the
    run is taken if it is there and up to date; if not, the run is valued first.

    Exit codes: 0 settled; 2 it cannot be settled like this, with a message that says why; 130 interrupted.

    Example: verfedsv settle runs/credit --budget 100000 --currency EUR --negative zero -o payouts.csv
    """
    if output is not None:
        check_writable(output)
        if output.suffix.lower() not in (".csv", ".json"):
            raise InputError(f"cannot write {output}: its name must end in .csv or .json")
    terms = Terms.of(budget, currency, rule, negative=negative, floor=floor, cap=cap, fixed_part=fixed_part)
    valuation = valuation_of(run)
    result = settle_on(terms, valuation)
    if output is not None:
        write_file(output, result.to_csv() if output.suffix.lower() == ".csv" else result.to_json())
    if as_json:
        print_text(result.to_json())
    else:
        show(Console(), result, valuation)


def valuation_of(run: Path) -> Valuation:
    """Return the valuation in a file, or that of a run, which is valued first if it has none that is up to date."""
    if run.is_file():
        try:
            return Valuation.from_json(read_bytes(run))
        except InputError as error:
            raise InputError(f"{run} cannot be used: {error}") from None
    transcript = Transcript.open(run)
    known = find_valuation(run, transcript)
    if known is not None:
        transcript.verify(may_go_on=True)
        return known
    return compute(run, options_for(run))


def compute(run: Path, options: dict[str, Any], what: str = "valuing") -> Valuation:
    """Value a run, showing how far it is."""
    console = Console(stderr=True)
    stopped = "stopped while valuing; nothing was written."
    with explain_interrupt(console, stopped), explain_warnings(console), interrupts() as check:
        result = value_folder(console, run, options, check, what)
        check()
    return result


def show(console: Console, result: Settlement, valuation: Valuation) -> None:
    """Print the payouts with their sum, and by which rule they came about."""
    console.print(payouts_table(result, console.width))
    console.print()
    for line in explain(result, valuation):
        console.print(line, highlight=False, markup=False)


def payouts_table(result: Settlement, width: int = 80) -> Table:
    """Return a table of the clients by falling payout, and the sum.

    In a narrow terminal names give way, then notes are left out, then ranges and shares; payouts never are.
    """
    columns = {
        result.currency.code: [*map(result.currency.shown, result.payouts), result.currency.shown(sum(result.payouts))],
        "range": [_range(result, m) for m in range(len(result.clients))],
        "share": ["-" if np.isnan(share) else f"{share:.2%}" for share in result.shares],
    }
    room = width - _NARROWEST_NAME
    kept: list[str] = []
    for name, cells in columns.items():
        size = 2 + max(map(len, [name, *cells]))
        if not kept or size <= room:
            kept.append(name)
            room -= size
    notes = min(max(map(len, result.notes)), 22)
    has_notes = notes > 0 and notes + 2 <= room
    names = min(max(map(len, result.clients)), max(0, room - (notes + 2) * has_notes) + _NARROWEST_NAME)
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("client", no_wrap=True, max_width=max(_NARROWEST_NAME, names))
    in_order = [name for name in ("share", result.currency.code, "range") if name in kept]
    for name in in_order:
        table.add_column(name, justify="right", no_wrap=True, min_width=max(map(len, columns[name])))
    if has_notes:
        table.add_column("note", overflow="fold")
    for m in sorted(range(len(result.clients)), key=lambda m: -result.payouts[m]):
        note = [Text(result.notes[m])] if has_notes else []
        # Text, not a string: a name is never read as markup.
        table.add_row(Text(shown(result.clients[m], names)), *(columns[name][m] for name in in_order), *note)
    sums = [Text(columns[name][-1], style="bold") if name == result.currency.code else "" for name in in_order]
    table.add_row("sum", *sums)
    return table


_NARROWEST_NAME = 6


def _range(result: Settlement, m: int) -> str:
    low, high = result.lowest[m], result.highest[m]
    if low is None or high is None:
        return "unknown"
    return f"{result.currency.shown(low)} to {result.currency.shown(high)}"
