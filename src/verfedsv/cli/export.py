"""`verfedsv export`: a recorded training as tables for other programs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedsv.cli.options import AnyRunArgument
from verfedsv.cli.progress import follow, progress_bar, working
from verfedsv.errors import InputError
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.stored import find_run
from verfedsv.texts import count
from verfedsv.transcript.locations import as_location
from verfedsv.transcript.parquet import export_parquet


def export(
    run: AnyRunArgument,
    parquet: Annotated[str, typer.Option(help="The new folder to write, also s3://... or gs://...", metavar="FOLDER")],
) -> None:
    """Write a recorded training as Parquet tables, for Spark, DuckDB or pandas.

    The folder gets the tables uploads (one row for each sample of each upload, with its embedding), rounds, offsets,
    members and samples (labels), and export.json, with the description of the training. docs/transcript.md has the
    columns. Everything that the server knows is in there: it is not for the clients.

    The hash chain is checked first. A folder on this machine appears when all is written; in an object store,
    export.json is written last. Memory does not grow with the run.

    Exit codes: 0 written; 2 the run or an option cannot be used, with a message that explains why; 130 interrupted.

    Example: verfedsv export runs/credit --parquet credit-tables
    """
    place = as_location(parquet)
    if isinstance(place, Path) and RunFolder.is_kept(place):
        raise InputError(f"cannot write {place}: in that folder of a run it would fail the audit; name another")
    console = Console(stderr=True)
    folder = find_run(run)
    with working(console, "stopped; nothing was written.") as check, progress_bar(console) as bar:
        task = bar.add_task("checking the transcript", total=None)
        transcript = folder.open(for_values=False)
        transcript = transcript.up_to(transcript.verify_more(progress=follow(bar, task, check)))
        bar.update(task, description="writing", completed=0)
        n_rows = export_parquet(transcript, parquet, follow(bar, task, check))
    rounds = count(transcript.n_rounds, "round")
    typer.echo(f"wrote {parquet.partition('?')[0]}: {rounds}, {n_rows['uploads']:,} rows of uploads")
