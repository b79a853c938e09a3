"""`verfedsv settle`: what each client is paid."""

from __future__ import annotations

import datetime as dt
import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedsv._version import __version__
from verfedsv.cli.options import AcceptSettings, AsJson, EvenIfTheLossRose, TrustHead
from verfedsv.cli.output import check_writable, print_notes, print_reasons, print_text, write_file
from verfedsv.cli.valuing import compute, notes_of
from verfedsv.errors import InputError
from verfedsv.report.reading import summarise_settlement
from verfedsv.report.tables import payouts
from verfedsv.report.terminal import to_rich
from verfedsv.runs.extent import refuse_running
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.stored import find_run
from verfedsv.settlement import Settlement, Terms
from verfedsv.settlement import settle as settle_valuation
from verfedsv.settlement.agreement import describe_accepted
from verfedsv.settlement.documents import format_of, read_bytes
from verfedsv.settlement.explanation import cautions
from verfedsv.settlement.rules import Negative, Rule
from verfedsv.valuation import Valuation


def settle(
    run: Annotated[
        str,
        typer.Argument(help="The folder of a run, also s3://... or gs://..., or a valuation (JSON).", metavar="RUN"),
    ],
    budget: Annotated[str, typer.Option(help="The amount to share, such as 100000 or 2500.50.", metavar="AMOUNT")],
    currency: Annotated[str, typer.Option(help="Its currency, such as EUR.", metavar="CODE")],
    rule: Annotated[
        Rule,
        typer.Option(
            help="shares: in proportion to values. floor, cap, floor-and-cap: the same, but at least --floor and at "
            "most --cap for each. shapley-positive: in proportion to positive values.",
            metavar="RULE",
        ),
    ] = "shares",
    negative: Annotated[
        Negative | None,
        typer.Option(
            help="What to do with negative values: zero counts them as zero, deduct makes the client pay in, refuse "
            "settles nothing. Required if there are any.",
            metavar="WHAT",
        ),
    ] = None,
    floor: Annotated[
        str | None, typer.Option(help="With --rule floor or floor-and-cap: the least for each.", metavar="AMOUNT")
    ] = None,
    cap: Annotated[
        str | None, typer.Option(help="With --rule cap or floor-and-cap: the most for each.", metavar="AMOUNT")
    ] = None,
    fixed_part: Annotated[
        str | None,
        typer.Option(help="Percentage of the budget to share equally first, such as 20%.", metavar="PERCENT"),
    ] = None,
    pay_server: Annotated[
        str | None,
        typer.Option(help="Also pay the server for its own part, under this name.", metavar="NAME"),
    ] = None,
    even_if_the_loss_rose: EvenIfTheLossRose = False,
    accept_settings: AcceptSettings = False,
    trust_head: TrustHead = False,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write the payouts to this file, .csv or .json.", metavar="FILE"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Split a budget among the clients by their values, to the cent.

    The payouts add up to the budget exactly. The range of a payout shows what the errors of the values allow. The run's
    valuation is used if it is up to date; otherwise the run is valued first, with the agreed settings. A training that
    is still running is not settled; one that was stopped early is, with a warning. One in which the loss did not fall
    is settled only with --even-if-the-loss-rose. Doubts, such as values whose errors are too large, are printed before
    the payouts and do not change the exit code: whether to pay is for people to decide.

    Exit codes: 0 settled, also with doubts; 2 it cannot be settled on these terms, with a message that explains why;
    130 interrupted.

    Example: verfedsv settle runs/credit --budget 100000 --currency EUR --negative zero -o payouts.csv
    """
    if output is not None:
        check_writable(output, "settlement")
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
    folder = _folder_of(run, trust_head=trust_head)
    valuation = _read_valuation(Path(run)) if folder is None else _valuation_of(folder)
    result = settle_valuation(
        valuation,
        terms,
        run=folder,
        even_if_the_loss_rose=even_if_the_loss_rose,
        accept_settings=accept_settings,
    )
    accepted = describe_accepted(folder, valuation.settings) if accept_settings and folder is not None else []
    if output is not None:
        made = f"{dt.datetime.now(tz=dt.UTC).date().isoformat()}, verfedsv {__version__}"
        name = (Path(run) if folder is None else folder.path).resolve().name
        about = {"run": name, "made": made, "signed": "no, this is a draft"}
        write_file(output, result.to_csv(about) if output.suffix.lower() == ".csv" else result.to_json())
    evaluated = None if folder is None else folder.least_train_loss()
    print_reasons(cautions(result, valuation, evaluated) if as_json else ())
    print_notes(*accepted, *notes_of(folder, valuation))
    if as_json:
        print_text(result.to_json())
    else:
        show(Console(), result, valuation, evaluated)


def _folder_of(run: str, *, trust_head: bool) -> RunFolder | None:
    """Return the folder of a run, or that of its valuation.json; None for a valuation elsewhere."""
    path = Path(run)
    if not path.is_file():
        return find_run(run, trust_head=trust_head)
    around = RunFolder.around(path)
    return around if around is not None and around.valuation_path == path.resolve() else None


def _read_valuation(path: Path) -> Valuation:
    """Return the valuation in a file."""
    try:
        content = read_bytes(path)
        result = Valuation.from_json(content)
    except InputError as error:
        why = str(error) if format_of(path) else "this is not the JSON of a valuation"
        raise InputError(f"{path} cannot be used: {why}. Name the folder of a run, or a valuation.json") from None
    if json.loads(content).get("finished") is False:
        raise InputError(f"{path} is of a training that had not ended: name the folder of its run")
    return result


def _valuation_of(folder: RunFolder) -> Valuation:
    """Return the valuation in the folder if it is up to date; otherwise value the run."""
    transcript = folder.open()
    refuse_running(folder.extent(transcript), "settled")  # before it is valued, which may take long
    stored = folder.valuation_of(transcript)
    if stored is None:
        return compute(folder, folder.agreed_settings(transcript).as_dict())
    return stored


def show(console: Console, result: Settlement, valuation: Valuation, evaluated: float | None = None) -> None:
    """Print reasons not to pay, the payouts with their sum, and how they were computed."""
    summary = summarise_settlement(result, valuation)
    print_reasons(cautions(result, valuation, evaluated), console)
    console.print(to_rich(payouts(summary, "terminal"), console.width))
    console.print()
    for line in summary.sentences[len(cautions(result, valuation)) :]:
        console.print(line, highlight=False, markup=False)
    console.print("This is a draft: only what verfedsv statement signs is binding.", highlight=False)
