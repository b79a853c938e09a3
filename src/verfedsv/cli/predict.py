"""`verfedsv predict`: what a trained model says of new rows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedsv.cli.network import Insecure, check_loopback, import_network, now
from verfedsv.cli.options import AsJson, RunArgument
from verfedsv.cli.output import as_shown, check_writable, print_text, write_file
from verfedsv.cli.passphrases import PassphraseFile, existing_passphrase
from verfedsv.cli.progress import explain_interrupt, follow, interrupts, progress_bar
from verfedsv.errors import InputError
from verfedsv.network.tls_keys import Passphrase
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.predicting import PredictedRows, Source
from verfedsv.runs.predicting import predict as predict_files
from verfedsv.texts import count, shortened

_LONGEST_LIST = 200


def predict(
    run: RunArgument,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The file to write, .csv or .parquet.", metavar="FILE")
    ],
    features: Annotated[
        list[str] | None,
        typer.Option(
            help="A client and its file with new rows, .csv, .parquet, .svm or .libsvm; once for each client that has "
            "one.",
            metavar="NAME=FILE",
        ),
    ] = None,
    id_column: Annotated[
        str | None,
        typer.Option("--id", help="The column of ids. Default: as in the configuration of the run.", metavar="COLUMN"),
    ] = None,
    network: Annotated[
        Path | None,
        typer.Option(
            "--serve",
            help="The configuration with [server]: clients on other machines come with verfedsv join --predict.",
            metavar="FILE",
        ),
    ] = None,
    ids: Annotated[
        Path | None,
        typer.Option(
            help="With --serve: the ids to predict, with the server's own columns if it has any.", metavar="FILE"
        ),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option("--client", help="With --serve: a client to wait for; repeatable. Default: all.", metavar="NAME"),
    ] = None,
    address: Annotated[
        str | None, typer.Option(help="With --serve, as for verfedsv serve.", metavar="HOST:PORT")
    ] = None,
    keys: Annotated[Path | None, typer.Option(help="With --serve, as for verfedsv serve.", metavar="FOLDER")] = None,
    insecure: Insecure = False,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Predict new rows with the models of a finished run; the files it was trained on are not needed.

    Files have the columns that the client was trained with; other columns are ignored. Rows are matched by id, and
    every id in any of the files gets a prediction. A client without a file, and a row that a file does not have, count
    with the client's mean embedding of the training samples; it is printed for how many rows.

    LIBSVM files (.svm, .libsvm) are for clients that were trained on such, or on a data set by name. They have no ids:
    if there is one, all files must have the same rows in the same order, and predictions are of rows 1, 2, and so on.

    With --serve, clients on other machines embed their rows there: ids are aligned as before the training, and those
    that all who take part have are predicted.

    For classes, the output has columns for the id, the most probable class (prediction) and the probability of each
    class (probability_...); for amounts, the id and the prediction.

    Exit codes: 0 predicted; 2 the run, a file or an option cannot be used, with a message that explains why; 130
    interrupted.

    Example: verfedsv predict runs/credit --features bank=new_bank.csv --features telco=new_telco.csv -o predictions.csv
    """
    check_writable(output, "predictions")
    folder = RunFolder(run)
    with explain_interrupt(Console(stderr=True), "stopped; nothing was written."):
        if network is not None:
            passphrase = None if insecure else existing_passphrase(passphrase_file)
            result = _predict_over_network(
                folder, network, ids, clients, id_column, address, keys, passphrase, insecure
            )
        else:
            files = parse_files(features or (), folder.open(for_values=False).clients)
            result = predict_files(folder, files, id_column=id_column)
        content = result.to_parquet() if output.suffix.lower() == ".parquet" else result.to_csv()
        write_file(output, content, overwrite=False)
    if as_json:
        print_text(json.dumps({"output": str(output), **result.summary()}, indent=2, ensure_ascii=False) + "\n")
    else:
        for line in (f"wrote {output}: {_describe(result)}", *_describe_sources(result.sources)):
            typer.echo(as_shown(line))


def _predict_over_network(
    folder: RunFolder,
    config: Path,
    ids: Path | None,
    clients: list[str] | None,
    id_column: str | None,
    address: str | None,
    keys: Path | None,
    passphrase: Passphrase | None,
    insecure: bool,
) -> PredictedRows:
    """Wait for the clients on other machines, and return predictions of the ids that all have."""
    import_network()
    from verfedsv.network.messages import End
    from verfedsv.network.predicting import NetworkPrediction

    if ids is None:
        raise InputError("--serve needs --ids, a file with the ids to predict")
    run = NetworkPrediction.of_file(config)
    if run.folder.resolve() != folder.path.resolve():
        raise InputError(f"{config} is the configuration of {run.folder}, and not of {folder.path}")
    run.listen_at(address, keys)
    run.prepare(tuple(clients or ()), ids, id_column)
    console = Console(stderr=True)
    run.notify = lambda text: console.print(f"{now()} {text}", highlight=False, markup=False, soft_wrap=True)
    admit, credentials = run.credentials(passphrase, check_loopback if insecure else None)
    port = run.open(admit, credentials)
    end = End("", 0, 0, "the server stopped before the rows were predicted", is_finished=False)
    try:
        run.notify(f"listening on port {port}; waiting for {', '.join(run.others)}")
        run.gather(None, lambda: False)
        with progress_bar(console) as bar:
            task = bar.add_task("aligning ids", total=None)
            with interrupts() as check:
                run.check = check
                run.align(follow(bar, task, check))
                bar.update(task, description="predicting")
                result = run.predict_all(follow(bar, task, check))
        end = End("", 0, 0, "the rows are predicted", is_finished=True)
    finally:
        run.close(end)
    return result


def parse_files(texts: Sequence[str], clients: Iterable[str]) -> dict[str, Path]:
    """Return the file of each client; a name may contain an equals sign."""
    files = dict[str, Path]()
    for text in texts:
        known = [client for client in clients if text.startswith(f"{client}=")]
        name = max(known, key=len, default=text.partition("=")[0])
        if not text[len(name) + 1 :] or not name:
            raise InputError(f"--features takes a client and its file, NAME=FILE; received {text!r}")
        if name in files:
            raise InputError(f"--features has two files for {name!r}: {files[name]} and {text[len(name) + 1 :]}")
        files[name] = Path(text[len(name) + 1 :])
    return files


def _describe(result: PredictedRows) -> str:
    summary = result.summary()
    rows = count(summary["n_rows"], "row")
    if summary["classes"] is None:
        return rows
    classes = ", ".join(f"{name} ({n_rows:,})" for name, n_rows in summary["classes"].items())
    return f"{rows}; {shortened(classes, _LONGEST_LIST)}"


def _describe_sources(sources: Iterable[Source]) -> Iterable[str]:
    """Yield sentences on clients that are absent, on rows that they lack, and on columns that are ignored."""
    for source in sources:
        if source.path is None:
            yield f"{source.client}: absent; its mean embedding counts in all rows"
            continue
        lacks = f"; its mean embedding counts in {count(source.n_means, 'row')} that it lacks" if source.n_means else ""
        yield f"{source.client}: {count(source.n_rows, 'row')} of {source.path.name}{lacks}"
        if source.ignored:
            names = shortened(", ".join(source.ignored), _LONGEST_LIST)
            yield f"{source.client}: ignored {count(len(source.ignored), 'column')} not used in training: {names}"
