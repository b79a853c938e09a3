"""`verfedsv value`: what each client contributed to a recorded training."""

from __future__ import annotations

import json
import warnings
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

from verfedsv.cli.options import AsJson
from verfedsv.cli.output import check_writable, explain_warnings, print_note, print_text, write_file
from verfedsv.cli.progress import explain_interrupt, interrupts
from verfedsv.cli.valuing import notes_of, value_folder
from verfedsv.errors import InputError, TranscriptWarning
from verfedsv.report import wording
from verfedsv.report.numbers import percent_ends
from verfedsv.report.tables import shown, values_table
from verfedsv.runs.extent import Extent
from verfedsv.runs.folder import RunFolder
from verfedsv.settings import ValuationSettings
from verfedsv.shapley.result import count
from verfedsv.valuation import Valuation

TOLERANCE = 1e-3
"""The default of `value`."""


class Methods(StrEnum):
    """The methods of `value`."""

    AUTO = "auto"
    CLOSED_FORM = "closed-form"
    EXACT = "exact"
    PERMUTATION = "permutation"


class Rows(StrEnum):
    """The choices of samples that have a name."""

    ALL = "all"
    GRADIENT = "gradient"
    NO_GRADIENT = "no-gradient"


def value(
    run: Annotated[
        Path,
        typer.Argument(help="The folder of a run, or of a transcript of verfedsv.Recorder.", metavar="RUN"),
    ],
    method: Annotated[
        Methods | None,
        typer.Option(
            help="How to value a round: auto (exact to the tolerance), closed-form, exact or permutation.",
            metavar="METHOD",
        ),
    ] = None,
    rank: Annotated[
        str | None,
        typer.Option(help="Rank of completion in synchronous runs: a number, or auto.", metavar="NUMBER|auto"),
    ] = None,
    rows: Annotated[
        Rows | None,
        typer.Option(
            help="Which samples to take the mean over: all, gradient (those that get gradients) or no-gradient.",
            metavar="ROWS",
        ),
    ] = None,
    tolerance: Annotated[
        float | None, typer.Option(help="Largest error of auto, relative to the largest value.", metavar="NUMBER")
    ] = None,
    regularization: Annotated[
        str | None, typer.Option(help="Lambda of completion: a number, or auto.", metavar="NUMBER|auto")
    ] = None,
    permutations: Annotated[
        int | None,
        typer.Option(min=1, help="Most permutations that a round, or with auto a sample, may draw.", metavar="NUMBER"),
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of all random choices.", metavar="NUMBER")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Also write the JSON to this file.", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Value a recorded training: a table of the clients with value, share and error.

    The error of a value is what the estimator leaves (proven, or with 99.9 % confidence) plus what completing
    embeddings that were never uploaded may change (estimated).

    A run of verfedsv run is valued as [valuation] in its config.toml says, and each option given here takes the place
    of the one there. Without either, method, rank and regularization are auto, rows are all, the tolerance is 0.001 and
    the seed 0.

    A training that is still running, was stopped before its end, or whose record was cut off is valued as far as it is
    recorded; that is said, and in JSON `finished` is false then (null if no plan is known) and `notes` say why. Notes
    are also what the run found in its data, such as a column that gives the label away, and a loss that still falls.

    Exit codes: 0 valued; 2 the run or an option cannot be used, with a message that says why; 130 interrupted.

    Example: verfedsv value runs/credit --json > values.json
    """
    if output is not None:
        check_writable(output, "valuation")
    given: dict[str, Any] = {
        "method": None if method is None else str(method),
        "rank": None if rank is None else _as_number(rank, int),
        "rows": None if rows is None else str(rows),
        "tolerance": tolerance,
        "regularization": None if regularization is None else _as_number(regularization, float),
        "n_permutations": permutations,
        "seed": seed,
    }
    folder = RunFolder(run)
    configured = _configured(folder)
    options = configured | {name: setting for name, setting in given.items() if setting is not None}
    progress_console = Console(stderr=True)
    for name, setting in configured.items():
        if given.get(name) is None:
            print_note(progress_console, f"{name} = {setting}, as agreed ({folder.config_path})")
    stopped = "stopped; nothing was written, the same command begins anew."
    with explain_interrupt(progress_console, stopped), explain_warnings(progress_console) as notes:
        with interrupts() as check:
            result = value_folder(progress_console, folder, options, check)
            check()
        extent = _look_at(folder)
    for note in notes_of(folder, result):
        print_note(progress_console, note)
        notes.append(note)
    say_without_effect(progress_console, result)
    content = json.loads(result.to_json()) | {"finished": extent.is_finished, "notes": notes}
    text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
    if output is not None:
        write_file(output, text)
    if as_json:
        print_text(text)
    else:
        show(Console(), result)


def _look_at(folder: RunFolder) -> Extent:
    """Return how far a training is; warn if it is not finished, or if what was valued before is not recorded."""
    transcript = folder.open()
    extent = folder.extent(transcript)
    if extent.is_running:
        warnings.warn(f"the training is still running: {extent} so far", TranscriptWarning, 2)
    elif extent.is_unfinished:
        said = f"the training is not finished: {extent} are recorded, and these values are of those"
        warnings.warn(said, TranscriptWarning, 2)
    try:
        folder.valuation_of(transcript)
    except InputError as error:
        warnings.warn(str(error), TranscriptWarning, 2)
    return extent


def _configured(folder: RunFolder) -> dict[str, Any]:
    """Return the agreed settings that are not the defaults."""
    agreed, defaults = folder.agreed_settings(folder.open()).as_dict(), ValuationSettings().as_dict()
    return {name: setting for name, setting in agreed.items() if setting != defaults[name]}


def _as_number(text: str, kind: type[int] | type[float]) -> int | float | str:
    # What is neither a number nor "auto" is refused, with a message, by `value`.
    try:
        return kind(text)
    except ValueError:
        return text[:40]


def show(console: Console, result: Valuation) -> None:
    """Print the table, and what there is to know about it."""
    size = f"{count(len(result.clients), 'client')}, {count(result.n_rounds, 'round')}"
    title = f"{result.mode.capitalize()} training: {size}, {count(result.n_samples, 'sample')}"
    console.print(title, style="bold", highlight=False)
    for alarm in wording.alarms(result.books):
        console.print(alarm, style="bold red", highlight=False)
    for warning in wording.mostly_server(result.books):
        console.print(warning, style="yellow", highlight=False)
    console.print(values_table(result, width=console.width))
    if doubt := _doubt(result):
        console.print(f"\n{doubt}", style="yellow", highlight=False, markup=False)
    for line in _explain(result):
        console.print(line, highlight=False, markup=False)


def say_without_effect(console: Console, result: Valuation) -> None:
    """Print a note for each setting that was given and did nothing."""
    settings = result.settings
    if result.completion is None:
        why = "in asynchronous training" if result.mode == "asynchronous" else "where every sample is in every batch"
        for name in ("rank", "regularization"):
            if getattr(settings, name) != "auto":
                print_note(console, f"{name} had no effect: it is of completion, and {why} nothing is completed.")
    if settings.n_permutations is not None and settings.method in ("closed-form", "exact"):
        print_note(console, f"permutations had no effect: the method {settings.method} draws none.")
    if settings.tolerance != TOLERANCE and settings.method != "auto":
        print_note(console, f"tolerance had no effect: it is of the method auto, and this is {settings.method}.")


def _doubt(result: Valuation) -> str | None:
    """Return a sentence if the error of some value is larger than all values are."""
    largest, errors = float(np.abs(result.values).max()), np.nan_to_num(result.errors)
    worst = int(errors.argmax())
    if largest == 0 or errors[worst] <= largest:
        return None
    if result.completion_errors[worst] > result.estimator_errors[worst]:
        cause, remedy = "completion", "record more rounds, or larger batches"
    elif result.error_kind == "confidence":
        cause, remedy = "sampling", "allow more permutations (verfedsv value --permutations)"
    else:
        cause, remedy = "the closed form", "use the method auto"
    size, what = _as_part(float(errors[worst]) / largest), "shares" if result.books.clients > 0 else "values"
    return (
        f"These {what} cannot be relied on: the error of {shown(result.clients[worst], 40)} is {size}, because of "
        f"{cause}; {remedy}."
    )


def _as_part(size: float) -> str:
    """Return a size relative to the largest value in words.

    >>> _as_part(6.93), _as_part(0.0213), _as_part(3.1e-9)
    ('6.9 times the largest value', '2.1 % of the largest value', '3.1e-07 % of the largest value')
    """
    return f"{size:.2g} times the largest value" if size >= 1 else f"{100 * size:.2g} % of the largest value"


def _explain(result: Valuation) -> list[str]:
    """Return sentences on what the values and their errors mean."""
    largest = float(np.abs(result.values).max())
    took = f"Valued in {result.seconds['total']:.1f} s ({result.method})."
    meaning = "A total value is by how much a client lowered the loss, over all rounds together."
    lines = [f"\n{wording.balance(result.books)}.", f"{meaning} {took}"]
    if largest == 0:
        return lines
    kind = "proven" if result.error_kind == "certified" else "99.9 % confidence"
    estimator = f"of the estimator at most {_as_part(float(result.estimator_errors.max()) / largest)}"
    lines.append(f"Numerical errors: {estimator} ({kind}); {_explain_completion(result, largest)}")
    unknown = [name for name, error in zip(result.clients, result.errors, strict=True) if np.isnan(error)]
    if 0 < len(unknown) < len(result.clients):
        whose = wording.names([shown(name, 40) for name in unknown])
        lines.append(f"The error of {whose} is unknown, so those of shares are, too{_among_known(result)}.")
    if result.n_unseen:
        # In synchronous training nothing is known of them; in asynchronous training they are zeros, and known.
        what = "left out of the mean" if result.mode == "synchronous" else "their embeddings are zero throughout"
        lines.append(f"{count(result.n_unseen, 'sample')} never uploaded ({what}).")
    return lines


def _among_known(result: Valuation) -> str:
    """Return between what the largest shares lie among the clients whose errors are known, to follow a sentence."""
    bounds = result.share_bounds
    known = [m for m in (-result.values).argsort(kind="stable") if np.isfinite(bounds[m]).all()]
    if result.values.sum() <= 0 or not known:
        return ""
    parts = []
    for m in known[:_MOST_SHARES]:
        low, high = percent_ends(float(bounds[m, 0]), float(bounds[m, 1]), 2)
        parts.append(f"{shown(result.clients[m], 40)} has {low} to {high} %")
    more = ", ..." if len(known) > _MOST_SHARES else ""
    return f". Among the clients with known errors, {', '.join(parts)}{more}"


_MOST_SHARES = 5


def _explain_completion(result: Valuation, largest: float) -> str:
    if result.completion is None:
        return "nothing had to be completed."
    ranks = sorted({report.rank for report in result.completion})
    errors = result.completion_errors[np.isfinite(result.completion_errors)]
    size = f"about {_as_part(float(errors.max()) / largest)} at most" if len(errors) else "unknown"
    text = f"of completing embeddings that were not uploaded {size} (estimated). Rank {ranks[0]}"
    text += f" to {ranks[-1]}" if len(ranks) > 1 else ""
    asked = result.settings.rank
    if isinstance(asked, int) and ranks[0] < asked:
        text += f" in place of {asked:,}, as rounds and samples allow no more"
    if any(report.n_held_out for report in result.completion):
        held_out = max(report.held_out_rmse for report in result.completion if report.n_held_out)
        text += f", error of held-out embeddings up to {held_out:.2g}"
    if result.guarantee is not None:
        worst = result.guarantee * result.n_rounds
        text += f". Worst case by the paper's Proposition 2, over all rounds: {worst:.2g} (estimated)"
    return text + "."
