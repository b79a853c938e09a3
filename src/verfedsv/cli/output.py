"""What commands write and print."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from verfedsv.errors import InputError
from verfedsv.files import write_whole
from verfedsv.texts import printable


def check_writable(path: Path) -> None:
    """Raise InputError, before any work, if a file cannot be written there."""
    if not path.name or path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")


def write_file(path: Path, text: str, *, overwrite: bool = True) -> None:
    """Write a text file whole or not at all."""
    try:
        write_whole(path, text.encode(), overwrite=overwrite)
    except FileExistsError:
        raise InputError(f"{path} is already there, and is not overwritten; name another file with -o") from None
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror}") from None


def print_text(text: str) -> None:
    """Print a document as UTF-8, whatever the terminal is said to take: no name must become question marks."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def print_note(console: Console, message: str) -> None:
    """Print something that the user should know."""
    console.print(f"note: {as_shown(message)}", style="yellow", highlight=False, markup=False)


@contextmanager
def explain_warnings(console: Console) -> Iterator[None]:
    """Print the warnings of what runs within, one line each, when it is done."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for warning in caught:
        print_note(console, str(warning.message))


def as_shown(message: str) -> str:
    """Return a message in which what comes from files is only text; its own lines stay."""
    return "\n".join(map(printable, message.split("\n")))
