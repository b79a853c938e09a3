"""`verfedsv demo`: train on real data in both modes, and value the clients."""

from __future__ import annotations

import json
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from shlex import quote
from typing import Annotated

import typer
from rich.console import Console

from verfedsv.cli.output import print_text
from verfedsv.cli.progress import explain_interrupt, interrupts
from verfedsv.cli.training import train_with_bar, value_with_bar
from verfedsv.cli.valuing import show_verdict
from verfedsv.errors import InputError, how_to_install
from verfedsv.report import wording
from verfedsv.report.summary import build
from verfedsv.report.tables import side_by_side
from verfedsv.report.terminal import to_rich
from verfedsv.runs import Run
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.writing import has_others, is_free
from verfedsv.valuation import Valuation

HEADER = "# Written by `verfedsv demo`; run it again with `verfedsv run`, after naming another output folder.\n"

LENGTHS = {
    "synchronous": "epochs = 20",
    "asynchronous": "period = 0.04\nstamp_every = 0.04\nduration = 10.0",
}
CONFIGS = {
    mode: f"""
[data]
name = "adult"
clients = 8

[training]
mode = "{mode}"
batch_size = 2837
rate = 0.2
{length}

[output]
folder = "{mode}"
"""
    for mode, length in LENGTHS.items()
}


def demo(
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            help="Folder for the results; those of an earlier demo are replaced.",
            metavar="FOLDER",
        ),
    ] = Path("verfedsv-demo"),
    as_json: Annotated[bool, typer.Option("--json", help="Print both valuations as JSON and nothing else.")] = False,
) -> None:
    """Train on the Adult census data, which ships with the package, and value eight clients that share its columns.

    It trains twice: synchronously, where all clients upload the same batch in every round, and asynchronously, where
    each uploads at its own pace. On two cores that do nothing else, both together take about
    twenty seconds after a first time that compiles; transcripts are 150 MB.

    Exit codes: 0 done; 2 the results cannot be written; 130 interrupted.

    Example: verfedsv demo --output /tmp/demo
    """
    console = Console(stderr=as_json)
    with explain_interrupt(console, "stopped. Run the same command to start again."):
        results = show(console, output)
    if as_json:
        content = {mode: json.loads(result.to_json()) for mode, result in results.items()}
        print_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def show(console: Console, folder: Path) -> dict[str, Valuation]:
    """Train and value in both modes, and print the values side by side."""
    texts = {mode: HEADER + text for mode, text in CONFIGS.items()}
    for mode, text in texts.items():
        _check_place(folder, mode, text)
    runs = {mode: _prepare(folder, mode, text) for mode, text in texts.items()}
    results = {}
    for mode, run in runs.items():
        with interrupts() as check:
            train_with_bar(console, run, description=f"{mode} training")
            check()
        results[mode] = value_with_bar(console, run)
    console.print("Adult, eight clients with some columns each: shares of the decrease of the loss", style="bold")
    summaries = {mode: build(result) for mode, result in results.items()}
    console.print(to_rich(side_by_side(summaries), console.width))
    console.print()
    for mode, result in results.items():
        console.print(
            f"{mode.capitalize()}: {result.n_rounds} rounds. {wording.balance(result.books)}. Valued in "
            f"{result.seconds['total']:.1f} s.",
            highlight=False,
        )
        show_verdict(console, summaries[mode].verdict)
    console.print(
        "± is the error: what the estimator leaves (proven) and, in synchronous training, what completing embeddings "
        "that were never uploaded may change (estimated).",
        highlight=False,
    )
    console.print(f"Results: {folder}", highlight=False, markup=False, soft_wrap=True)
    command = "verfedsv" if shutil.which("verfedsv") else str(Path(sys.executable).parent / "verfedsv")
    next_step = f"{command} report {quote(str(folder / 'synchronous'))}"
    if find_spec("altair") is None or find_spec("vl_convert") is None:
        next_step += f" -o report.md (with charts: {how_to_install('report')})"
    console.print(f"A report on one of them: {next_step}", highlight=False, markup=False, soft_wrap=True)
    return results


def _check_place(folder: Path, mode: str, text: str) -> None:
    """Raise InputError if a run or its configuration would replace anything but an earlier demo."""
    path, run = folder / f"{mode}.toml", folder / mode
    # A killed demo may have written only part of it.
    is_ours = not path.exists() or text.encode().startswith(path.read_bytes())
    config = RunFolder(run).config_path
    is_replaceable = (
        not run.exists()
        or is_free(run, text)
        or (config.exists() and config.read_bytes().startswith(HEADER.encode()) and not has_others(run))
    )
    if not is_ours or not is_replaceable:
        raise InputError(
            f"{run if is_ours else path} already exists and is not an unchanged result of an earlier demo; move it "
            "away, or choose another --output"
        )


def _prepare(folder: Path, mode: str, text: str) -> Run:
    """Return the run of a mode, after removing that of an earlier demo."""
    folder.mkdir(parents=True, exist_ok=True)
    if (folder / mode).exists():
        shutil.rmtree(folder / mode)
    path = folder / f"{mode}.toml"
    path.write_bytes(text.encode())
    return Run.of_file(path)
