"""`verfedsv serve`: train with clients on other machines, and value them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from verfedsv.cli.network import Insecure, check_loopback, import_network, now
from verfedsv.cli.options import EXIT_INTERRUPTED
from verfedsv.cli.output import explain_warnings
from verfedsv.cli.passphrases import PassphraseFile, existing_passphrase
from verfedsv.cli.progress import follow, interrupts, progress_bar, stop_on_interrupt
from verfedsv.cli.training import carry_out
from verfedsv.errors import InputError
from verfedsv.network.delivery import FINISHED
from verfedsv.network.messages import End
from verfedsv.network.serving import NetworkRun
from verfedsv.settlement.keys import read_private_key


def serve(
    config: Annotated[Path, typer.Argument(help="The configuration, a TOML file with [server].", metavar="FILE")],
    insecure: Insecure = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Train with clients on other machines, record, value, and send each client its part.

    Clients dial in with verfedsv join. Each is who its certificate says, and only those in the configuration may join.
    The ids of all are aligned without showing those that are not common. If the run in the output folder is unfinished,
    it continues; if it is finished, clients that were away get their results. Ctrl-C stops after the current round; the
    same command continues.

    Exit codes: 0 done; 2 the configuration, a file or a certificate cannot be used; 3 a client was missing; 130 stopped
    by Ctrl-C. Messages explain why.

    Example: verfedsv serve consortium.toml
    """
    import_network()
    run = NetworkRun.of_file(config)
    if not isinstance(run, NetworkRun):
        raise InputError(f"{config} has no [server]")
    console = Console()
    resume, is_finished = run.is_begun, run.is_finished
    run.check_folder(resume=resume)
    signing_key = None if run.server_section.signing_key is None else read_private_key(run.server_section.signing_key)
    admit, credentials = run.credentials(
        None if insecure else existing_passphrase(passphrase_file), check_loopback if insecure else None
    )
    run.notify = lambda text: console.print(f"{now()} {text}", highlight=False, markup=False, soft_wrap=True)
    port = run.open(admit, credentials)
    end = End("", 0, 0, "the server stopped; it may continue later", is_finished=False)
    try:
        host = run.server_section.address.rpartition(":")[0]
        waiting = f"listening on {host}:{port}; waiting for {', '.join(run.others)}"
        console.print(waiting, highlight=False, markup=False, soft_wrap=True)
        with stop_on_interrupt() as stopped:
            if is_finished:
                run.notify(f"the training in {run.folder} is finished; whoever comes gets its results")
                missed = run.finish(signing_key, None, stopped)
                raise typer.Exit(EXIT_INTERRUPTED if missed else 0)
            run.gather(None, stopped)
            if stopped():
                raise typer.Exit(EXIT_INTERRUPTED)
        with interrupts() as check, progress_bar(console) as bar:
            task = bar.add_task("aligning ids", total=None)
            run.align(follow(bar, task, check))
        with explain_warnings(Console(stderr=True)):
            if not carry_out(console, run, resume=resume):
                raise typer.Exit(EXIT_INTERRUPTED)
        missed = run.finish(signing_key)
        end = FINISHED
        for name in missed:
            run.notify(f"{name} was not there to get its results; it gets them when the server is started again")
    finally:
        run.close(end)
