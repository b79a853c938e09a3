"""Files that are written whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


def write_whole(path: Path, content: bytes, *, overwrite: bool = True) -> None:
    """Write a file whole, or leave the one that was there; see `writing`."""
    with writing(path, overwrite=overwrite) as file:
        file.write(content)


@contextmanager
def writing(path: Path, *, overwrite: bool = True) -> Iterator[IO[bytes]]:
    """Yield a file that takes its place when it is whole; whatever happens before that, nothing is left behind.

    Without `overwrite`, raise FileExistsError if something has that name, even if it came there in the meantime.
    """
    # Cut, as a name may be as long as the operating system allows.
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:100]}.")
    part = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # A temporary file is its owner's alone; this one may be read by whoever may read the others.
        mask = os.umask(0)
        os.umask(mask)
        part.chmod(0o666 & ~mask)
        if overwrite:
            part.replace(path)
        else:
            _give_name(part, path)
    finally:
        part.unlink(missing_ok=True)


def is_unfinished(name: str, whole: str) -> bool:
    """Return whether a name is that of a file which a killed process did not finish, and which was to have another."""
    return name.startswith(f".{whole}.")


def _give_name(part: Path, path: Path) -> None:
    """Give a file another name, if nothing has that name."""
    try:
        path.hardlink_to(part)
    except FileExistsError:
        raise
    except OSError:  # where there are no links, such as on FAT
        with path.open("xb") as copy, part.open("rb") as file:
            shutil.copyfileobj(file, copy)
