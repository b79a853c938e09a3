"""`verfedsv join`: take part in a training as the owner of some features."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from verfedsv.cli.lines import SECONDS_OF_A_LINE, every
from verfedsv.cli.network import Insecure, check_loopback, import_network, now
from verfedsv.cli.options import EXIT_INTERRUPTED
from verfedsv.errors import InputError
from verfedsv.texts import printable
from verfedsv.untrusted import read_json


def join(
    address: Annotated[str, typer.Argument(help="Where the server listens.", metavar="HOST:PORT")],
    features: Annotated[Path | None, typer.Option(help="Your columns: CSV or Parquet.", metavar="FILE")] = None,
    id_column: Annotated[str, typer.Option("--id", help="The column of ids.", metavar="COLUMN")] = "id",
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="A column to take; repeatable. Default: all.", metavar="COLUMN")
    ] = None,
    aligned: Annotated[
        bool,
        typer.Option(
            "--aligned", help="Your file has the same rows as those of the others, in the same order: use all of them."
        ),
    ] = False,
    certificate: Annotated[
        Path | None,
        typer.Option(help="Your certificate in PEM. Default: the only .crt here, but ca.crt.", metavar="FILE"),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Its private key. Default: the .key beside the certificate.", metavar="FILE")
    ] = None,
    authority: Annotated[
        Path | None,
        typer.Option(
            "--ca", help="The certificate of the authority. Default: ca.crt beside your certificate.", metavar="FILE"
        ),
    ] = None,
    name: Annotated[
        str | None, typer.Option(help="Your name in the consortium, if not that in the certificate.", metavar="NAME")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="Where your part is kept. Default: verfedsv-NAME.", metavar="FOLDER")
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            help="Give up after so many seconds without the server. Other clients are waited for without limit. "
            "Default: never.",
            min=0,
        ),
    ] = None,
    predict: Annotated[
        Path | None,
        typer.Option(help="A file of new rows, to help to predict them with the trained model.", metavar="FILE"),
    ] = None,
    insecure: Insecure = False,
    passphrase_file: Annotated[
        Path | None, typer.Option(help="A file with the passphrase of the key.", metavar="FILE")
    ] = None,
) -> None:
    """Take part in a training: your columns stay here, embeddings go to the server.

    Your model, and what is needed to come back after a crash, are kept in a folder. If the server or the network goes
    away, this waits and continues. At the end the folder has your value, the extract of what you uploaded, and the
    signed statement, in received/, and your model in model.npz. Only rows whose ids all parties have are used, unless
    you say --aligned. With --predict, your model embeds new rows instead.

    Exit codes: 0 the training is finished; 2 a file or certificate cannot be used, or the server refuses you; 3 the
    server cannot be reached, or ended without predictions; 130 stopped by Ctrl-C: the same command continues. Messages
    explain why.

    Example: verfedsv join server.example:8443 --features my.csv --id customer_id
    """
    import_network()
    from verfedsv.network.joining import Joining

    console = Console()
    joining = Joining(
        address,
        features,
        id_column,
        columns,
        name=name,
        folder=folder,
        patience=patience,
        predict=predict,
        aligned=aligned,
    )
    if insecure:
        check_loopback(address)
        if name is None:
            raise InputError("--insecure needs your --name, as there is no certificate that says it")
    else:
        from verfedsv.cli.passphrases import existing_passphrase

        joining.use_certificate(certificate, key, authority, existing_passphrase(passphrase_file))
    text = TextColumn("{task.description}")
    bar = Progress(BarColumn(bar_width=10), MofNCompleteColumn(), text, console=console, transient=True)
    bar.disable = not console.is_interactive
    is_due = every(SECONDS_OF_A_LINE)
    with bar:
        task = bar.add_task("waiting", total=None)

        def show(event: str) -> None:
            bar.console.print(f"{now()} {event}", highlight=False, markup=False, soft_wrap=True)

        def follow(stage: str, done: int, total: int) -> None:
            bar.update(task, completed=done, total=total or None, description=stage)
            if not console.is_interactive and done and is_due():
                show(f"round {done:,} of {total:,}" if stage == "training" else f"{stage}: {done:,} of {total:,}")

        try:
            end = joining.run(show, follow)
        except KeyboardInterrupt:
            show("stopped; the same command continues")
            raise typer.Exit(EXIT_INTERRUPTED) from None
    for path in joining.results:
        console.print(f"received {path}", highlight=False, markup=False, soft_wrap=True)
        if path.name.startswith("value") and (share := share_in(path)) is not None:
            console.print(f"your share of what the clients achieved: {share:.1%}", highlight=False)
    console.print(printable(end.reason), highlight=False, markup=False)


def share_in(path: Path) -> float | None:
    """Return the share that the server's file states, None if it states none: it may have sent anything."""
    with suppress(InputError):
        content = read_json(path.read_bytes(), path.name)
        share = content.get("share") if isinstance(content, dict) else None
        return float(share) if isinstance(share, int | float) else None
    return None
