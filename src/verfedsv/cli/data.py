"""`verfedsv data`: data sets by name."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from verfedsv.cli.options import Command, Group
from verfedsv.cli.progress import explain_interrupt
from verfedsv.data.catalogue import CATALOGUE, INCLUDED, DataSet, Samples, fetch, get_data_set, load, locate
from verfedsv.data.vertical import split_edges
from verfedsv.texts import digits

STOPPED = "stopped; run the same command to start again."
data = typer.Typer(
    cls=Group,
    name="data",
    help="Data sets by name, those of the paper and others: list, fetch and show them.",
    no_args_is_help=True,
)
Name = Annotated[str, typer.Argument(help=f"One of {', '.join(CATALOGUE)}.", metavar="NAME")]


@data.command(cls=Command, name="list")
def list_all() -> None:
    """List the data sets and where they are stored.

    Exit codes: 0 listed.

    Example: verfedsv data list
    """
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in ("name", "what", "samples", "features", "labels", "where"):
        table.add_column(name, justify="right" if name in ("samples", "features") else "left")
    for data_set in CATALOGUE.values():
        labels = "amounts" if data_set.n_classes == 1 else f"{data_set.n_classes} classes"
        sizes = (f"{data_set.n_samples:,}", f"{data_set.n_features:,}", labels)
        table.add_row(data_set.name, data_set.title, *sizes, _where(data_set))
    Console().print(table)


@data.command(cls=Command, name="fetch")
def fetch_one(name: Name) -> None:
    """Download a data set into the user's cache, unless it is already on this machine.

    Exit codes: 0 fetched, or already there; 2 it is unknown or cannot be fetched, with a message that explains why; 130
    interrupted.

    Example: verfedsv data fetch web
    """
    with explain_interrupt(Console(stderr=True), STOPPED):
        for path in fetch(name):
            typer.echo(path)


@data.command(cls=Command, name="show")
def show_one(
    name: Name,
    clients: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="How many clients to split it between. Default: as in the paper, where it is there.",
            metavar="NUMBER",
        ),
    ] = None,
) -> None:
    """Show the size of a data set, fetched first if necessary, and the features of each client.

    Exit codes: 0 shown; 2 it is unknown or cannot be fetched, with a message that explains why; 130 interrupted.

    Example: verfedsv data show adult
    """
    with explain_interrupt(Console(stderr=True), STOPPED):
        data_set, samples = get_data_set(name), load(name)
    n_samples, n_features = samples.features.shape
    filled = samples.features.nnz / (n_samples * n_features)
    typer.echo(data_set.title)
    typer.echo(f"{n_samples:,} samples, of which {samples.n_test:,} are the data set's own test part")
    typer.echo(f"{n_features:,} features, {filled:.1%} of them not zero")
    typer.echo(_describe_labels(samples))
    typer.echo(f"clients by default: {data_set.n_clients}")
    for m, (first, last) in enumerate(pairwise(split_edges(samples, clients or data_set.n_clients)), 1):
        attributes = f" ({', '.join(data_set.attributes_of(first + 1, last))})" if data_set.attributes else ""
        typer.echo(f"client {m}: features {first + 1:,} to {last:,}{attributes}")


def _where(data_set: DataSet) -> str:
    found = locate(data_set)
    if found is None:
        return "not fetched"
    if data_set.loader is not None:
        return "in scikit-learn"
    return "in the package" if found[0].parent == INCLUDED else str(found[0].parent)


def _describe_labels(samples: Samples) -> str:
    labels = samples.labels
    if samples.n_classes == 1:
        spread = f"with mean {digits(labels.mean(), 4)} and standard deviation {digits(labels.std(), 4)}"
        return f"labels are amounts from {labels.min():g} to {labels.max():g}, {spread}"
    counts = np.bincount(labels)
    shown = ", ".join(f"{count:,}" for count in counts[:10]) + (", ..." if len(counts) > 10 else "")
    return f"{samples.n_classes} classes: {shown} samples"
