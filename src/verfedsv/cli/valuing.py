"""Check and value a run, and show the values: what several commands share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape

from verfedsv.cli.output import print_reasons
from verfedsv.cli.progress import follow, progress_bar, working
from verfedsv.errors import InputError, TranscriptError
from verfedsv.report import wording
from verfedsv.report.amounts import share_range
from verfedsv.report.reading import count_uploads, facts_of, find_fault_at_end, find_valuation
from verfedsv.report.summary import Summary, UploadCounts, build
from verfedsv.report.tables import contributions
from verfedsv.report.terminal import shown, to_rich
from verfedsv.runs.folder import RunFolder
from verfedsv.settings import ValuationSettings
from verfedsv.shapley.estimate import MEANING
from verfedsv.shapley.estimators import ESTIMATORS
from verfedsv.shapley.semivalues import SHAPLEY
from verfedsv.texts import LONGEST_NAME, count, error_text, number, quoted, rounded_up, shortened
from verfedsv.valuation import Valuation
from verfedsv.valuation import value as value_run
from verfedsv.valuation.verdict import RunFacts, Verdict, judge

_MOST_SHARES = 5


def value_folder(
    console: Console, folder: RunFolder, options: dict[str, Any], check: Callable[[], None], what: str = "valuing"
) -> tuple[Valuation, RunFacts, dict[str, UploadCounts]]:
    """Check and value the transcript in a folder with a progress bar.

    Returns the valuation, facts on the run, and what each client sent.
    """
    with progress_bar(console) as bar:
        task = bar.add_task("checking the transcript", total=None)
        transcript = folder.open()
        verified = transcript.verify(is_growing=True)  # if only its end is damaged, the rest is valued
        faults = find_fault_at_end(folder, transcript)
        bar.update(task, description=escape(f"{what} {shown(folder.path.name or str(folder), 40)}"))
        result = value_run(transcript, progress=follow(bar, task, check), **options)
        uploads = count_uploads(transcript.description, verified)
    # It may have grown in the meantime.
    transcript = folder.open()
    try:
        faults += find_valuation(folder, transcript)[1]
    except InputError as error:
        faults += (f"{error}.",)
    return result, facts_of(folder, transcript, faults), uploads


def compute(folder: RunFolder, options: dict[str, Any], what: str = "valuing") -> Valuation:
    """Value a run for another command, which Ctrl-C ends."""
    console = Console(stderr=True)
    stopped = "stopped while valuing; nothing was written."
    with working(console, stopped) as check:
        result, facts, _ = value_folder(console, folder, options, check, what)
    print_reasons(reason for reason in judge(result, facts).reasons if reason.kind == "record")
    return result


def notes_of(folder: RunFolder | None, result: Valuation) -> list[str]:
    """Return notes on data and training: those of the run, who took part when, and whether the loss was falling."""
    if folder is None:
        return judge(result).texts("note")
    return [*judge(result, RunFacts(notes=folder.notes())).texts("note"), *_say_attendances(folder)]


def _say_attendances(folder: RunFolder) -> list[str]:
    """Return in which rounds clients took part that missed any."""
    with suppress(TranscriptError):  # that it is damaged is said elsewhere
        said = folder.open().verify(is_growing=True).attendances()
        return [
            f"{shortened(name, LONGEST_NAME)!r} took part only in some rounds: {when}" for name, when in said.items()
        ]
    return []


def show(
    console: Console, result: Valuation, verdict: Verdict, uploads: Mapping[str, UploadCounts] | None = None
) -> None:
    """Print whether values can be trusted, the values, and what they and their errors mean.

    With what each client sent, also in which rounds it took part, if not in all.
    """
    size = f"{count(len(result.clients), 'client')}, {count(result.n_rounds, 'round')}"
    title = f"{result.mode.capitalize()} training: {size}, {count(result.n_samples, 'sample')}"
    console.print(title, style="bold", highlight=False)
    show_verdict(console, verdict)
    summary = build(result, uploads=uploads)
    console.print(to_rich(contributions(summary, "terminal"), console.width))
    for line in [*_explain(result), *_among_known(summary)]:
        console.print(line, highlight=False, markup=False)


def show_verdict(console: Console, verdict: Verdict) -> None:
    """Print the reasons not to trust values, except notes."""
    print_reasons((reason for reason in verdict.reasons if reason.weight != "note"), console)


def without_effect(result: Valuation) -> list[str]:
    """Return a note for each setting that was given and had no effect."""
    settings, notes = result.settings, list[str]()
    if result.completion is None:
        why = "in asynchronous training" if result.mode == "asynchronous" else "where every sample is in every batch"
        notes += [
            f"{name} had no effect: it is for completion, and {why} nothing is completed."
            for name in ("rank", "regularization")
            if getattr(settings, name) != "auto"
        ]
    if settings.n_permutations is not None and not ESTIMATORS[settings.method].samples:
        notes.append(f"permutations had no effect: the method {settings.method} draws none.")
    if settings.tolerance != ValuationSettings().tolerance and not ESTIMATORS[settings.method].adapts:
        notes.append(f"tolerance had no effect: it is for the method auto, and this is {settings.method}.")
    return notes


def _explain(result: Valuation) -> list[str]:
    """Return sentences on what the values and their errors mean."""
    largest = float(np.abs(result.values).max())
    took = f"Valued in {result.seconds['total']:.1f} s ({result.method})."
    meaning = "A total value is how much a client lowered the loss, over all rounds together."
    if result.settings.semivalue != str(SHAPLEY):
        meaning = f"A total value is the semivalue {result.settings.semivalue} of a client, summed over all rounds."
    lines = [f"\n{wording.balance(result.books)}.", f"{meaning} {took}"]
    if not result.books.has_shares:
        lines.append(wording.NO_SHARES)
    if largest == 0:
        return lines
    size = float(result.estimator_errors.max()) / largest
    extent = f"{_at_most(size)} ({MEANING[result.error_kind]})" if np.isfinite(size) else "unknown"
    return [*lines, f"The error of the estimator is {extent}; {_explain_completion(result, largest)}"]


def _at_most(size: float, limit: str = "at most") -> str:
    """Return a limit on an error relative to the largest value in words, rounded up.

    >>> _at_most(6.93), _at_most(0.0213, "up to about")
    ('at most 7.0 times the largest value', 'up to about 2.2 % of the largest value')
    >>> _at_most(3.1e-9)
    'below 0.00001 % of the largest value'
    """
    if size >= 1:
        return f"{limit} {error_text(size)} times the largest value"
    percentage = 100 * size
    if 0 < percentage < 1e-5:  # without a power of ten
        return "below 0.00001 % of the largest value"
    text = number(rounded_up(percentage, 5), 5) if 0 < percentage < 1e-4 else error_text(percentage)
    return f"{limit} {text} % of the largest value"


def _among_known(summary: Summary) -> list[str]:
    """Return, if the errors of some clients are unknown, the ranges of shares among the others."""
    known = [client for client in summary.clients if client.share_low is not None]
    if not summary.unknown or not known:
        return []
    parts = [f"{shown(client.name, 40)} has {share_range(client)}" for client in known[:_MOST_SHARES]]
    more = ["..."] if len(known) > _MOST_SHARES else []
    return [f"Among the clients with known errors, {', '.join([*parts, *more])}."]


def _explain_completion(result: Valuation, largest: float) -> str:
    if result.completion is None:
        return "nothing had to be completed."
    ranks = sorted({report.rank for report in result.completion if report.rank})
    is_known = np.isfinite(result.completion_errors)
    text = "the error of completing embeddings that were not uploaded is "
    if is_known.any():
        text += f"{_at_most(float(result.completion_errors[is_known].max()) / largest, 'up to about')} (estimated)"
        unknown = [name for name, known in zip(result.clients, is_known, strict=True) if not known]
        text += f", and unknown for {quoted(unknown)}" if unknown else ""
    else:
        text += "unknown"
    text += f". Rank {ranks[0]}" if ranks else ""
    text += f" to {ranks[-1]}" if len(ranks) > 1 else ""
    asked = result.settings.rank
    if isinstance(asked, int) and ranks and ranks[0] < asked:
        text += f" in place of {asked:,}, as rounds and samples allow no more"
    if any(report.n_held_out for report in result.completion):
        held_out = max(report.held_out_rmse for report in result.completion if report.n_held_out)
        text += f", error of held-out embeddings up to {error_text(held_out)}"
    if result.guarantee is not None:
        worst = result.guarantee * result.n_rounds
        text += f". Worst case by the paper's Proposition 2, over all rounds: {error_text(worst)} (estimated)"
    return text + "."
