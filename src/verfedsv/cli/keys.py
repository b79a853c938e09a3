"""`verfedsv keys`: keys for statements, and the keys and certificates by which parties know each other."""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from verfedsv.cli.contents import describe_file
from verfedsv.cli.options import AsJson, Command, Group
from verfedsv.cli.output import print_notes
from verfedsv.cli.passphrases import Encrypt, PassphraseFile, existing_passphrase, new_passphrase
from verfedsv.errors import InputError
from verfedsv.network.authority import AUTHORITY_DAYS, CERTIFICATE_FILE, DAYS, KEY_FILE, Authority, new_authority
from verfedsv.network.certificates import Certificate, shown_time
from verfedsv.network.requests import CERTIFICATE, Request, new_request, read_request
from verfedsv.network.revocations import REVOKED
from verfedsv.network.tls_keys import read_key
from verfedsv.settlement.keys import fingerprint, new_keys, read_public_key
from verfedsv.texts import printable

keys = typer.Typer(
    cls=Group,
    name="keys",
    help="Keys for statements (new), and keys and certificates for TLS (ca, request, approve, revoke).",
    no_args_is_help=True,
)

AuthorityFolder = Annotated[
    Path, typer.Option("--ca", help="The folder of the certificate authority.", metavar="FOLDER")
]


@keys.command(cls=Command)
def new(
    name: Annotated[Path, typer.Argument(help="The name of the two files, without extension.", metavar="NAME")],
) -> None:
    """Make a pair of keys for statements: NAME.key (secret, for signing) and NAME.pub (to publish).

    The private key is not encrypted: whoever can read the file can sign. Existing files are never overwritten.

    Exit codes: 0 made; 2 a file exists or cannot be written, with a message that explains why.

    Example: verfedsv keys new consortium
    """
    private, public = new_keys(name)
    typer.echo(f"{private}: keep this secret and safe; to sign with it: verfedsv statement RUN --key {private}")
    typer.echo(f"{public}: give this to everyone who checks your statements")
    typer.echo(f"fingerprint: {fingerprint(read_public_key(public))}")


