"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunArgument = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.", metavar="")]
AcceptSettings = Annotated[
    bool,
    typer.Option(
        "--accept-settings", help="Accept values computed with other settings than the agreed ones.", metavar=""
    ),
]
EvenIfTheLossRose = Annotated[
    bool,
    typer.Option("--even-if-the-loss-rose", help="Continue even if the clients did not improve the model.", metavar=""),
]
