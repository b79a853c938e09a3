"""`verfedsv up`: a whole consortium on this machine, each party in a process of its own."""

from __future__ import annotations

import webbrowser
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.live import Live

from verfedsv.cli.network import import_network
from verfedsv.cli.options import EXIT_INTERRUPTED
from verfedsv.cli.progress import stop_on_interrupt
from verfedsv.cli.valuing import show
from verfedsv.errors import InputError, VerfedsvError
from verfedsv.network.consortium import Consortium
from verfedsv.network.serving import NetworkRun
from verfedsv.runs.folder import RunFolder
from verfedsv.valuation.verdict import judge


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
    run = NetworkRun.of_file(config)
    if run.config.up is None:
        raise InputError(f"{config} has no [up] with the files of the other clients: features = {{ NAME = FILE }}")
    console = Console()
    consortium = Consortium(config, run)
    with stop_on_interrupt() as stopped, consortium:
        console.print(f"logs and certificates: {consortium.folder}", highlight=False, markup=False, soft_wrap=True)
        with Live(console=console, refresh_per_second=5, get_renderable=consortium.render) as live:
            is_done = consortium.wait(stopped)
            live.refresh()
        if stopped():
            console.print("stopped; the same command continues", style="yellow")
            raise typer.Exit(EXIT_INTERRUPTED)
        if not is_done:
            raise VerfedsvError(consortium.explain())
    folder = RunFolder(run.folder)
    valuation = folder.valuation_of(folder.open())
    if valuation is not None:
        show(console, valuation, judge(valuation))
    console.print(f"\nResults: {run.folder}", highlight=False, markup=False, soft_wrap=True)
    _report(console, run.folder, open_report=open_report)


def _report(console: Console, folder: Path, *, open_report: bool) -> None:
    """Write the report, if charts can be drawn here."""
    if find_spec("altair") is None:
        console.print("A report needs the extra: pip install '.[report]'", highlight=False, markup=False)
        return
    from verfedsv.report.html import to_html
    from verfedsv.report.reading import summarise

    path = folder.with_name(f"{folder.name}.html")
    path.write_text(to_html(summarise(RunFolder(folder))), encoding="utf-8")
    console.print(f"Report: {path}", highlight=False, markup=False, soft_wrap=True)
    if open_report:
        webbrowser.open(path.resolve().as_uri())