@keys.command(cls=Command)
def ca(
    folder: Annotated[Path, typer.Argument(help="Where to write the files.", metavar="FOLDER")] = Path(),
    name: Annotated[
        str | None, typer.Option(help="Its name in certificates, by default made of its key.", metavar="NAME")
    ] = None,
    days: Annotated[int, typer.Option(help="For how many days it is valid.")] = AUTHORITY_DAYS,
    encrypt: Encrypt = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make a certificate authority, at the operator of the consortium.

    It is a key (ca.key), its certificate (ca.crt), a register of what it signs (approved.jsonl) and a list of revoked
    certificates (revoked.crl). Existing files are never overwritten.

    Exit codes: 0 made; 2 a file exists or cannot be written, with a message that explains why.

    Example: verfedsv keys ca consortium --passphrase
    """
    passphrase = new_passphrase(encrypt, passphrase_file)
    authority = new_authority(folder, name, days=days, passphrase=passphrase)
    typer.echo(f"{folder / KEY_FILE}: keep this secret and safe; {_protection(passphrase)}")
    typer.echo(f"{folder / CERTIFICATE_FILE}: give this to all parties")
    typer.echo(f"{folder / REVOKED}: copy this to the server, now and whenever it changes")
    typer.echo(f"valid:       until {shown_time(authority.certificate.end)}")
    typer.echo(f"fingerprint: {authority.certificate.fingerprint}")


@keys.command(cls=Command)
def request(
    name: Annotated[str, typer.Option(help="The name of the party, which all others see.", metavar="NAME")],
    host: Annotated[
        list[str] | None,
        typer.Option(help="For a server: a DNS name or IP address of it, one per option.", metavar="HOST"),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Use this key, to renew a certificate without a new one.", metavar="FILE")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="The files to write, without extension; by default NAME.", metavar="PATH"),
    ] = None,
    encrypt: Encrypt = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make a key for TLS (NAME.key), and a signing request (NAME.csr) to send to the operator.

    The key stays on this machine. Existing files are never overwritten.

    Exit codes: 0 made; 2 a file exists or cannot be written, or the name or a host cannot be used, with a message that
    explains why.

    Example: verfedsv keys request --name telco
    """
    if output is None and (Path(name).name != name or "\\" in name):
        raise InputError(f"{name[:60]!a} cannot be the name of a file; name the files with -o, without extension")
    if key is not None and encrypt:
        raise InputError("--passphrase encrypts a new key; with --key, no key is written")
    path = output or Path(name)
    if key is None:
        passphrase = new_passphrase(encrypt, passphrase_file)
        private, signing_request = new_request(path, name, host or (), passphrase=passphrase)
        typer.echo(f"{private}: keep this secret, on this machine; {_protection(passphrase)}")
    else:
        (signing_request,) = new_request(
            path, name, host or (), key=read_key(key, existing_passphrase(passphrase_file))
        )
    typer.echo(f"{signing_request}: send this to the operator")
    typer.echo(f"fingerprint: {read_request(signing_request).fingerprint}; the operator compares it with what arrived")


@keys.command(cls=Command)
def approve(
    path: Annotated[Path, typer.Argument(help="A signing request.", metavar="FILE")],
    folder: AuthorityFolder = Path(),
    days: Annotated[int, typer.Option(help="For how many days the certificate is valid.")] = DAYS,
    renew: Annotated[
        bool, typer.Option("--renew", help="For a party that has a certificate, which stays valid until it is revoked.")
    ] = False,
    server: Annotated[
        bool, typer.Option("--server", help="Approve the request of a server, for the hosts that it names.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before signing.")] = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="The file to write; by default that of the request, ending in .crt.", metavar="FILE"
        ),
    ] = None,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make the certificate that a party asks for, at the operator of the consortium.

    Compare the fingerprint with the party's, over another channel, before you agree. A party has one certificate: a
    second for the same name or key is refused, unless it renews the first.

    Exit codes: 0 made; 2 refused, by you or with a message that explains why.

    Example: verfedsv keys approve telco.csr
    """
    wanted = read_request(path)
    written = output or path.with_suffix(CERTIFICATE)
    _check_use(wanted, server)
    authority = Authority.open(folder)
    notes = authority.consider(wanted, renew=renew)  # with another file, it would still be refused
    if written.exists():
        raise InputError(f"{written} exists, and a certificate is never overwritten; name another file with -o")
    for label, text in _lines_of(wanted):
        typer.echo(f"{label + ':':13}{text}")
    print_notes(*notes)
    if not yes:
        _confirm(f"Is this the fingerprint that {wanted.name} has told you? Then sign as {authority.certificate.shown}")
    key = authority.read_key(existing_passphrase(passphrase_file))
    certificate = authority.approve(wanted, key, written, days=days, renew=renew)
    typer.echo(f"valid:       {_validity(certificate)}")
    typer.echo(f"{written}: send this back, with {folder / CERTIFICATE_FILE}")


@keys.command(cls=Command)
def revoke(
    what: Annotated[
        str, typer.Argument(help="The name of a party, a serial number, or a certificate.", metavar="NAME|SERIAL|FILE")
    ],
    folder: AuthorityFolder = Path(),
    passphrase_file: PassphraseFile = None,
) -> None:
    """Make certificates invalid before they expire, at the operator of the consortium.

    A name stands for all valid certificates of the party. The list of revoked certificates, revoked.crl, then has to be
    copied to the server, which reads it at every connection and needs no restart.

    Exit codes: 0 revoked; 2 there is no such certificate, or it is revoked already, with a message that explains why.

    Example: verfedsv keys revoke telco
    """
    authority = Authority.open(folder)
    key = authority.read_key(existing_passphrase(passphrase_file))
    for entry in authority.revoke(what, key):
        typer.echo(f"revoked {entry.serial} of {printable(entry.name)}, which was valid until {entry.end[:10]}")
    typer.echo(f"{folder / REVOKED}: copy this to the server")


@keys.command(cls=Command)
def show(
    path: Annotated[
        Path, typer.Argument(help="A key, certificate, signing request or revocation list.", metavar="FILE")
    ],
    as_json: AsJson = False,
    passphrase_file: PassphraseFile = None,
) -> None:
    """Print the fingerprint of a key, to compare over another channel, or what a certificate says.

    The fingerprint of a certificate or a signing request is that of its key.

    Exit codes: 0 printed; 2 the file cannot be read or used, with a message that explains why.

    Example: verfedsv keys show telco.crt
    """
    found = describe_file(path, existing_passphrase(passphrase_file))
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    for each in found:
        if each.keys() == {"kind", "fingerprint"}:
            typer.echo(each["fingerprint"])
            continue
        for label, value in each.items():
            typer.echo(f"{label + ':':13}{printable(_text_of(label, value))}")


def _lines_of(wanted: Request) -> list[tuple[str, str]]:
    """Return what the operator decides on."""
    return [
        ("name", wanted.name),
        ("for", f"a {wanted.use}"),
        ("hosts", ", ".join(wanted.hosts) or "none"),
        ("fingerprint", wanted.fingerprint),
    ]


def _check_use(wanted: Request, server: bool) -> None:
    """Raise InputError unless the operator says that this is a server's request: it could pass for that of a client."""
    if wanted.hosts and not server:
        raise InputError(
            f"this request is for a server at {', '.join(wanted.hosts[:3])}; whoever gets that certificate can pass "
            "for the server. If it is yours, add --server"
        )
    if server and not wanted.hosts:
        raise InputError("this request names no hosts; that of a server is made with verfedsv keys request --host")


def _confirm(question: str) -> None:
    if not sys.stdin.isatty():
        raise InputError("nobody can be asked here; compare the fingerprint, then add --yes")
    if not typer.confirm(question):
        raise InputError("nothing was signed")


def _protection(passphrase: bytes | None) -> str:
    return "whoever can read it can use it" if passphrase is None else "it is encrypted"


def _validity(certificate: Certificate) -> str:
    return f"{shown_time(certificate.start)} to {shown_time(certificate.end)}"


def _text_of(label: str, value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return shown_time(datetime.fromisoformat(value)) if label in ("from", "until") else str(value)
