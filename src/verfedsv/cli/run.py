"""`verfedsv run`: train, record and value from a configuration."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from verfedsv.cli.value import explain_warnings, print_json, show
from verfedsv.errors import InputError
from verfedsv.federation import Evaluation
from verfedsv.losses import Floats
from verfedsv.runs import EXAMPLE, Run
from verfedsv.runs.folders import VALUATION
from verfedsv.shapley.result import count
from verfedsv.valuation import Valuation

EXIT_INTERRUPTED = 130


def run(
    config: Annotated[Path, typer.Argument(help="The configuration, a TOML file.")] = Path("run.toml"),
    init: Annotated[bool, typer.Option("--init", help="Write a commented example to the file, and end.")] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in the output folder.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON and nothing else.")] = False,
) -> None:
    """Train a model across clients, record who uploaded what, and value each client.

    Everything is checked before work starts. The output folder gets the transcript, metrics, the valuation and the
    configuration. Ctrl-C stops after the current round; --resume then goes on to the same result.

    Exit codes: 0 done; 2 something in the configuration or the data cannot be used; 130 stopped by Ctrl-C.

    Example: verfedsv run --init credit.toml && verfedsv run credit.toml
    """
    if init:
        _write_example(config)
        return
    whole = Run.of_file(config)
    console = Console(stderr=as_json)
    with explain_warnings(Console(stderr=True)):
        finished = carry_out(console, whole, resume=resume)
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)
    if as_json:
        print_json((whole.folder / VALUATION).read_text(encoding="utf-8"))


def carry_out(console: Console, whole: Run, *, resume: bool = False) -> bool:
    """Train and value a run, showing how far it is; return False if it was stopped."""
    data = whole.data
    n_test = int(data.is_test.sum())
    for note in data.notes:
        console.print(note, highlight=False, markup=False)
    size = f"{count(len(data.names), 'client')}, {count(len(data.labels) - n_test, 'sample')} to train on"
    console.print(
        f"{whole.config.training.mode.capitalize()} training: {size}, {n_test:,} to test on.", highlight=False
    )
    with stop_on_interrupt() as stopped:
        last = train_with_bar(console, whole, resume=resume, should_stop=stopped)
        if stopped():
            console.print(f"stopped; go on with --resume. What was recorded lies in {whole.folder}", style="yellow")
            return False
    if last is not None:
        console.print(_figures(last), highlight=False)
        if not last.train_loss <= np.log(data.n_classes):  # what it is when all embeddings are zero
            console.print(
                f"note: the loss is larger than at the start: {whole.advice}.", style="yellow", highlight=False
            )
    show(console, value_with_bar(console, whole))
    console.print(f"\nResults: {whole.folder}", highlight=False, markup=False, soft_wrap=True)
    return True


def train_with_bar(
    console: Console,
    whole: Run,
    *,
    resume: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    description: str = "training",
) -> Evaluation | None:
    """Train, showing round, loss, accuracy and shares so far; return the last evaluation."""
    last = None
    with _progress(console) as bar:
        task = bar.add_task(description, total=None)
        for update in whole.train(resume=resume, should_stop=should_stop):
            bar.update(task, completed=update.n_rounds, total=update.n_rounds_in_all)
            if update.evaluation is not None and update.shares is not None:
                last = update.evaluation
                bar.update(task, description=_describe(update.evaluation, whole.data.names, update.shares))
    return last


def value_with_bar(console: Console, whole: Run) -> Valuation:
    """Value what was recorded, showing how far it is."""
    with _progress(console) as bar:
        task = bar.add_task("valuing", total=None)
        return whole.value(lambda done, total: bar.update(task, completed=done, total=total))


@contextmanager
def stop_on_interrupt() -> Iterator[Callable[[], bool]]:
    """Yield a function that tells whether Ctrl-C was pressed; a second one interrupts as usual."""
    pressed: list[int] = []

    def on_signal(number: int, _frame: FrameType | None) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    before = signal.signal(signal.SIGINT, on_signal)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, before)


def _progress(console: Console) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(bar_width=20), MofNCompleteColumn(), TimeRemainingColumn()
    return Progress(*columns, console=console, transient=True, disable=not console.is_interactive)


def _describe(evaluation: Evaluation, clients: tuple[str, ...], shares: Floats) -> str:
    """Return loss, accuracy and the three largest shares so far, in a line."""
    largest = (-shares).argsort(kind="stable")[:3]
    shown = ", ".join(f"{escape(clients[m])} {shares[m]:.0%}" for m in largest)
    return f"loss {evaluation.train_loss:.4f}, accuracy {evaluation.train_accuracy:.1%}; {shown}"


def _figures(evaluation: Evaluation) -> str:
    text = f"Trained: loss {evaluation.train_loss:.4f}, accuracy {evaluation.train_accuracy:.2%}"
    if evaluation.test_loss == evaluation.test_loss:  # there is something to test on
        text += f"; on test samples {evaluation.test_loss:.4f}, {evaluation.test_accuracy:.2%}"
    return text + "."


def _write_example(path: Path) -> None:
    if path.exists():
        raise InputError(f"{path} is already there; name another file")
    try:
        path.write_text(EXAMPLE, encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None
    typer.echo(f"wrote {path}; now: verfedsv run {path}")
