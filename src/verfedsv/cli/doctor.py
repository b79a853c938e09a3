"""`verfedsv doctor`: checks before the day of a training."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.text import Text

from verfedsv.cli.network import Insecure, check_loopback, import_network
from verfedsv.cli.options import AsJson
from verfedsv.cli.passphrases import PassphraseFile, existing_passphrase
from verfedsv.data.sources import ClientFile
from verfedsv.errors import InputError, VerfedsvError
from verfedsv.network.credentials import Credentials, read_credentials
from verfedsv.settlement.keys import read_private_key
from verfedsv.texts import printable

if TYPE_CHECKING:
    from verfedsv.network.doctor import Check

EXIT_BAD = 1
_STYLES = {"ok": "green", "note": "yellow", "bad": "red"}


def doctor(
    what: Annotated[
        str,
        typer.Argument(
            help="A client: where the server listens. A server: its configuration.", metavar="HOST:PORT|FILE"
        ),
    ],
    features: Annotated[Path | None, typer.Option(help="Your columns: CSV or Parquet.", metavar="FILE")] = None,
    id_column: Annotated[str, typer.Option("--id", help="The column of ids.", metavar="COLUMN")] = "id",
    certificate: Annotated[Path | None, typer.Option(help="As for verfedsv join.", metavar="FILE")] = None,
    key: Annotated[Path | None, typer.Option(help="As for verfedsv join.", metavar="FILE")] = None,
    authority: Annotated[Path | None, typer.Option("--ca", help="As for verfedsv join.", metavar="FILE")] = None,
    name: Annotated[str | None, typer.Option(help="As for verfedsv join.", metavar="NAME")] = None,
    columns: Annotated[
        list[str] | None, typer.Option("--column", help="As for verfedsv join.", metavar="COLUMN")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="As for verfedsv join.", metavar="FOLDER")] = None,
    address: Annotated[str | None, typer.Option(help="As for verfedsv serve.", metavar="HOST:PORT")] = None,
    keys: Annotated[Path | None, typer.Option(help="As for verfedsv serve.", metavar="FOLDER")] = None,
    insecure: Insecure = False,
    passphrase_file: PassphraseFile = None,
    as_json: AsJson = False,
) -> None:
    """Check, before a training over a network, that everything is in its place; one line each, with what to do.

    At a client: certificate and its dates, ids, columns, whether the server can be reached, lets you in, speaks the
    same protocol, and has the same time. At a server: configuration, certificate, labels, port, keys, room on the disk.
    Nothing is changed.

    Exit codes: 0 all is well; 1 something has to be mended; 2 wrong options.

    Example: verfedsv doctor server.example:8443 --features my.csv --id customer_id
    """
    import_network()
    path = Path(what)
    if path.suffix == ".toml" or path.exists():
        found = _at_server(path, address, keys, insecure, passphrase_file)
    elif ":" in what:
        from verfedsv.network.joining import dialled

        dialled(what)
        files = certificate, key, authority
        file = (
            None if features is None else ClientFile(features, id_column, None if columns is None else tuple(columns))
        )
        found = _at_client(what, file, files, name, folder, insecure, passphrase_file)
    else:
        raise InputError(f"name a server, HOST:PORT, or a configuration; received {what!r}")
    results = []
    console = Console()
    for check in found:
        results.append(check)
        if not as_json:
            line = Text.assemble((f"{check.state:5}", _STYLES[check.state]), f"{check.what:12}", printable(check.text))
            console.print(line, soft_wrap=True)
    if as_json:
        typer.echo(json.dumps([vars(check) for check in results], indent=2, ensure_ascii=False))
    if any(check.state == "bad" for check in results):
        raise typer.Exit(EXIT_BAD)


def _at_client(
    address: str,
    file: ClientFile | None,
    files: tuple[Path | None, Path | None, Path | None],
    name: str | None,
    folder: Path | None,
    insecure: bool,
    passphrase_file: Path | None,
) -> Iterator[Check]:
    from verfedsv.network import doctor as checks
    from verfedsv.network.doctor import Check
    from verfedsv.network.joining import default_folder, find_certificate

    credentials: Credentials | None = None
    if insecure:
        check_loopback(address)
        if name is None:
            raise InputError("--insecure needs your --name, as there is no certificate that says it")
    else:
        try:
            certificate = files[0] or find_certificate(Path())
            paths = (
                certificate,
                files[1] or certificate.with_suffix(".key"),
                files[2] or certificate.with_name("ca.crt"),
            )
            credentials = read_credentials(*paths, "client", passphrase=existing_passphrase(passphrase_file))
            yield checks.check_certificate(credentials.certificate)
        except VerfedsvError as error:
            yield Check("certificate", "bad", str(error))
    if file is None:
        yield Check("features", "note", "not checked: name your file with --features")
    else:
        yield from checks.check_features(file)
    own = name or (credentials.name if credentials else "")
    place = folder or (default_folder(own) if own or insecure else Path("verfedsv-"))
    if own or folder is not None:
        yield checks.check_folder(place)
    host = checks.check_host(address)
    yield host
    if host.state == "bad":
        return
    if credentials is None and not insecure:
        yield checks.check_port(address)
    else:
        yield from checks.check_server(address, own, credentials, place)


def _at_server(
    path: Path, address: str | None, keys: Path | None, insecure: bool, passphrase_file: Path | None
) -> Iterator[Check]:
    from verfedsv.network import doctor as checks
    from verfedsv.network.doctor import Check
    from verfedsv.network.serving import NetworkRun

    try:
        run = NetworkRun.of_file(path)
    except VerfedsvError as error:
        yield Check("config", "bad", str(error))
        return
    run.listen_at(address, keys)
    yield Check("config", "ok", f"{path}: clients {', '.join(run.others)}")
    section = run.server_section
    try:
        if insecure:
            check_loopback(section.address)
        else:
            run.credentials(existing_passphrase(passphrase_file))
            assert section.certificate is not None  # noqa: S101  # `credentials` has checked it
            yield checks.check_certificate(checks.read_own(section.certificate))
            if section.revoked is None:
                yield Check(
                    "revoked", "note", "no revocation list (revoked in [server]): revoked clients can still join"
                )
    except VerfedsvError as error:
        yield Check("certificate", "bad", str(error))
    try:
        yield Check("labels", "ok", run.describe_own_file())
    except VerfedsvError as error:
        yield Check("labels", "bad", str(error))
    try:
        if section.signing_key is None:
            yield Check("signing", "note", "no signing_key in [server]: clients get no signed statement")
        else:
            read_private_key(section.signing_key)
            yield Check("signing", "ok", str(section.signing_key))
        run.check_folder(resume=run.is_begun)
        yield checks.check_folder(run.folder)
        yield checks.check_folder(run.private, "private")
    except VerfedsvError as error:
        yield Check("run", "bad", str(error))
    yield checks.check_port_free(section.address)
