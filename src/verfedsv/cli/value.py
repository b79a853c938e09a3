"""`verfedsv value`: what each client contributed to a recorded training."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from verfedsv.errors import InputError
from verfedsv.report.terminal import values_table
from verfedsv.shapley.result import count
from verfedsv.transcript import Transcript
from verfedsv.valuation import Valuation
from verfedsv.valuation import value as value_run


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
    run: Annotated[Path, typer.Argument(help="The folder of a transcript, as verfedsv.Recorder writes it.")],
    method: Annotated[
        Methods, typer.Option(help="How to value a round; auto is exact to the tolerance.")
    ] = Methods.AUTO,
    rank: Annotated[
        str, typer.Option(help="Rank of completion in synchronous runs: a number, or auto.", metavar="NUMBER|auto")
    ] = "auto",
    rows: Annotated[
        Rows, typer.Option(help="Which samples to take the mean over: all, or those that do or do not get gradients.")
    ] = Rows.ALL,
    tolerance: Annotated[float, typer.Option(help="Largest error of auto, relative to the largest value.")] = 1e-3,
    regularization: Annotated[
        str, typer.Option(help="Lambda of completion: a number, or auto.", metavar="NUMBER|auto")
    ] = "auto",
    permutations: Annotated[
        int | None, typer.Option(min=1, help="Most permutations that a round, or with auto a sample, may draw.")
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of all random choices.")] = 0,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Also write the JSON to this file.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON and nothing else.")] = False,
) -> None:
    """Value a recorded training: a table of the clients with value, share and error.

    The error of a value is what the estimator leaves (proven, or with 99.9 % confidence) plus what completing
    embeddings that were never uploaded may change (estimated).

    Exit codes: 0 valued; 2 the run or an option cannot be used, with a message that says why; 130 interrupted.

    Example: verfedsv value runs/credit --json > values.json
    """
    if output is not None:
        check_writable(output)
    options: dict[str, Any] = {
        "method": str(method),
        "rank": _as_number(rank, int),
        "rows": str(rows),
        "tolerance": tolerance,
        "regularization": _as_number(regularization, float),
        "n_permutations": permutations,
        "seed": seed,
    }
    progress_console = Console(stderr=True)
    with explain_warnings(progress_console), interrupts() as check:
        result = _value(progress_console, run, options, check)
        check()
    if output is not None:
        write_file(output, result.to_json())
    if as_json:
        print_json(result.to_json())
    else:
        show(Console(), result)


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """Yield a function that raises KeyboardInterrupt if Ctrl-C was pressed.

    It raises by itself too; but an exception in the middle of compilation is lost on its way through foreign code.
    """
    pressed: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        pressed.append(number)
        raise KeyboardInterrupt

    def check() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def _value(console: Console, run: Path, options: dict[str, Any], check: Callable[[], None]) -> Valuation:
    columns = TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task("Checking the transcript", total=None)
        transcript = Transcript.open(run)
        transcript.verify(may_go_on=True)
        bar.update(task, description=escape(f"Valuing {run.name or run}"))

        def progress(done: int, total: int) -> None:
            check()
            bar.update(task, completed=done, total=total)

        return value_run(transcript, progress=progress, **options)


@contextmanager
def explain_warnings(console: Console) -> Iterator[None]:
    """Print the warnings of what runs within, one line each, when it is done."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        console.print(f"note: {warning.message}", style="yellow", highlight=False, markup=False)


def print_json(text: str) -> None:
    """Print JSON as UTF-8, whatever the terminal is said to take: names must not be turned into question marks."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def _as_number(text: str, kind: type[int] | type[float]) -> int | float | str:
    # What is neither a number nor "auto" is refused, with a message, by `value`.
    try:
        return kind(text)
    except ValueError:
        return text[:40]


def check_writable(path: Path) -> None:
    """Raise InputError, before any work, if a file cannot be written there."""
    if not path.name or path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")


def write_file(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def show(console: Console, result: Valuation) -> None:
    """Print the table, and what there is to know about it."""
    size = f"{count(len(result.clients), 'client')}, {count(result.n_rounds, 'round')}"
    title = f"{result.mode.capitalize()} training: {size}, {count(result.n_samples, 'sample')}"
    console.print(title, style="bold", highlight=False)
    console.print(values_table(result.clients, result, width=console.width))
    for line in _explain(result):
        console.print(line, highlight=False)


def _explain(result: Valuation) -> list[str]:
    """Return sentences on what the values and their errors mean."""
    total, largest = float(result.values.sum()) * result.n_rounds, float(np.abs(result.values).max())
    took = f"Valued in {result.seconds['total']:.1f} s ({result.method})."
    if largest == 0:
        return [f"\nNo client changed the loss, so there are no shares. {took}"]
    change = f"{'lowered' if total >= 0 else 'RAISED'} the loss by {abs(total):.4g}"
    lines = [f"\nThe clients {change} over the training; a value is a client's part of it per round. {took}"]
    if total < 0:
        lines.append("As the loss rose, shares are shares of the damage: look at the values.")
    kind = "proven" if result.error_kind == "certified" else "99.9 % confidence"
    estimator = f"of the estimator at most {result.estimator_errors.max() / largest:.2g} of the largest value"
    lines.append(f"Errors: {estimator} ({kind}); {_explain_completion(result, largest)}")
    if result.n_unseen:
        # In synchronous training nothing is known of them; in asynchronous training they are zeros, and known.
        what = "left out of the mean" if result.mode == "synchronous" else "their embeddings are zero throughout"
        lines.append(f"{count(result.n_unseen, 'sample')} never uploaded ({what}).")
    return lines


def _explain_completion(result: Valuation, largest: float) -> str:
    if result.completion is None:
        return "nothing had to be completed."
    ranks = sorted({report.rank for report in result.completion})
    error = float(result.completion_errors.max())
    size = "unknown" if np.isnan(error) else f"about {error / largest:.2g} of it at most"
    text = f"of completing embeddings that were not uploaded {size} (estimated). Rank {ranks[0]}"
    text += f" to {ranks[-1]}" if len(ranks) > 1 else ""
    if any(report.n_held_out for report in result.completion):
        held_out = max(report.held_out_rmse for report in result.completion if report.n_held_out)
        text += f", error of held-out embeddings up to {held_out:.2g}"
    if result.guarantee is not None:
        text += f". Worst case by the paper's Proposition 2: {result.guarantee:.2g} (estimated)"
    return text + "."
