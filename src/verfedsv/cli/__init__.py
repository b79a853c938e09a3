"""The command line: `verfedsv`. One file per command, imported if it is asked for, or if all are listed."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable
from importlib import import_module
from typing import Annotated, Any, NoReturn

import typer

from verfedsv._version import __version__
from verfedsv.cli.options import EXIT_INTERRUPTED, EXIT_MISSING, Command, Group
from verfedsv.errors import MissingClientError, UnreachableError, VerfedsvError

EXIT_BAD_INPUT = 2

COMMANDS = (
    "demo",
    "run",
    "serve",
    "join",
    "up",
    "doctor",
    "predict",
    "model",
    "value",
    "report",
    "watch",
    "settle",
    "statement",
    "audit",
    "extract",
    "export",
    "reproduce",
    "keys",
    "data",
)
"""In the order of the help; each is a function or a group in a module of that name."""


def build(names: Iterable[str] = COMMANDS) -> typer.Typer:
    """Return the command line with some commands."""
    result = typer.Typer(
        name="verfedsv",
        cls=Group,
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode="markdown",
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    result.callback()(_main)
    for name in names:
        command = getattr(import_module(f"verfedsv.cli.{name}"), name)
        if isinstance(command, typer.Typer):
            result.add_typer(command)
        else:
            result.command(cls=Command)(command)
    return result


def __getattr__(name: str) -> Any:
    if name != "_typer":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return globals().setdefault(name, build())


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"verfedsv {__version__}")
        raise typer.Exit


def _main(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True),
    ] = False,
) -> None:
    """Value what each data owner of a vertical federated learning consortium contributed.

    Exit codes: 0 done; 2 wrong input, with a message that explains why; 3 another machine could not be reached; 130
    interrupted. verfedsv audit and verfedsv doctor have more.

    Example: verfedsv demo
    """


def app() -> None:
    """Run the command line.

    Errors of this package and of the operating system, and lack of memory, end with a message and exit code 2, or 3 if
    another party was missing.
    """
    for stream in (sys.stdout, sys.stderr):
        # A terminal that cannot show the bars gets question marks instead of a crash.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        # Most commands import compiled loops, which takes about a second; a client that joins needs none.
        first = sys.argv[1] if len(sys.argv) > 1 else ""
        build((first,) if first in COMMANDS else COMMANDS)()
    except SystemExit as end:
        if end.code == EXIT_INTERRUPTED:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_INTERRUPTED)  # without waiting for threads, which may be in a long loop
        raise
    except (MissingClientError, UnreachableError) as error:
        _fail(str(error), EXIT_MISSING)
    except VerfedsvError as error:
        _fail(str(error))
    except OSError as error:
        from verfedsv.cli.output import describe_os_error

        _fail(describe_os_error(error))
    except MemoryError as error:
        # NumPy reports how much it asked for, Python does not.
        wanted = f" ({error})" if str(error) else ""
        _fail(
            f"there is not enough memory{wanted}. Use a machine with more; if you received these files, first check "
            "their sizes: a small file can claim to have many samples and classes"
        )


def _fail(message: str, code: int = EXIT_BAD_INPUT) -> NoReturn:
    from verfedsv.cli.output import as_shown

    typer.secho(f"error: {as_shown(message)}", fg="red", err=True)
    sys.exit(code)
