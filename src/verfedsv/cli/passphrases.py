"""Passphrases of private keys, asked for where somebody can answer."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from verfedsv.errors import InputError
from verfedsv.network.passphrases import VARIABLE, passphrase_from, read_passphrase
from verfedsv.network.tls_keys import Passphrase

Encrypt = Annotated[
    bool, typer.Option("--passphrase", help=f"Encrypt the key; the passphrase is asked for, or taken from {VARIABLE}.")
]
PassphraseFile = Annotated[
    Path | None,
    typer.Option(help=f"A file with the passphrase of the key, in place of {VARIABLE} or a prompt.", metavar="FILE"),
]


def existing_passphrase(file: Path | None) -> Passphrase:
    """Return where to get the passphrase of a key, if it has one."""
    return passphrase_from(file, _ask if sys.stdin.isatty() else None)


def new_passphrase(wanted: bool, file: Path | None) -> bytes | None:
    """Return the passphrase to encrypt a new key with, or None for a key without; a prompt asks twice."""
    if file is not None:
        return read_passphrase(file)
    if not wanted:
        return None
    if VARIABLE in os.environ:
        return os.environ[VARIABLE].encode()
    if not sys.stdin.isatty():
        raise InputError(
            f"nobody can be asked for a passphrase here: set {VARIABLE}, or name a file with --passphrase-file"
        )
    text: str = typer.prompt("New passphrase", hide_input=True, confirmation_prompt="The same again")
    return text.encode()


def _ask(prompt: str) -> str:
    text: str = typer.prompt(prompt, hide_input=True, err=True)
    return text
