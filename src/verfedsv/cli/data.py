"""`verfedsv data`: the data sets of the paper."""

from __future__ import annotations

from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

from verfedsv.data.catalogue import CATALOGUE, fetch, get_entry, load, locate

data = typer.Typer(
    name="data", help="The data sets of the paper: list them, fetch them, look at them.", no_args_is_help=True
)
Name = Annotated[str, typer.Argument(help=f"One of {', '.join(CATALOGUE)}.")]


@data.command(name="list")
def list_all() -> None:
    """List the data sets, and where they are.

    Example: verfedsv data list
    """
    table = Table(header_style="bold", box=None, pad_edge=False)
    for name in ("name", "what", "samples", "features", "classes", "where"):
        table.add_column(name, justify="right" if name in ("samples", "features", "classes") else "left")
    for entry in CATALOGUE.values():
        found = locate(entry)
        where = "in the package" if entry.is_included else "not fetched" if found is None else str(found[0].parent)
        sizes = (f"{entry.n_samples:,}", f"{entry.n_features:,}", str(entry.n_classes))
        table.add_row(entry.name, entry.title, *sizes, where)
    Console().print(table)


@data.command(name="fetch")
def fetch_one(name: Name) -> None:
    """Download a data set into the user's cache, unless it is on this machine already.

    Example: verfedsv data fetch web
    """
    for path in fetch(name):
        typer.echo(path)


@data.command(name="show")
def show_one(name: Name) -> None:
    """Show what a data set holds, fetching it first if need be.

    Example: verfedsv data show adult
    """
    entry, samples = get_entry(name), load(name)
    n_samples, n_features = samples.features.shape
    filled = samples.features.nnz / (n_samples * n_features)
    counts = np.bincount(samples.labels)
    shown = ", ".join(f"{count:,}" for count in counts[:10]) + (", ..." if len(counts) > 10 else "")
    typer.echo(f"{entry.title}")
    typer.echo(f"{n_samples:,} samples, of which {samples.n_test:,} are the data set's own test part")
    typer.echo(f"{n_features:,} features, {filled:.1%} of them not zero")
    typer.echo(f"{samples.n_classes} classes: {shown} samples")
    typer.echo(f"clients in the paper: {entry.n_clients}")
