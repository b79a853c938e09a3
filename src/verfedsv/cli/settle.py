"""`verfedsv settle`: what each client is paid."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from verfedsv._version import __version__
from verfedsv.cli.output import check_writable, explain_warnings, print_note, print_text, write_file
from verfedsv.cli.progress import explain_interrupt, interrupts
from verfedsv.cli.valuing import value_folder
from verfedsv.errors import InputError
from verfedsv.report.terminal import shown
from verfedsv.runs.extent import find_extent, refuse_running
from verfedsv.runs.folder import VALUATION, RunFolder
from verfedsv.runs.valuations import find_valuation, options_for
from verfedsv.settlement import Settlement
from verfedsv.settlement.agreement import refuse_others, say_other_settings
from verfedsv.settlement.books import refuse_rejected
from verfedsv.settlement.documents import format_of, read_bytes
from verfedsv.settlement.explanation import cautions, explain
from verfedsv.settlement.payouts import Basis, pay
from verfedsv.settlement.rules import Negative, Rule
from verfedsv.settlement.statement import configuration_of
from verfedsv.settlement.terms import Terms
from verfedsv.settlement.transcripts import has_offset
from verfedsv.texts import printable
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.reader import folder_of
from verfedsv.valuation import Valuation
from verfedsv.valuation.verdict import RunFacts, judge


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
    even_if_the_loss_rose: Annotated[
        bool,
        typer.Option(
            "--even-if-the-loss-rose", help="Settle though the clients did not make the model better.", metavar=""
        ),
    ] = False,
    accept_settings: Annotated[
        bool,
        typer.Option(
            "--accept-settings", help="Pay by values though they were computed with other settings.", metavar=""
        ),
    ] = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write the payouts to this file, .csv or .json.", metavar="FILE"),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the payouts as JSON and nothing else.", metavar="")
    ] = False,
) -> None:
    """Share a budget among the clients by their values: payouts to the cent, which add up to it exactly.

    Beside each payout is the range in which it would lie if the values were off by their errors. The valuation of the
    run is taken if it is there and up to date; if not, the run is valued first. A training that is still running is not
    settled, and one that was stopped before its end is said to be such. Nor is one in which the loss rose, or which the
    clients together did not lower, unless --even-if-the-loss-rose is given.

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
    n_planned = None if folder is None else _plan_of(folder)
    valuation = valuation_of(run)
    if folder is not None:
        own = has_offset(Transcript.open(folder))
        refuse_others(valuation.settings, configuration_of(folder), has_offset=own, accepted=accept_settings)
    elif (others := say_other_settings(valuation.settings, None)) is not None and not accept_settings:
        print_note(Console(stderr=True), f"{run} is in no run's folder, so what was agreed is unknown; {others}")
    refuse_rejected(valuation, "settled", accepted=even_if_the_loss_rose)
    result = pay(terms, Basis.of(valuation, n_planned))
    if output is not None:
        write_file(output, result.to_csv(_about(run)) if output.suffix.lower() == ".csv" else result.to_json())
    for line in [*(cautions(result) if as_json else ()), *_notes_of(folder, valuation)]:
        print_note(Console(stderr=True), line)
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
            why = str(error) if format_of(run) else "this is not the JSON of a valuation"
            raise InputError(f"{run} cannot be used: {why}. Name the folder of a run, or a valuation.json") from None
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
        result, facts = value_folder(console, RunFolder(run), options, check, what)
        check()
    for fault in facts.faults:
        print_note(console, fault)
    return result


def _notes_of(folder: Path | None, valuation: Valuation) -> list[str]:
    """Return what is to be known of the data and the training of a run."""
    notes = () if folder is None else RunFolder(folder).notes()
    return judge(valuation, RunFacts(notes=notes)).texts("note")


def _folder_of(run: Path) -> Path | None:
    """Return the folder of a run, also if its valuation.json was named; None for a valuation that lies elsewhere."""
    if not run.is_file():
        return run
    is_of_run = run.name == VALUATION and (folder_of(run.parent) / fmt.DESCRIPTION).exists()
    return run.parent if is_of_run else None


def _plan_of(folder: Path) -> int | None:
    """Return how many rounds the training of a run was to have; raise InputError if it is still running."""
    extent = find_extent(folder, Transcript.open(folder))
    refuse_running(extent, "settled")
    return extent.n_planned


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
