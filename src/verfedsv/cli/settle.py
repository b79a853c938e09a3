"""`verfedsv settle`: what each client is paid."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from verfedsv._version import __version__
from verfedsv.cli.options import AcceptSettings, AsJson, EvenIfTheLossRose
from verfedsv.cli.output import check_writable, print_text, write_file
from verfedsv.cli.valuing import compute, notes_of, print_notes
from verfedsv.errors import InputError
from verfedsv.report.terminal import shown
from verfedsv.runs.extent import refuse_running
from verfedsv.runs.folder import RunFolder
from verfedsv.settings import ValuationSettings
from verfedsv.settlement import Settlement
from verfedsv.settlement.agreement import refuse_others
from verfedsv.settlement.books import refuse_rejected
from verfedsv.settlement.documents import format_of, read_bytes
from verfedsv.settlement.explanation import cautions, explain
from verfedsv.settlement.payouts import Basis, pay
from verfedsv.settlement.rules import Negative, Rule
from verfedsv.settlement.terms import Terms
from verfedsv.texts import printable
from verfedsv.transcript import Transcript
from verfedsv.valuation import Valuation


def settle(
    run: Annotated[Path, typer.Argument(help="The folder of a run, or a valuation (JSON).")],
    budget: Annotated[str, typer.Option(help="What is to be shared, such as 100000 or 2500.50.", metavar="AMOUNT")],
    currency: Annotated[str, typer.Option(help="Its currency, such as EUR.", metavar="CODE")],
    rule: Annotated[
        Rule,
        typer.Option(
            help="shares: in proportion to values. floor, cap, floor-and-cap: the same, but nobody less, or more, than "
            "an amount. shapley-positive: only positive values share.",
            metavar="RULE",
        ),
    ] = "shares",
    negative: Annotated[
        Negative | None,
        typer.Option(
            help="What happens to negative values: zero, they count as that; deduct, the client pays in; refuse, "
            "nothing is settled. Has to be said if there are any.",
            metavar="WHAT",
        ),
    ] = None,
    floor: Annotated[
        str | None, typer.Option(help="For --rule floor and floor-and-cap: what each gets at least.", metavar="AMOUNT")
    ] = None,
    cap: Annotated[
        str | None, typer.Option(help="For --rule cap and floor-and-cap: what each gets at most.", metavar="AMOUNT")
    ] = None,
    fixed_part: Annotated[
        str | None, typer.Option(help="Part of the budget that all share equally, such as 20%.", metavar="PERCENT")
    ] = None,
    pay_server: Annotated[
        str | None,
        typer.Option(help="Pay the server too, by the value of its own part, under this name.", metavar="NAME"),
    ] = None,
    even_if_the_loss_rose: EvenIfTheLossRose = False,
    accept_settings: AcceptSettings = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write the payouts to this file, .csv or .json.", metavar="FILE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Share a budget among the clients by their values: payouts to the cent, which add up to it exactly.

    Beside each payout is the range in which it would lie if the values were off by their errors. The run's valuation is
    used if it is up to date; if not, the run is valued first, as agreed. A training that is still running is not
    settled, nor is one in which the loss rose or that the clients together did not improve, unless
    --even-if-the-loss-rose is given. That a training was stopped early is said.

    Exit codes: 0 settled; 2 it cannot be settled like this, with a message that says why; 130 interrupted.

    Example: verfedsv settle runs/credit --budget 100000 --currency EUR --negative zero -o payouts.csv
    """
    if output is not None:
        check_writable(output, "settlement")
        if output.suffix.lower() not in (".csv", ".json"):
            raise InputError(f"cannot write {output}: its name must end in .csv or .json")
    terms = Terms.of(
        budget,
        currency,
        rule,
        negative=negative,
        floor=floor,
        cap=cap,
        fixed_part=fixed_part,
        pay_server=pay_server,
    )
    folder = _folder_of(run)
    if folder is None:
        n_planned, valuation = None, _read_valuation(run)
        if not accept_settings and (others := valuation.settings.differences(ValuationSettings())):
            print_notes(
                f"{run} is not in the folder of a run, so what was agreed is unknown. These settings are not the "
                f"defaults: {', '.join(others)}"
            )
    else:
        transcript = folder.open()
        extent = folder.extent(transcript)
        refuse_running(extent, "settled")
        n_planned, valuation = extent.n_planned, _valuation_of(folder, transcript)
        refuse_others(folder, transcript, valuation.settings, accepted=accept_settings)
    refuse_rejected(valuation, "settled", accepted=even_if_the_loss_rose)
    result = pay(terms, Basis.of(valuation, n_planned))
    if output is not None:
        write_file(output, result.to_csv(_about(run)) if output.suffix.lower() == ".csv" else result.to_json())
    print_notes(*(cautions(result) if as_json else ()), *notes_of(folder, valuation))
    if as_json:
        print_text(result.to_json())
    else:
        show(Console(), result, valuation)


