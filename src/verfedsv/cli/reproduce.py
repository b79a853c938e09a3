"""`verfedsv reproduce`: the paper's tables and figures, by the experiments beside the library."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from verfedsv.errors import InputError

REPOSITORY = Path(__file__).resolve().parents[3]
"""The checkout of this file; for an installed wheel, a folder without experiments."""


def reproduce(
    names: Annotated[
        list[str] | None, typer.Argument(help="Experiments, or all. Without a name, list them.", metavar="NAME")
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", help="Data sets. Default: all that are on this machine.", metavar="NAME..."),
    ] = None,
    seeds: Annotated[
        int | None,
        typer.Option(
            "--seeds",
            help="Measure at most so many seeds; the page shows results with two or more. Default: all.",
            min=1,
        ),
    ] = None,
    jobs: Annotated[
        int,
        typer.Option("--jobs", "-j", help="Measure so many results at once; those of times come last, alone.", min=1),
    ] = 1,
    quick: Annotated[bool, typer.Option("--quick", help="Few rounds and samples, to check that it works.")] = False,
    again: Annotated[bool, typer.Option("--again", help="Discard earlier results of these experiments.")] = False,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The folder for the results.", metavar="FOLDER")
    ] = Path("verfedsv-paper"),
    as_json: Annotated[bool, typer.Option("--json", help="Print the results as JSON and nothing else.")] = False,
) -> None:
    """Measure the tables and figures of the paper again; needs a checkout of the repository.

    Each result is written as JSON to the subfolder paper of the output folder as soon as it is measured; after Ctrl-C,
    the same command, without --again, continues, and one with more seeds adds theirs. At the end, `paper.md` shows all
    results beside the paper's, with figures. With --quick the folder is paper-quick and the page `paper-quick.md`.

    Exit codes: 0 done; 2 an experiment, a data set or an option cannot be used, with a message that explains why; 130
    interrupted.

    Example: verfedsv reproduce random-features frequency --data adult web
    """
    command = _import_command()
    if not names:
        command.show_experiments()
    else:
        command.reproduce(names, data or [], output, seeds=seeds, jobs=jobs, quick=quick, again=again, as_json=as_json)


def _import_command() -> Any:
    """Return the module of the repository that runs experiments; the library itself never imports it."""
    if not (REPOSITORY / "experiments" / "command.py").is_file():
        raise InputError(
            "the paper's experiments are not part of the installed package: clone the repository, and run "
            "`pip install -e '.[paper]'` and this command there"
        )
    if str(REPOSITORY) not in sys.path:
        sys.path.insert(0, str(REPOSITORY))
    return import_module("experiments.command")
