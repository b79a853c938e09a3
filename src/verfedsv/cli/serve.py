"""`verfedsv serve`: train with clients on other machines, and value them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from verfedsv.cli.network import Insecure, check_loopback, import_network, now
from verfedsv.cli.options import EXIT_INTERRUPTED, EXIT_MISSING
from verfedsv.cli.output import explain_warnings
from verfedsv.cli.passphrases import PassphraseFile, existing_passphrase
from verfedsv.cli.progress import explain_interrupt, follow, interrupts, progress_bar, stop_on_interrupt
from verfedsv.cli.training import carry_out, write_report
from verfedsv.errors import MissingClientError, VerfedsvError
from verfedsv.settlement.keys import read_private_key
from verfedsv.texts import printable

if TYPE_CHECKING:
    from verfedsv.network.serving import NetworkRun

_SECONDS_BETWEEN = 0.5
"""Of lines of JSON that say how far a stage is."""


def serve(
    config: Annotated[Path, typer.Argument(help="The configuration, a TOML file with [server].", metavar="FILE")],
    address: Annotated[
        str | None, typer.Option(help="Where to listen, in place of the configuration's.", metavar="HOST:PORT")
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="A folder with server.crt, server.key, ca.crt and revoked.crl, in place of the configuration's paths.",
            metavar="FOLDER",
        ),
    ] = None,
    insecure: Insecure = False,
    passphrase_file: PassphraseFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each event and evaluation as a line of JSON, and nothing else.")
    ] = False,
) -> None:
    """Train with clients on other machines, record, value, and send each client its part.

    Clients dial in with verfedsv join. Each is who its certificate says, and only those in the configuration may join.
    The ids of all are aligned without showing those that are not common. If the run in the output folder is unfinished,
    it continues; if it is finished, clients that were away get their results. Ctrl-C stops after the current round; the
    same command continues. With --json, every event and evaluation is a line of JSON.

    Exit codes: 0 done; 2 the configuration, a file or a certificate cannot be used; 3 a client was missing, during
    the training or for its results; 130 stopped by Ctrl-C. Messages explain why.

    Example: verfedsv serve consortium.toml
    """
    import_network()
    from verfedsv.network.delivery import FINISHED
    from verfedsv.network.messages import End
    from verfedsv.network.serving import NetworkRun

    run = NetworkRun.of_file(config)
    run.listen_at(address, keys)
    console = Console(stderr=as_json)
    resume, is_finished = run.is_begun, run.is_finished
    run.check_folder(resume=resume)
    signing_key = None if run.server_section.signing_key is None else read_private_key(run.server_section.signing_key)
    passphrase = None if insecure else existing_passphrase(passphrase_file)
    admit, credentials = run.credentials(passphrase, check_loopback if insecure else None)
    run.notify = _say_json_of(run) if as_json else _say_to(console)
    run.notify(run.describe_own_file())  # an error here is better than one when all are waiting
    port = run.open(admit, credentials)
    end = stopping = End("", 0, 0, "the server stopped; it may continue later", is_finished=False)
    try:
        host = run.server_section.address.rpartition(":")[0]
        run.notify(f"listening on {host}:{port}; waiting for {', '.join(run.others)}")
        with stop_on_interrupt() as stopped:
            if is_finished:
                run.notify(f"the training in {run.folder} is finished; whoever comes gets its results")
                missed = run.finish(signing_key, None, stopped)
                raise typer.Exit(EXIT_INTERRUPTED if missed else 0)
            run.gather(None, stopped)
            if stopped():
                run.notify("stopped; the same command begins again")
                raise typer.Exit(EXIT_INTERRUPTED)
        stopped_early = "stopped; the same command begins again"
        end = End("", 0, 0, "the server stopped while ids were aligned; it may begin again later", is_finished=False)
        with explain_interrupt(console, stopped_early), interrupts() as check, progress_bar(console) as bar:
            task, run.check = bar.add_task("aligning ids", total=None), check
            run.align(_follow_json("aligning ids", check) if as_json else follow(bar, task, check))
        end, run.check = stopping, lambda: None
        with explain_warnings(Console(stderr=True)):
            is_done = _carry_out_silently(run, resume=resume) if as_json else carry_out(console, run, resume=resume)
            if not is_done:
                raise typer.Exit(EXIT_INTERRUPTED)
        if not as_json:
            write_report(console, run.folder)
        missed = run.finish(signing_key)
        end = FINISHED
        for name in missed:
            run.notify(f"{name} was not there to get its results; it gets them when the server is started again")
    except MissingClientError:
        raise
    except (VerfedsvError, OSError):
        # Without the reason: what is wrong with others' ids or labels is not for all to know.
        end = End("", 0, 0, "the server stopped with an error, which its operator has to mend", is_finished=False)
        raise
    finally:
        run.close(end)
    run.notify("finished")
    if missed:
        raise typer.Exit(EXIT_MISSING)


def _say_to(console: Console) -> Callable[[str], None]:
    def say(text: str) -> None:
        console.print(f"{now()} {printable(text)}", highlight=False, markup=False, soft_wrap=True)

    return say


def _print_json(**content: Any) -> None:
    typer.echo(json.dumps({"time": now(), **content}, ensure_ascii=False))


def _say_json_of(run: NetworkRun) -> Callable[[str], None]:
    """Return a function that prints an event, and who is connected then, as a line of JSON."""

    def say(text: str) -> None:
        _print_json(event=text, connected=sorted(run.hub.connected()) if hasattr(run, "hub") else [])

    return say


def _follow_json(stage: str, check: Callable[[], None]) -> Callable[[int, int], None]:
    """Return a callback, (done, total), that prints a line of JSON at most every half second, and at the end."""
    said = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal said
        check()
        if done == total or time.monotonic() - said > _SECONDS_BETWEEN:
            said = time.monotonic()
            _print_json(stage=stage, done=done, total=total)

    return progress


def _carry_out_silently(run: NetworkRun, *, resume: bool) -> bool:
    """Train and value, with a line of JSON for each evaluation; return False if it was stopped."""
    for note in (*run.data.notes, *run.data.cautions):
        run.notify(note)
    with stop_on_interrupt() as stopped:
        for update in run.train(resume=resume, should_stop=stopped):
            if update.evaluation is None:
                continue
            shares = None
            if update.shares is not None:
                shares = dict(zip(run.data.names, map(float, update.shares), strict=True))
            _print_json(
                round=update.n_rounds, n_planned=update.n_planned, shares=shares, measures=update.evaluation.metrics()
            )
        if stopped():
            return False
    for note in run.note_progress():
        run.notify(note)
    if not (resume and run.known_valuation()):
        run.notify("valuing")
        with interrupts() as check:
            run.value(_follow_json("valuing", check))
    return True
