"""`verfedsv run`: train, record and value from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from rich.console import Console

from verfedsv.cli.options import AsJson
from verfedsv.cli.output import explain_os_errors, explain_warnings, print_notes, print_text, write_file
from verfedsv.cli.progress import EXIT_INTERRUPTED, explain_interrupt, stop_on_interrupt
from verfedsv.cli.training import listed_measures, train_with_bar, value_with_bar
from verfedsv.cli.valuing import show, without_effect
from verfedsv.errors import InputError
from verfedsv.federation.evaluation import MEASURES
from verfedsv.report.reading import count_uploads
from verfedsv.report.summary import UploadCounts
from verfedsv.runs import EXAMPLE, Run
from verfedsv.runs.folder import RunFolder
from verfedsv.texts import count, digits
from verfedsv.valuation.verdict import judge


def run(
    config: Annotated[Path, typer.Argument(help="The configuration, a TOML file.", metavar="FILE")] = Path("run.toml"),
    init: Annotated[
        bool, typer.Option("--init", help="Write a commented example configuration to FILE, and exit.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in the output folder.")] = False,
    as_json: AsJson = False,
) -> None:
    """Train a model across clients, record who uploaded what, and value each client.

    Configuration and data are checked before the training starts. The transcript, metrics, the valuation and the
    configuration are written to the output folder. Ctrl-C stops after the current round; --resume continues to the same
    result. With --resume, a finished run is only displayed.

    Exit codes: 0 done; 2 the configuration or the data cannot be used, with a message that explains why; 130 stopped by
    Ctrl-C.

    Example: verfedsv run --init credit.toml && verfedsv run credit.toml
    """
    if init:
        if config.exists():
            raise InputError(f"{config} exists; name another file")
        write_file(config, EXAMPLE, overwrite=False)
        typer.echo(f"wrote {config}; now: verfedsv run {config}")
        return
    if not config.exists():
        raise InputError(f"there is no {config}; write an example with: verfedsv run --init {config}")
    training = Run.of_file(config)
    console = Console(stderr=as_json)
    with explain_warnings(Console(stderr=True)):
        finished = carry_out(console, training, resume=resume)
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)
    if as_json:
        print_text(RunFolder(training.folder).valuation_path.read_text(encoding="utf-8"))


def _count_uploads(run: Run) -> dict[str, UploadCounts]:
    transcript = RunFolder(run.folder).open()
    return count_uploads(transcript.description, transcript.verify())


def carry_out(console: Console, run: Run, *, resume: bool = False) -> bool:
    """Train and value a run, showing progress; return False if it was stopped."""
    run.check_folder(resume=resume)
    with explain_interrupt(console, "stopped while reading the data; nothing was written."):
        _introduce(console, run)
    print_notes(*run.data.cautions)
    at_once = "stopped at once; --resume continues from the last checkpoint."
    kept = "What was recorded is kept: continue with --resume"
    with (
        explain_interrupt(console, at_once),
        explain_os_errors(run.folder, kept),
        stop_on_interrupt() as stopped,
    ):
        train_with_bar(console, run, resume=resume, should_stop=stopped)
        if stopped():
            message = f"stopped; continue with --resume. What was recorded is in {run.folder}"
            console.print(message, style="yellow", highlight=False, markup=False, soft_wrap=True)
            return False
    _show_figures(console, run)
    print_notes(*run.note_progress())
    stored = run.known_valuation() if resume else None
    if stored is not None:
        console.print("It was valued before, as follows.", highlight=False)
    trained = "Training is complete: --resume values it"
    with explain_interrupt(console, f"stopped; {trained.lower()}."), explain_os_errors(run.folder, trained):
        result = stored or value_with_bar(console, run)
    verdict = judge(result)
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