def _folder_of(run: Path) -> RunFolder | None:
    """Return the folder of a run, also if the valuation in it was named; None for a valuation that lies elsewhere."""
    if not run.is_file():
        return RunFolder(run)
    around = RunFolder.around(run)
    return around if around is not None and around.valuation_path == run.resolve() else None


def _read_valuation(path: Path) -> Valuation:
    """Return the valuation in a file."""
    try:
        return Valuation.from_json(read_bytes(path))
    except InputError as error:
        why = str(error) if format_of(path) else "this is not the JSON of a valuation"
        raise InputError(f"{path} cannot be used: {why}. Name the folder of a run, or a valuation.json") from None


def _valuation_of(folder: RunFolder, transcript: Transcript) -> Valuation:
    """Return the valuation of a run, which is valued first if it has none that is up to date."""
    known = folder.valuation_of(transcript)
    if known is None:
        return compute(folder, folder.agreed_settings(transcript).as_dict())
    transcript.verify(may_go_on=True)
    return known


def _about(run: Path) -> dict[str, str]:
    """Return what a table for people says of where it comes from."""
    today = dt.datetime.now(tz=dt.UTC).date().isoformat()
    return {"run": run.resolve().name, "made": f"{today}, verfedsv {__version__}", "signed": "no, this is a draft"}


def show(console: Console, result: Settlement, valuation: Valuation) -> None:
    """Print the payouts with their sum, and by which rule they came about."""
    console.print(payouts_table(result, console.width))
    console.print()
    warned = cautions(result)
    for line in explain(result, valuation):
        console.print(line, style="yellow" if line in warned else None, highlight=False, markup=False)
    console.print("This is a draft: what counts is what verfedsv statement signs.", highlight=False)


def payouts_table(result: Settlement, width: int = 80) -> RenderableType:
    """Return a table of the clients by falling payout, and the sum; in a narrow terminal, a paragraph for each.

    Names give way first, then notes move below the table. Nothing is left out.
    """
    money = result.currency
    has_shares = not np.isnan(result.shares).any()
    columns = {
        **({"of values": [f"{share:.2%}" for share in result.shares]} if has_shares else {}),
        money.code: [*map(money.shown, result.payouts), money.shown(sum(result.payouts))],
        "of budget": [f"{part:.2%}" for part in result.parts],
        "range": [_range(result, m) for m in range(len(result.clients))],
    }
    longest = max(map(len, result.clients))
    room = width - sum(2 + max(map(len, [name, *cells])) for name, cells in columns.items())
    if room < min(max(longest, len("client")), _NARROWEST_NAME):
        return _paragraphs(result, columns)
    with_notes = any(result.notes) and room - min(longest, _NARROWEST_NAME) - 2 >= _NARROWEST_NOTE
    names = min(longest, room - (_NARROWEST_NOTE + 2) * with_notes)
    table = Table(header_style="bold", box=None, pad_edge=False)
    table.add_column("client", no_wrap=True, min_width=names)
    for name, cells in columns.items():
        table.add_column(name, justify="right", no_wrap=True, min_width=max(map(len, cells)))
    if with_notes:
        table.add_column("note", overflow="fold")
    for m in result.order:
        note = [Text(result.notes[m])] if with_notes else []
        # Text, not a string: a name is never read as markup.
        table.add_row(Text(shown(result.clients[m], names)), *(cells[m] for cells in columns.values()), *note)
    table.add_row("sum", *([""] if has_shares else []), Text(columns[money.code][-1], style="bold"))
    notes = [] if with_notes else [m for m in result.order if result.notes[m]]
    return Group(table, *(Text(f"{shown(result.clients[m], names)}: {result.notes[m]}") for m in notes))


_NARROWEST_NAME, _NARROWEST_NOTE = 8, 22


def _paragraphs(result: Settlement, columns: Mapping[str, Sequence[str]]) -> Group:
    """Return the same for a narrow terminal: the name of each client, and below it what the columns have."""
    code = result.currency.code
    lines: list[RenderableType] = []
    for m in result.order:
        lines.append(Text(printable(result.clients[m]), style="bold", overflow="fold"))
        amount = f"{columns[code][m]} {code}"
        parts = [f"{columns[name][m]} {name}" for name in ("of budget", "of values") if name in columns]
        details = amount, *parts, f"range {columns['range'][m]}", result.notes[m]
        lines += [Padding(Text(detail, overflow="fold"), (0, 0, 0, 2), expand=False) for detail in details if detail]
    return Group(*lines, Text(f"sum {columns[code][-1]} {code}", style="bold", overflow="fold"))


def _range(result: Settlement, m: int) -> str:
    low, high = result.lowest[m], result.highest[m]
    if low is None or high is None:
        return "unknown"
    return f"{result.currency.shown(low)} to {result.currency.shown(high)}"
