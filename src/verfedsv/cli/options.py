"""Arguments and options that several commands share, and how help shows options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError
from typer.core import TyperCommand, TyperGroup

from verfedsv.errors import InputError
from verfedsv.gpu.devices import Device

EXIT_INTERRUPTED = 130
EXIT_MISSING = 3
"""Another party was missing: the server could not be reached, or a client did not answer."""
"""The exit code of a command that Ctrl-C ended."""

RunArgument = Annotated[Path, typer.Argument(help="The folder of a run.", metavar="RUN")]
AnyRunArgument = Annotated[
    str,
    typer.Argument(
        help="The folder of a run, or of a transcript that verfedsv.Recorder wrote; also s3://... or gs://...",
        metavar="RUN",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON and nothing else.")]
AcceptSettings = Annotated[
    bool, typer.Option("--accept-settings", help="Accept values computed with settings other than those agreed.")
]
EvenIfTheLossRose = Annotated[
    bool, typer.Option("--even-if-the-loss-rose", help="Continue even if the clients did not improve the model.")
]

TrustHead = Annotated[
    bool,
    typer.Option("--trust-head", help="Load the program of the run's head, which may run any code of its author."),
]

OnDevice = Annotated[
    Device,
    typer.Option(
        help="Where completion and closed form are computed: cpu, cuda (a GPU), or auto (a GPU if there is one).",
        metavar="DEVICE",
    ),
]


_IF_MISSING = {"key": "a statement is signed: pass --key FILE; verfedsv keys new NAME makes one"}
"""What to say if a required option is missing, by its name, in place of typer's message."""


_IN_OWN_WORDS = {
    "value_error": "{error}",
    "int_parsing": "must be a whole number; received {received!r}",
    "float_parsing": "must be a number; received {received!r}",
    "greater_than_equal": "must be at least {ge:g}; received {received!r}",
    "less_than_equal": "must be at most {le:g}; received {received!r}",
}
"""What to say of an option that typer cannot use, by the type of pydantic's error."""


def _in_own_words(error: ValidationError) -> str:
    """Return what is wrong with an option, without words of the library that found it."""
    first = error.errors()[0]
    form = _IN_OWN_WORDS.get(first["type"], "cannot be used; received {received!r}")
    return form.format(received=str(first["input"])[:40], **first.get("ctx", {}))


class Command(TyperCommand):
    """A command whose help shows no type for flags."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except typer.BadParameter as error:
            name = None if error.param is None else error.param.name
            if name in _IF_MISSING:
                raise InputError(_IF_MISSING[name]) from None
            if isinstance(error.__cause__, ValidationError):
                error.message = _in_own_words(error.__cause__)
            raise

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
