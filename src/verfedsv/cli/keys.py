"""`verfedsv keys`: keys to sign statements with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from verfedsv.cli.options import Command, Group
from verfedsv.settlement.keys import fingerprint, new_keys, read_public_key

keys = typer.Typer(
    cls=Group,
    name="keys",
    help="Keys to sign statements with: make a pair, show the fingerprint of one.",
    no_args_is_help=True,
)


@keys.command(cls=Command)
def new(
    name: Annotated[Path, typer.Argument(help="The name of the two files, without extension.", metavar="NAME")],
) -> None:
    """Make a pair of keys: NAME.key (secret, for signing) and NAME.pub (to publish).

    The private key is not encrypted: whoever can read the file can sign. Existing files are never overwritten.

    Exit codes: 0 made; 2 a file exists or cannot be written, with a message that explains why.

    Example: verfedsv keys new consortium
    """
    private, public = new_keys(name)
    typer.echo(f"{private}: keep this secret and safe; to sign with it: verfedsv statement RUN --key {private}")
    typer.echo(f"{public}: give this to everyone who checks your statements")
    typer.echo(f"fingerprint: {fingerprint(read_public_key(public))}")


@keys.command(cls=Command)
def show(path: Annotated[Path, typer.Argument(help="A private or public key.", metavar="FILE")]) -> None:
    """Print the fingerprint of a key, to compare over another channel.

    Exit codes: 0 printed; 2 the file is not a key that can be used, with a message that explains why.

    Example: verfedsv keys show consortium.pub
    """
    typer.echo(fingerprint(read_public_key(path, may_be_private=True)))
