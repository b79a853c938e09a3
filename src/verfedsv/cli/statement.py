"""`verfedsv statement`: sign what was recorded, valued and paid."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedsv.cli.options import AcceptSettings, AsJson, EvenIfTheLossRose, RunArgument, TrustHead
from verfedsv.cli.output import check_writable, print_notes, print_reasons, print_text, write_file
from verfedsv.cli.valuing import compute, notes_of
from verfedsv.errors import InputError
from verfedsv.runs.extent import refuse_running
from verfedsv.runs.folder import RunFolder
from verfedsv.settlement import Settlement
from verfedsv.settlement.agreement import describe_accepted, options_of, refuse_others
from verfedsv.settlement.books import describe_books, refuse_rejected
from verfedsv.settlement.comparisons import Claim, Difference, Reservation, compare_rounds, compare_valuation
from verfedsv.settlement.explanation import cautions
from verfedsv.settlement.keys import fingerprint, read_private_key
from verfedsv.settlement.statement import make_statement
from verfedsv.transcript import Transcript
from verfedsv.valuation import Valuation
from verfedsv.valuation.result import PACKAGE


def statement(
    run: RunArgument,
    key: Annotated[
        Path, typer.Option(help="The private key to sign with; verfedsv keys new makes one.", metavar="FILE")
    ],
    settlement: Annotated[
        Path | None,
        typer.Option(help="Payouts to sign as well: the JSON that verfedsv settle -o wrote.", metavar="FILE"),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The file to write. Default: statement.json in RUN.", metavar="FILE"),
    ] = None,
    even_if_the_loss_rose: EvenIfTheLossRose = False,
    accept_settings: AcceptSettings = False,
    trust_head: TrustHead = False,
    as_json: AsJson = False,
) -> None:
    """Sign a statement of a run: the hashes of its transcript and files, its configuration, values and payouts.

    With the public key anyone can check the signature, and with the run the content: verfedsv audit. If the run already
    has values, they are computed again before they are signed, which takes as long as valuing it.

    Exit codes: 0 signed; 2 the run or a file cannot be used, with a message that explains why; 130 interrupted.

    Example: verfedsv statement runs/credit --key consortium.key --settlement payouts.json
    """
    private, folder = read_private_key(key), RunFolder(run, trust_head=trust_head)
    transcript = folder.open()
    refuse_running(folder.extent(transcript), "signed")
    path = folder.statement_path if output is None else output
    check_writable(path, "statement")
    if path.exists():
        raise InputError(f"{path} exists, and is not overwritten; name another with -o")
    if key.resolve().is_relative_to(run.resolve()):
        raise InputError(f"{key} lies in the folder of the run, which is handed to auditors; keep it elsewhere")
    folder.find_files()
    paid = None if settlement is None else Settlement.read(settlement)
    valuation = _true_valuation(folder, transcript, accept_settings=accept_settings)
    refuse_rejected(valuation, "signed", accepted=even_if_the_loss_rose)
    signed = make_statement(folder, transcript, valuation, private, path, paid)
    write_file(path, signed.to_json().decode(), overwrite=False)
    accepted = describe_accepted(folder, valuation.settings) if accept_settings else []
    print_reasons(cautions(signed.settlement or signed.basis, valuation, folder.least_train_loss()))
    print_notes(*accepted, *notes_of(folder, valuation))
    if as_json:
        print_text(signed.to_json().decode())
    else:
        typer.echo(f"wrote {path}, signed with key {fingerprint(signed.public_key)}")
        typer.echo(f"books: {describe_books(signed.basis.books)}")
        is_found = run.resolve().is_relative_to(path.parent.resolve())
        where = "" if is_found else f" --run {run}"
        typer.echo(f"to check it: verfedsv audit {path}{where} --public-key {key.with_suffix('.pub')}")


def _true_valuation(folder: RunFolder, transcript: Transcript, *, accept_settings: bool) -> Valuation:
    """Return the valuation of a run: computed now, or the one in its folder if computing it again gives the same."""
    stored = folder.valuation_of(transcript)
    valuation = stored or compute(folder, folder.agreed_settings(transcript).as_dict())
    refuse_others(folder, transcript, valuation.settings, accepted=accept_settings)
    if stored is None:
        return valuation
    again = compute(
        folder, {**options_of(stored.settings), "like": stored}, "valuing again, to be sure what is signed:"
    )
    found = _find_difference(stored, again)
    if found is not None:
        version = "" if stored.package == PACKAGE else f" (it was made with {stored.package}, and this is {PACKAGE})"
        raise InputError(
            f"{folder.valuation_path} is not signed, as it is not what the transcript gives{version}: {found}. Delete "
            "it, and the run is valued again"
        )
    return stored


def _find_difference(stored: Valuation, again: Valuation) -> str | None:
    """Return how a valuation differs from one computed now; what audits accept only with reservation counts too."""
    try:
        findings = [*compare_valuation(Claim.of_file(stored), again), *compare_rounds(stored, again)]
    except Difference as found:
        return str(found)
    return next((finding.said for finding in findings if isinstance(finding, Reservation)), None)
