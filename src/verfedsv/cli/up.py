"""`verfedsv up`: a whole consortium on this machine, each party in a process of its own."""

from __future__ import annotations

import webbrowser
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from verfedsv.cli.network import import_network
from verfedsv.cli.options import EXIT_INTERRUPTED
from verfedsv.cli.progress import stop_on_interrupt
from verfedsv.cli.training import listed_measures, write_report
from verfedsv.cli.valuing import show
from verfedsv.errors import InputError, VerfedsvError
from verfedsv.runs.folder import RunFolder
from verfedsv.valuation.verdict import RunFacts, judge

_STYLES = {"running": "green", "waiting": "yellow", "connected": "green", "done": "dim", "failed": "red"}
_WIDTH = 30

if TYPE_CHECKING:
    from verfedsv.network.consortium import Consortium


def up(
    config: Annotated[
        Path, typer.Argument(help="The configuration, a TOML file with [server] and [up].", metavar="FILE")
    ],
    open_report: Annotated[bool, typer.Option("--open", help="Open the report in a browser at the end.")] = False,
) -> None:
    """Start the server and all clients on this machine, as separate processes with certificates, and show them.

    It tries out what serve and join do between machines: an authority and certificates are made in the private folder
    of the run, processes talk by mutual TLS over the loopback address. Logs are in that folder. Ctrl-C ends all of
    them; the same command continues.

    Exit codes: 0 done; 2 the configuration or a file cannot be used, or a process failed, with a message that explains
    why; 130 stopped by Ctrl-C.

    Example: verfedsv up consortium.toml
    """
    import_network()
    from verfedsv.network.consortium import Consortium
    from verfedsv.network.serving import NetworkRun

    run = NetworkRun.of_file(config)
    if run.config.up is None:
        raise InputError(f"{config} has no [up] with the files of the other clients: features = {{ NAME = FILE }}")
    console = Console()
    consortium = Consortium(config, run)
    with stop_on_interrupt() as stopped, consortium:
        console.print(f"logs and certificates: {consortium.folder}", highlight=False, markup=False, soft_wrap=True)
        with Live(console=console, refresh_per_second=5, get_renderable=lambda: _render(consortium)) as live:
            is_done = consortium.wait(stopped)
            live.refresh()
        console.print()
        if stopped():
            console.print("stopped; the same command continues", style="yellow")
            raise typer.Exit(EXIT_INTERRUPTED)
        if not is_done:
            raise VerfedsvError(consortium.explain())
    folder = RunFolder(run.folder)
    valuation = folder.valuation_of(folder.open())
    if valuation is not None:
        show(console, valuation, judge(valuation, RunFacts(evaluated=folder.least_train_loss())))
    console.print(f"\nResults: {run.folder}", highlight=False, markup=False, soft_wrap=True)
    path = write_report(console, run.folder)
    if open_report and path is not None:
        webbrowser.open(path.resolve().as_uri())


def _render(consortium: Consortium) -> Group:
    """Return a table of the parties with what each said last, and how far the work is."""
    parties, work = Table.grid(padding=(0, 2)), Table.grid(padding=(0, 2))
    for name, state, said in consortium.parties():
        parties.add_row(Text(name, "bold"), Text(state, _STYLES[state]), _line(said))
    for name, shown in _stages(consortium.stage, consortium.update):
        work.add_row(Text(name, "bold"), *shown)
    return Group(parties, Text(), work) if work.rows else Group(parties)


def _stages(stage: Mapping[str, Any], update: Mapping[str, Any]) -> Iterator[tuple[str, tuple[RenderableType, Text]]]:
    """Yield what is under way: its name, a bar and a text."""
    if stage and stage["stage"] != "valuing":
        yield _bar_of(stage)
    if update:
        done, total = update["round"], update["n_planned"]
        bar = ProgressBar(total, done, width=_WIDTH)
        yield "training", (bar, _line(f"round {done:,} of {total:,}; {_describe_measures(update['measures'])}"))
        ranked = sorted((update["shares"] or {}).items(), key=lambda item: -item[1])
        if ranked:
            yield "shares so far", (Text(), _line(", ".join(f"{name} {share:.0%}" for name, share in ranked)))
    if stage and stage["stage"] == "valuing":
        yield _bar_of(stage)


def _bar_of(stage: Mapping[str, Any]) -> tuple[str, tuple[RenderableType, Text]]:
    done, total = stage["done"], max(1, stage["total"])
    return stage["stage"], (ProgressBar(total, done, width=_WIDTH), Text(f"{done / total:.0%}"))


def _describe_measures(measures: Mapping[str, float | None]) -> str:
    """Return what was measured on training samples.

    >>> _describe_measures({"n_rounds": 5, "train_loss": 0.61, "train_accuracy": 0.75, "test_loss": 0.62})
    'loss 0.6100, accuracy 75.00%'
    """
    train = {name.removeprefix("train_"): amount for name, amount in measures.items() if name.startswith("train_")}
    return listed_measures({name: amount for name, amount in train.items() if amount is not None})


def _line(text: str) -> Text:
    return Text(text, overflow="ellipsis", no_wrap=True)
