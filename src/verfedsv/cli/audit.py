"""`verfedsv audit`: whether a statement, a run or an extract is true."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from verfedsv.cli.options import AcceptSettings, AsJson, OnDevice, TrustHead
from verfedsv.cli.output import print_notes, print_reasons, print_text
from verfedsv.cli.progress import follow, progress_bar, working
from verfedsv.settlement.audit import Audit
from verfedsv.settlement.audit import audit as audit_anything
from verfedsv.settlement.keys import read_public_key

EXIT_DIFFERS, EXIT_WITH_RESERVATION = 1, 3


def audit(
    path: Annotated[
        str,
        typer.Argument(
            help="A statement, an extract, or the folder of a run, also s3://... or gs://...", metavar="PATH"
        ),
    ],
    run: Annotated[
        str | None,
        typer.Option(
            help="The run the statement describes, if either was moved after signing; also s3://... or gs://...",
            metavar="FOLDER",
        ),
    ] = None,
    statement: Annotated[
        Path | None, typer.Option(help="The statement to check an extract or a run against.", metavar="FILE")
    ] = None,
    public_key: Annotated[
        Path | None, typer.Option(help="The key that the statement must be signed with.", metavar="FILE")
    ] = None,
    accept_settings: AcceptSettings = False,
    trust_head: TrustHead = False,
    device: OnDevice = "cpu",
    as_json: AsJson = False,
) -> None:
    """Check signature, files and hash chain, compute values and payouts again, and compare.

    The folder of a run is checked against the statement.json in it. Without a statement, only the hash chain and
    valuation.json can be checked.

    Exit codes: 0 passes; 1 something differs, and one line says what; 2 a file or an option cannot be used; 3 passes
    with reservations: differences that another version of verfedsv or another processor may explain; 130 interrupted.

    Example: verfedsv audit statement.json --run runs/credit --public-key consortium.pub
    """
    key = None if public_key is None else read_public_key(public_key)
    console = Console(stderr=True)
    stopped = "stopped before the audit was complete: there is no result."
    with working(console, stopped) as check, progress_bar(console) as bar:
        task = bar.add_task("auditing", total=None)
        result = audit_anything(
            path,
            run=run,
            statement_path=statement,
            public_key=key,
            accept_settings=accept_settings,
            trust_head=trust_head,
            device=device,
            progress=follow(bar, task, check),
        )
    if as_json:
        print_text(result.to_json())
    else:
        show(Console(), result)
    if not result.passes:
        raise typer.Exit(EXIT_WITH_RESERVATION if result.difference is None else EXIT_DIFFERS)


def show(console: Console, result: Audit) -> None:
    """Print what was found, and in the last line whether the audit passes."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for check in result.checks:
        table.add_row(check.name, "[green]ok[/green]", Text(check.said))
    if result.checks:
        console.print(table)
    print_reasons(result.reasons, console)
    print_notes(*result.notes, console=console)
    for reservation in result.reservations:
        console.print(f"reservation: {reservation}", style="yellow", highlight=False, markup=False, soft_wrap=True)
    if result.difference is not None:
        console.print(f"differs: {result.difference}", style="bold red", highlight=False, markup=False, soft_wrap=True)
    elif result.reservations:
        console.print("passes only with reservation", style="bold yellow")
    else:
        console.print("passes", style="bold green")
