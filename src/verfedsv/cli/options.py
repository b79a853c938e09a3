"""Arguments and options that several commands share, and how help shows options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

RunArgument = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
AcceptSettings = Annotated[
    bool, typer.Option("--accept-settings", help="Accept values computed with other settings than the agreed ones.")
]
EvenIfTheLossRose = Annotated[
    bool, typer.Option("--even-if-the-loss-rose", help="Continue even if the clients did not improve the model.")
]


class Command(TyperCommand):
    """A command whose help shows no type for flags."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))


class Group(TyperGroup):
    """A group of commands whose help shows no type for flags."""

    def get_params(self, ctx: Any) -> Any:
        return _without_types_of_flags(super().get_params(ctx))


def _without_types_of_flags(params: Any) -> Any:
    # Typer would print <bool> beside each, even --help.
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params
