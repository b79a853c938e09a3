"""`verfedsv model`: one client's model, for its owner."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from verfedsv.cli.options import AsJson, RunArgument
from verfedsv.cli.output import check_writable, print_text, write_file
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.predicting import read_model, read_predictor
from verfedsv.texts import count


def model(
    run: RunArgument,
    client: Annotated[str, typer.Option(help="The client whose model to write.", metavar="NAME")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .npz file to write.", metavar="FILE")],
    as_json: AsJson = False,
) -> None:
    """Write one client's trained model, with the preparation of its columns, for its owner alone.

    The file has nothing of the server or of other clients, and needs nothing but NumPy: docs/training.md has a script
    that embeds rows of a CSV file with it.

    Exit codes: 0 written; 2 the run or an option cannot be used, with a message that explains why.

    Example: verfedsv model runs/credit --client telco -o telco.npz
    """
    check_writable(output, "model")
    folder = RunFolder(run)
    trained = read_model(folder, read_predictor(folder, "taken out"), client)
    write_file(output, trained.to_bytes(), overwrite=False)
    if as_json:
        arrays = {name: {"type": str(array.dtype), "shape": array.shape} for name, array in trained.arrays().items()}
        content = {"output": str(output), **trained.about(), "columns": trained.preparation.columns, "arrays": arrays}
        print_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    else:
        prepared = trained.preparation
        columns = f"{count(len(prepared.columns), 'column')} ({count(prepared.n_features, 'feature')})"
        when = _when(folder, client, trained.n_rounds)
        typer.echo(f"wrote {output}: the {trained.kind} model of {client!r}, of {columns}, {when}")


def _when(folder: RunFolder, client: str, n_rounds: int) -> str:
    """Return of which round a model is, in words: checkpoints also have those of clients that left before."""
    config = folder.config()
    left = {} if config is None else {each.name: each.leaves_after for each in config.client}
    last = left.get(client)
    if last is None or last >= n_rounds:
        return f"from the checkpoint after round {n_rounds:,}"
    return f"as of its last round, {last:,}"
