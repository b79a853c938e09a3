"""What the commands of a network share."""

from __future__ import annotations

import os
from datetime import datetime
from importlib.util import find_spec
from typing import Annotated

import typer

from verfedsv.addresses import is_loopback
from verfedsv.errors import InputError, how_to_install

Insecure = Annotated[
    bool,
    typer.Option("--insecure", help="Without TLS: anybody on this machine can be anybody. Only on loopback addresses."),
]


def import_network() -> None:
    """Raise InputError unless the packages for networks are installed; let gRPC print nothing."""
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # what matters, we say ourselves
    missing = [name for name in ("grpc", "google.protobuf", "rbcl") if not _is_there(name)]
    if missing:
        raise InputError(f"this needs {', '.join(missing)}: {how_to_install('net')}")


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def check_loopback(address: str) -> None:
    """Raise InputError unless HOST:PORT can be reached from this machine only."""
    if not is_loopback(address):
        raise InputError(
            f"--insecure is for loopback addresses, such as 127.0.0.1:8443; {address} can be reached from other "
            "machines. Use certificates: verfedsv keys ca"
        )


def now() -> str:
    """Return the time of day."""
    return datetime.now().astimezone().strftime("%H:%M:%S")
