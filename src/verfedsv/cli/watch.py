"""`verfedsv watch`: a local page that follows a training."""

from __future__ import annotations

import os
import signal
import sys
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from verfedsv.cli.options import TrustHead
from verfedsv.errors import TranscriptError
from verfedsv.runs.folder import RunFolder


def watch(
    run: Annotated[
        Path, typer.Argument(help="The folder of a run, or of a transcript; it need not exist yet.", metavar="RUN")
    ],
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. With the default, only this machine can see the page.", metavar="ADDRESS"
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.", metavar="NUMBER")
    ] = 0,
    every: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds between checks of the folder.", metavar="SECONDS")
    ] = 2,
    trust_head: TrustHead = False,
) -> None:
    """Follow a training on a local web page: shares and loss as they change.

    The run may be running, finished, or not started yet; it is only read. Ctrl-C ends the page, not the training.

    Exit codes: 0 ended with Ctrl-C; 2 the run or an option cannot be used, with a message that explains why.

    Example: verfedsv watch runs/credit
    """
    from verfedsv.watch.server import Watch

    with suppress(TranscriptError):  # the page reports a run that cannot be read, and waits for one that is missing
        RunFolder(run).open()
    page = Watch(run, host, port, every, trust_head=trust_head)
    typer.echo(f"Watching {run} at {page.address} (Ctrl-C ends)")
    if not run.exists():
        note = f"note: there is no folder {run} yet; the page waits for a run to begin there"
        typer.secho(note, fg="yellow", err=True)
    if not page.is_local:
        typer.secho("note: everybody who can reach this address sees the page", fg="yellow", err=True)
    sys.stdout.flush()
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    # The page shows what these warnings say. Filters are global, so this holds for all threads.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            page.run()
        except KeyboardInterrupt:
            typer.echo("Stopped watching.")
            sys.stdout.flush()
            # Do not wait for the thread, which may be valuing: it only reads.
            os._exit(0)
        finally:
            signal.signal(signal.SIGTERM, before)
