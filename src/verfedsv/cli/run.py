"""`verfedsv run`: train, record and value from a configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedsv.cli.options import EXIT_INTERRUPTED, AsJson
from verfedsv.cli.output import explain_warnings, print_text, write_file
from verfedsv.cli.training import carry_out
from verfedsv.errors import InputError
from verfedsv.runs import EXAMPLE, Run
from verfedsv.runs.folder import RunFolder


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
    if training.config.server is not None:
        raise InputError(f"{config} has [server], so clients are on other machines: use verfedsv serve, or verfedsv up")
    console = Console(stderr=as_json)
    with explain_warnings(Console(stderr=True)):
        finished = carry_out(console, training, resume=resume)
    if not finished:
        raise typer.Exit(EXIT_INTERRUPTED)
    if as_json:
        print_text(RunFolder(training.folder).valuation_path.read_text(encoding="utf-8"))
