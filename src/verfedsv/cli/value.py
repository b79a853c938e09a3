"""`verfedsv value`: what each client contributed to a recorded training."""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.console import Console

from verfedsv.cli.cluster import executor_of
from verfedsv.cli.options import AnyRunArgument, AsJson, OnDevice, TrustHead
from verfedsv.cli.output import check_writable, describe_os_error, print_notes, print_reasons, print_text, write_file
from verfedsv.cli.progress import working
from verfedsv.cli.valuing import show, value_folder, without_effect
from verfedsv.errors import InputError
from verfedsv.runs.extent import Extent
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.stored import StoredRun, find_run
from verfedsv.settings import ValuationSettings
from verfedsv.shapley import Method
from verfedsv.shapley.semivalues import get_semivalue
from verfedsv.valuation.scratch import FOLDER, holds_work
from verfedsv.valuation.verdict import judge


def value(
    run: AnyRunArgument,
    method: Annotated[
        Method | None,
        typer.Option(
            help="How to value a round: auto (accurate to the tolerance), closed-form, exact or permutation.",
            metavar="METHOD",
        ),
    ] = None,
    semivalue: Annotated[
        str | None,
        typer.Option(
            help="What a value is: shapley, banzhaf, leave-one-out or 'beta(a, b)'. Only Shapley values add up.",
            metavar="SEMIVALUE",
        ),
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option(help="Rank of the completion in synchronous runs: a number, or auto.", metavar="NUMBER|auto"),
    ] = None,
    rows: Annotated[
        Literal["all", "gradient", "no-gradient"] | None,
        typer.Option(
            help="The samples to average over: all, gradient (those that receive gradients) or no-gradient.",
            metavar="ROWS",
        ),
    ] = None,
    tolerance: Annotated[
        float | None,
        typer.Option(help="Largest error of --method auto, relative to the largest value.", metavar="NUMBER"),
    ] = None,
    regularization: Annotated[
        str | None, typer.Option(help="Regularization of the completion: a number, or auto.", metavar="NUMBER|auto")
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(
            min=1, help="Most permutations to draw for a round, or for a sample with --method auto.", metavar="NUMBER"
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all random choices.", metavar="NUMBER")] = None,
    device: OnDevice = "cpu",
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the JSON to this .json file.", metavar="FILE")
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(
            help="Value on the workers of this Dask scheduler, which you must trust: tcp://HOST:8786.",
            metavar="ADDRESS",
        ),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Most memory of each process, such as 4GB, for runs larger than memory.", metavar="SIZE"),
    ] = None,
    scratch: Annotated[
        Path | None,
        typer.Option(help="Where to cut such a run into pieces, by default in its folder.", metavar="FOLDER"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue what an interrupted valuation left in the scratch folder.")
    ] = False,
    trust_head: TrustHead = False,
    as_json: AsJson = False,
) -> None:
    """Value a recorded training: print a table of the clients with value, share and error.

    The error of a value is the error of the estimator (proven, or with 99.9 % confidence, which may rest on an
    assumption: then the output says so) plus that of completing embeddings that were never uploaded (estimated).

    A run is valued with the settings that were agreed on, which its transcript holds: those of [valuation] in its
    config.toml, or of Recorder(valuation=...), or the defaults. Options given here override them. By default method,
    rank and regularization are auto, rows are all, the tolerance is 0.001 and the seed is 0.

    A training that is still running or was stopped early, or whose record is truncated, is valued as far as it is
    recorded. In the JSON, 'finished' is then false (null if no plan is known). Whether the values can be trusted is
    printed first; in the JSON, 'verdict' says it: sound, doubtful or rejected, with the reasons.

    A run that is larger than memory is cut into pieces on disk (--memory), here or by the workers of a cluster
    (--dask), which read it themselves. What was interrupted is continued with --resume.

    Exit codes: 0 valued; 2 the run or an option cannot be used, with a message that explains why; 130 interrupted.

    Example: verfedsv value runs/credit --json > values.json
    """
    if output is not None:
        check_writable(output, "valuation")
    given = {
        "method": method,
        "semivalue": None if semivalue is None else _semivalue(semivalue),
        "rank": _as_number(rank, int),
        "rows": rows,
        "tolerance": tolerance,
        "regularization": _as_number(regularization, float),
        "n_permutations": permutations,
        "seed": seed,
    }
    given = {name: setting for name, setting in given.items() if setting is not None}
    folder = find_run(run, trust_head=trust_head)
    configured = _configured(folder)
    print_notes(*(f"{name} = {setting}, as agreed" for name, setting in configured.items() if name not in given))
    notes = Console(stderr=True)
    where: dict[str, Any] = {"memory": memory, "scratch": scratch, "resume": resume}
    in_pieces = any(where.values()) or dask is not None
    where["device"] = device
    pieces = scratch
    if in_pieces and scratch is None and not isinstance(folder, StoredRun):
        pieces = folder.transcript_path / FOLDER

    if resume and pieces is not None and not holds_work(pieces):
        print_notes(f"There is nothing to resume in {pieces}: the valuation begins anew.")

    def stopped() -> str:
        return f"stopped; {_kept(pieces) or 'nothing was written. Run the same command to start again'}."

    try:
        with working(notes, stopped) as check, executor_of(dask) as executor:
            where["executor"] = executor
            result, facts, uploads = value_folder(notes, folder, configured | given | where, check)
    except OSError as error:
        kept = _kept(pieces)
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not kept:
            raise
        raise InputError(describe_os_error(error, pieces, kept[0].upper() + kept[1:])) from None
    verdict = judge(result, facts)
    print_reasons(reason for reason in verdict.reasons if as_json or reason.weight == "note")
    print_notes(*without_effect(result))
    finished = Extent(result.n_rounds, facts.n_planned, facts.is_running).is_finished
    content = json.loads(result.to_json()) | {"finished": finished, "verdict": verdict.to_fields()}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    if output is not None:
        write_file(output, text)
    if as_json:
        print_text(text)
    else:
        show(Console(), result, verdict, uploads)


def _kept(pieces: Path | None) -> str:
    """Return where the work of a valuation that ended early is, empty if there is none to be continued."""
    if pieces is None or not holds_work(pieces):
        return ""
    return f"what was done is kept in {pieces}; continue with --resume"


def _configured(folder: RunFolder) -> dict[str, Any]:
    """Return the agreed settings that are not the defaults."""
    agreed, defaults = folder.agreed_settings(folder.open()).as_dict(), ValuationSettings().as_dict()
    return {name: setting for name, setting in agreed.items() if setting != defaults[name]}


def _semivalue(name: str) -> str:
    """Return the name of a semivalue in full; raise InputError, without what only Python allows, if it is unknown."""
    try:
        return str(get_semivalue(name))
    except InputError as error:
        message = str(error).replace(", 'beta(a, b)' and verfedsv.Beta(a, b)", " and 'beta(a, b)'")
        raise InputError(message) from None


def _as_number(text: str | None, kind: type[int] | type[float]) -> int | float | str | None:
    # `value` refuses anything but a number or "auto", with a message.
    try:
        return None if text is None else kind(text)
    except ValueError:
        return str(text)[:40]
