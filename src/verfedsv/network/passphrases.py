"""Where the passphrase of a private key comes from."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from verfedsv.errors import InputError
from verfedsv.files import read_whole, refuse_readable
from verfedsv.network.tls_keys import Passphrase

VARIABLE = "VERFEDSV_PASSPHRASE"

_LONGEST_FILE = 4096


def passphrase_from(file: Path | None = None, ask: Callable[[str], str] | None = None) -> Passphrase:
    """Return where to get a passphrase: a file, else the environment variable VERFEDSV_PASSPHRASE, else `ask`.

    `ask` is called with a prompt, and is None where nobody can be asked.
    """

    def passphrase(path: Path) -> bytes:
        if file is not None:
            return read_passphrase(file)
        if VARIABLE in os.environ:
            return os.environ[VARIABLE].encode()
        if ask is not None:
            return ask(f"Passphrase of {path}").encode()
        raise InputError(
            f"{path} is encrypted, and nobody can be asked for its passphrase here: set {VARIABLE}, or name a file "
            "with --passphrase-file"
        )

    return passphrase


def read_passphrase(path: Path) -> bytes:
    """Return the first line of a file that only its owner can read."""
    try:
        content = read_whole(path, _LONGEST_FILE)
    except OSError as error:
        raise InputError(f"cannot read the passphrase in {path}: {error.strerror}") from None
    refuse_readable(path, "the passphrase in", "use the key that it protects")
    return content.partition(b"\n")[0].rstrip(b"\r")
