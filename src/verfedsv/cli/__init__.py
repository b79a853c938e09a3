"""The command line: `verfedsv`. One file per command."""

from __future__ import annotations

import io
import os
import sys
from typing import Annotated, NoReturn

import typer

from verfedsv._version import __version__
from verfedsv.cli.audit import audit
from verfedsv.cli.data import data
from verfedsv.cli.demo import demo
from verfedsv.cli.extract import extract
from verfedsv.cli.keys import keys
from verfedsv.cli.model import model
from verfedsv.cli.options import Command, Group
from verfedsv.cli.output import as_shown, describe_os_error
from verfedsv.cli.predict import predict
from verfedsv.cli.progress import EXIT_INTERRUPTED
from verfedsv.cli.report import report
from verfedsv.cli.reproduce import reproduce
from verfedsv.cli.run import run
from verfedsv.cli.settle import settle
from verfedsv.cli.statement import statement
from verfedsv.cli.value import value
from verfedsv.cli.watch import watch
from verfedsv.errors import VerfedsvError

EXIT_BAD_INPUT = 2

_typer = typer.Typer(
    name="verfedsv",
    cls=Group,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"verfedsv {__version__}")
        raise typer.Exit


@_typer.callback()
def _main(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Value what each data owner of a vertical federated learning consortium contributed.

    Exit codes: 0 done; 2 wrong input, with a message that explains why; 130 interrupted. verfedsv audit has two more.

    Example: verfedsv demo
    """


for _command in (demo, run, predict, model, value, report, watch, settle, statement, audit, extract, reproduce):
    _typer.command(cls=Command)(_command)
_typer.add_typer(keys)
_typer.add_typer(data)


def app() -> None:
    """Run the command line.

    Errors of this package and of the operating system, and lack of memory, end with a message and exit code 2.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show the bars gets question marks instead of a crash.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        _typer()
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)  # without waiting for threads, which may be in a long loop
        raise
    except VerfedsvError as error:
        _fail(str(error))
    except OSError as error:
        _fail(describe_os_error(error))
    except MemoryError as error:
        # NumPy reports how much it asked for, Python does not.
        wanted = f" ({error})" if str(error) else ""
        _fail(
            f"there is not enough memory{wanted}. Use a machine with more; if you received these files, first check "
            "their sizes: a small file can claim to have many samples and classes"
        )


def _fail(message: str) -> NoReturn:
    typer.secho(f"error: {as_shown(message)}", fg="red", err=True)
    sys.exit(EXIT_BAD_INPUT)
