"""Train and value a run with progress bars, for `run`, `serve` and `demo`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.markup import escape

from verfedsv.arrays import Floats
from verfedsv.cli.lines import SECONDS_OF_A_LINE, every
from verfedsv.cli.output import explain_os_errors, print_notes
from verfedsv.cli.progress import explain_interrupt, follow, interrupts, progress_bar, stop_on_interrupt
from verfedsv.cli.valuing import show, without_effect
from verfedsv.federation import Evaluation
from verfedsv.federation.evaluation import MEASURES
from verfedsv.files import write_whole
from verfedsv.report.reading import count_uploads
from verfedsv.report.summary import UploadCounts
from verfedsv.runs import Run
from verfedsv.runs.folder import RunFolder
from verfedsv.texts import count, digits, number
from verfedsv.valuation import Valuation
from verfedsv.valuation.verdict import RunFacts, judge


def train_with_bar(
    console: Console,
    run: Run,
    *,
    resume: bool = False,
    should_stop: Callable[[], bool] = lambda: False,
    description: str = "training",
) -> None:
    """Train, showing round, what is measured and shares so far: in a bar, or in a line now and then."""
    is_due = every(SECONDS_OF_A_LINE)
    with progress_bar(console) as bar:
        task = bar.add_task(description, total=None)
        for update in run.train(resume=resume, should_stop=should_stop):
            if resume:
                done = update.n_rounds - 1
                console.print(f"Continuing from round {done:,} of {update.n_planned:,}.", highlight=False)
                resume = False
            bar.update(task, completed=update.n_rounds, total=update.n_planned)
            if update.evaluation is not None and update.shares is not None:
                text = _describe(update.evaluation, run.data.names, update.shares)
                bar.update(task, description=text)
                if not console.is_interactive and is_due():
                    console.print(f"round {update.n_rounds:,} of {update.n_planned:,}: {text}", highlight=False)


def value_with_bar(console: Console, run: Run) -> Valuation:
    """Value what was recorded, showing progress."""
    with interrupts() as check, progress_bar(console) as bar:
        task = bar.add_task("valuing", total=None)
        return run.value(follow(bar, task, check))


def _describe(evaluation: Evaluation, clients: tuple[str, ...], shares: Floats) -> str:
    """Return what was measured on training samples and the three largest shares so far in one line."""
    largest = (-shares).argsort(kind="stable")[:3]
    shown = ", ".join(f"{escape(clients[m])} {number(100 * shares[m], 0)}%" for m in largest)
    return f"{listed_measures(evaluation.train)}; {shown}"


def listed_measures(measures: Mapping[str, float], *, with_names: bool = True) -> str:
    """Return measures in a line; without their names, only the numbers.

    >>> listed_measures({"loss": 0.32491, "accuracy": 0.8491})
    'loss 0.3249, accuracy 84.91%'
    """
    parts = {MEASURES[name].title: _measured(name, amount) for name, amount in measures.items()}
    return ", ".join(f"{title} {text}" if with_names else text for title, text in parts.items())


def _measured(name: str, amount: float) -> str:
    return f"{amount:.2%}" if MEASURES[name].is_fraction else digits(amount, 4)


def _count_uploads(run: Run) -> dict[str, UploadCounts]:
    transcript = RunFolder(run.folder).open()
    return count_uploads(transcript.description, transcript.verify())


def carry_out(console: Console, run: Run, *, resume: bool = False) -> bool:
    """Train and value a run, showing progress; return False if it was stopped. `again` is what continues it."""
    run.check_folder(resume=resume)
    with explain_interrupt(console, "stopped while reading the data; nothing was written."):
        _introduce(console, run)
    print_notes(*run.data.cautions)
    at_once = f"stopped at once; {run.again} continues from the last checkpoint."
    kept = f"What was recorded is kept: continue with {run.again}"
    with (
        explain_interrupt(console, at_once),
        explain_os_errors(run.folder, kept),
        stop_on_interrupt() as stopped,
    ):
        train_with_bar(console, run, resume=resume, should_stop=stopped)
        if stopped():
            message = f"stopped; continue with {run.again}. What was recorded is in {run.folder}"
            console.print(message, style="yellow", highlight=False, markup=False, soft_wrap=True)
            return False
    _show_figures(console, run)
    print_notes(*run.note_progress())
    stored = run.known_valuation() if resume else None
    if stored is not None:
        console.print("It was valued before, as follows.", highlight=False)
    trained = f"Training is complete: {run.again} values it"
    with explain_interrupt(console, f"stopped; {trained.lower()}."), explain_os_errors(run.folder, trained):
        result = stored or value_with_bar(console, run)
    verdict = judge(result, RunFacts(evaluated=RunFolder(run.folder).least_train_loss()))
    show(console, result, verdict, _count_uploads(run) if run.roster.stays else None)
    longer = f" {run.how_to_train_longer}"
    notes = [f"{r.text}{longer if r.kind == 'falling' else ''}" for r in verdict.reasons if r.weight == "note"]
    print_notes(*notes, *without_effect(result))
    console.print(f"\nResults: {run.folder}", highlight=False, markup=False, soft_wrap=True)
    return True


def _introduce(console: Console, run: Run) -> None:
    """Read the data, and print a description of them."""
    data = run.data
    n_test = int(data.is_test.sum())
    for note in data.notes:
        console.print(note, highlight=False, markup=False)
    clients = count(len(data.names), "client")
    if run.config.data.is_split:
        sizes = {int(client.numeric.shape[1]) for client in data.clients}
        features = count(max(sizes), "feature") if len(sizes) == 1 else f"{min(sizes):,} to {max(sizes):,} features"
        name = run.config.data.name or (run.config.data.file or Path()).name
        console.print(f"{name}: {clients} of {features} each", highlight=False, markup=False)
    size = f"{clients}, {count(len(data.labels) - n_test, 'sample')} to train on, {n_test:,} to test on"
    console.print(f"{run.config.training.mode.capitalize()} training: {size}.", highlight=False)
    if data.loss == "squared":
        scale = data.label_scale
        console.print(
            f"Labels are learnt in units of their standard deviation, {digits(scale.deviation, 4)}, from their mean, "
            f"{digits(scale.mean, 4)}. Multiply losses and values by {digits(scale.deviation**2, 4)} for squared units "
            "of the labels.",
            highlight=False,
        )


def _show_figures(console: Console, run: Run) -> None:
    """Print what was last measured."""
    last = run.last_metrics()
    if last is None:
        return
    train, test = (
        {name: last[f"{part}_{name}"] for name in MEASURES if f"{part}_{name}" in last} for part in ("train", "test")
    )
    text = f"Trained: {listed_measures(train)}"
    if not np.isnan(test["loss"]):
        text += f"; on test samples {listed_measures(test, with_names=False)}"
    console.print(text + ".", highlight=False)


def write_report(console: Console, folder: Path) -> Path | None:
    """Write the report of a run beside its folder, if charts can be drawn here; return its path."""
    if find_spec("altair") is None:
        console.print("A report needs the extra: pip install '.[report]'", highlight=False, markup=False)
        return None
    from verfedsv.report.html import to_html
    from verfedsv.report.reading import summarise

    path = folder.with_name(f"{folder.name}.html")
    write_whole(path, to_html(summarise(RunFolder(folder))).encode())
    console.print(f"Report: {path}", highlight=False, markup=False, soft_wrap=True)
    return path
