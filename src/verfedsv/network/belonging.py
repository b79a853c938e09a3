"""Which training a client's folder is of, and how far: a second training must not replace the model of the first."""

from __future__ import annotations

from pathlib import Path

from verfedsv.errors import InputError
from verfedsv.federation.checkpoints import client_file, path_of_round
from verfedsv.files import read_whole, write_whole
from verfedsv.network.messages import Hello, Welcome

_TRAINING = "training.txt"
"""The file in a client's folder with the name of the training."""
_LONGEST = 100
"""Bytes of the name of a training, at most."""
_UNKNOWN = "unknown"


def newest_checkpoint(folder: Path) -> Path | None:
    """Return the checkpoint of the last round in a client's folder, None if there is none."""
    rounds = [path.stem.rpartition("-")[2] for path in folder.glob(f"{client_file(0)}-*.npz")]
    numbers = [int(each) for each in rounds if each.isdecimal()]
    return path_of_round(folder / client_file(0), max(numbers)) if numbers else None


def training_of(folder: Path) -> str:
    """Return the name of the training whose model a client's folder holds; empty if it holds none."""
    if newest_checkpoint(folder) is None:
        return ""
    path = folder / _TRAINING
    return read_whole(path, _LONGEST).decode("utf-8", "replace") if path.exists() else _UNKNOWN


def check_training(folder: Path, welcome: Welcome) -> None:
    """Raise InputError if a client's folder holds the model of another training than the server's."""
    if training_of(folder) not in ("", welcome.training):
        raise InputError(
            f"{folder} holds the model of another training, not of the {welcome.about}; name the folder of this one, "
            "or an empty one if it is new: --folder OTHER"
        )


def enter_training(folder: Path, welcome: Welcome) -> None:
    """Note in a client's folder which training it is of; raise InputError if it holds the model of another one."""
    check_training(folder, welcome)
    name = welcome.training.encode()
    if not 0 < len(name) <= _LONGEST:
        raise InputError("the server does not say which training this is")
    write_whole(folder / _TRAINING, name)


def check_hello(hello: Hello, training: str) -> None:
    """Raise InputError, at the server, if a client's folder holds the model of another training."""
    if hello.training not in ("", training):
        raise InputError(
            f"the folder of {hello.name!r} holds the model of another training: it has to name the folder of this one, "
            "or an empty one if it is new (--folder OTHER)"
        )


def check_place(hello: Hello, start: str, reached: int) -> None:
    """Raise InputError unless a client is where it was when it left; `reached` is its last message then."""
    why = ""
    if hello.start != start:
        why = "its folder is another, or empty"
    elif hello.sequence < reached:
        why = "the last messages are not in its folder, as after a power failure"
    if why:
        raise InputError(
            f"{hello.name!r} has lost where it was in this training ({why}): let the server be restarted, which takes "
            "all clients back to the last checkpoint"
        )
