"""Valuing a run with a progress bar, and what is to be known of it: what several commands do on the way."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.markup import escape

from verfedsv.cli.output import explain_warnings, print_note
from verfedsv.cli.progress import explain_interrupt, interrupts, progress_bar
from verfedsv.errors import TranscriptError, TranscriptWarning
from verfedsv.report.tables import shown
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.notes import say_falling, still_falling
from verfedsv.transcript import Transcript
from verfedsv.valuation import Valuation
from verfedsv.valuation import value as value_run


def value_folder(
    console: Console, folder: RunFolder, options: dict[str, Any], check: Callable[[], None], what: str = "valuing"
) -> Valuation:
    """Check and value the transcript in a folder, showing how far it is and what that is for."""
    with progress_bar(console) as bar:
        task = bar.add_task("checking the transcript", total=None)
        transcript = folder.open()
        _verify(transcript, folder)
        bar.update(task, description=escape(f"{what} {shown(folder.path.name or str(folder), 40)}"))

        def progress(done: int, total: int) -> None:
            check()
            bar.update(task, completed=done, total=total)

        return value_run(transcript, progress=progress, **options)


def _verify(transcript: Transcript, folder: RunFolder) -> None:
    """Check a transcript; warn if there is something after what is whole, unless it is being written."""
    try:
        transcript.verify(may_go_on=folder.is_running)
    except TranscriptError as error:
        transcript.verify(may_go_on=True)
        warnings.warn(str(error), TranscriptWarning, 2)


def compute(folder: RunFolder, options: dict[str, Any], what: str = "valuing") -> Valuation:
    """Value a run on the way to something else; Ctrl-C ends the command."""
    console = Console(stderr=True)
    stopped = "stopped while valuing; nothing was written."
    with explain_interrupt(console, stopped), explain_warnings(console), interrupts() as check:
        result = value_folder(console, folder, options, check, what)
        check()
    return result


def notes_of(folder: RunFolder | None, result: Valuation) -> list[str]:
    """Return what is to be known of the data and the training: what the run noted, and a loss that still falls."""
    noted = () if folder is None else folder.notes()
    return [*noted, *say_falling(still_falling(result.losses), result.n_rounds)]


def print_notes(*lines: str) -> None:
    """Print lines that the user should know on standard error."""
    for line in lines:
        print_note(Console(stderr=True), line)
