"""`verfedsv extract`: one client's part of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedsv.cli.options import AnyRunArgument
from verfedsv.cli.output import check_writable, write_file
from verfedsv.runs.extent import refuse_running
from verfedsv.runs.stored import find_run
from verfedsv.settlement.extract import make_extract
from verfedsv.texts import count


def extract(
    run: AnyRunArgument,
    client: Annotated[str, typer.Option(help="The client whose part to write.", metavar="NAME")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The file to write.", metavar="FILE")],
) -> None:
    """Write one client's part of a run: its own uploads, and the hashes that tie them to a statement.

    It contains neither labels nor embeddings of other clients. The client checks it with verfedsv audit FILE
    --statement STATEMENT.

    Exit codes: 0 written; 2 the run or an option cannot be used, with a message that explains why.

    Example: verfedsv extract runs/credit --client telco -o telco.extract
    """
    check_writable(output, "extract")
    folder = find_run(run)
    transcript = folder.open(for_values=False)
    refuse_running(folder.extent(transcript), "extracted")
    result = make_extract(transcript, client)
    n_uploads = len(result.verify().uploads)
    write_file(output, result.to_bytes())
    typer.echo(f"wrote {output}: {count(n_uploads, 'upload')} of client {client!r}")
