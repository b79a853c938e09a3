"""What commands write and print."""

from __future__ import annotations

import errno
import sys
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from rich.console import Console

from verfedsv.errors import CompletionWarning, InputError, ToleranceWarning
from verfedsv.files import refuse_irregular, write_whole
from verfedsv.report import markdown
from verfedsv.report.terminal import labelled
from verfedsv.runs.folder import RunFolder
from verfedsv.settlement import statement
from verfedsv.settlement.documents import format_of
from verfedsv.settlement.extract import MAGIC
from verfedsv.settlement.keys import is_key
from verfedsv.settlement.result import CSV_BEGINNING
from verfedsv.texts import printable
from verfedsv.valuation.verdict import Reason

FileKind = Literal["report", "settlement", "valuation", "extract", "statement", "predictions", "model"]
_SUFFIXES: dict[FileKind, tuple[str, ...]] = {
    "settlement": (".csv", ".json"),
    "valuation": (".json",),
    "predictions": (".csv", ".parquet"),
    "model": (".npz",),
}
"""Allowed endings of names; for kinds that are not listed, any."""


def check_writable(path: Path, kind: FileKind) -> None:
    """Raise InputError, before any work, if a file of some kind cannot be written there.

    It may replace an earlier file of the same kind, but nothing else, least of all part of a run, a signed statement or
    a key. Predictions and models replace nothing: in such files, nothing says that this package wrote them.
    """
    if not path.name or path.is_dir():
        raise InputError(f"cannot write {path}: it is a folder; name a file")
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}")
    suffixes = _SUFFIXES.get(kind)
    if suffixes is not None and path.suffix.lower() not in suffixes:
        raise InputError(f"cannot write {path}: its name must end in {' or '.join(suffixes)}")
    refuse_irregular(path)
    is_there = path.exists() and path.stat().st_size > 0
    what = _what_is_kept(path) if is_there else None
    if what is not None:
        raise InputError(f"cannot write {path}: it is {what}, which is never overwritten; name another file with -o")
    if RunFolder.is_in_transcript(path):
        raise InputError(
            f"cannot write {path}: in the folder of a transcript any other file would fail the audit; name a file "
            "elsewhere with -o"
        )
    if _is_signed(path):
        raise InputError(
            f"cannot write {path}: the audit of the signed statement in that run would fail; name a file elsewhere "
            "with -o"
        )
    if path.exists() and kind in ("predictions", "model"):
        raise InputError(f"cannot write {path}: it exists; name another file with -o, or delete it")
    if is_there and not _is_of(path, kind):
        called = f"{'an' if kind == 'extract' else 'a'} {kind}"
        raise InputError(
            f"cannot write {path}: the existing file is not {called} that verfedsv wrote, and is not overwritten; name "
            "another file with -o, or delete it"
        )


def _what_is_kept(path: Path) -> str | None:
    """Return what kind of irreplaceable file this is; None if it is none."""
    if RunFolder.is_kept(path):
        return "part of a run"
    if is_key(path.read_bytes()):
        return "a key"
    return "a signed statement" if format_of(path) == statement.FORMAT else None


def _is_signed(path: Path) -> bool:
    """Return whether a file is part of what the statement in the folder of a run says, or would have to be."""
    run = RunFolder.around(path)
    if run is None or not run.statement_path.exists():
        return False
    name = path.resolve().relative_to(run.path).as_posix()
    is_listed = path.exists() and name in statement.Statement.read(run.statement_path).content["files"]
    return RunFolder.is_evidence(name) or is_listed


def _is_of(path: Path, kind: FileKind) -> bool:
    """Return whether this package wrote a file as one of that kind."""
    content = path.read_bytes()
    if kind == "extract":
        return content.startswith(MAGIC)
    if path.suffix.lower() == ".json":
        return format_of(path) == f"verfedsv {kind}"
    if kind == "settlement":
        return content.startswith(CSV_BEGINNING.encode())
    # A report may be JSON whatever its name is (--format), and a statement always is.
    return format_of(path) == f"verfedsv {kind}" or (kind == "report" and _is_report(content))


def _is_report(content: bytes) -> bool:
    """Return whether content is a report in HTML or Markdown, not a text that only mentions this package."""
    if content.startswith(b"<!DOCTYPE html>"):
        return b'<meta name="generator" content="verfedsv ' in content[:_HEAD_OF_A_PAGE]
    last = content.rstrip().rpartition(b"\n")[2]
    return content.startswith(markdown.BEGINNING.encode()) and last.startswith(b"Made by verfedsv ")


_HEAD_OF_A_PAGE = 2000
"""Bytes to search for the name of the generator, which ends at byte 800."""


def write_file(path: Path, content: str | bytes, *, overwrite: bool = True) -> None:
    """Write a file atomically, text as UTF-8."""
    try:
        write_whole(path, content.encode() if isinstance(content, str) else content, overwrite=overwrite)
    except FileExistsError:
        raise InputError(f"{path} already exists and is not overwritten; name another file with -o") from None
    except OSError as error:
        raise InputError(describe_os_error(error)) from None


def describe_os_error(error: OSError, path: Path | None = None, remedy: str = "") -> str:
    """Return which file or folder could not be used (`path` if the error does not say), why, and what to do."""
    where = error.filename2 or error.filename or path
    what = f"cannot use {where}: {error.strerror}" if where else str(error)
    advice = [_REMEDIES.get(error.errno or 0, ""), remedy]
    return ". ".join([what, *filter(None, advice)])


_REMEDIES = {
    errno.ENOSPC: "Free some space on that disk, or choose another folder",
    errno.EDQUOT: "Free some of your quota, or choose another folder",
    errno.EROFS: "That file system is read-only; choose another folder",
}


@contextmanager
def explain_os_errors(path: Path, remedy: str) -> Iterator[None]:
    """Turn an error of the operating system, such as a full disk, into an InputError that says what to do."""
    try:
        yield
    except BrokenPipeError:
        raise  # the reader of our output has gone
    except OSError as error:
        raise InputError(describe_os_error(error, path, remedy)) from None


def print_text(text: str) -> None:
    """Print a document as UTF-8 in any terminal: names must not become question marks."""
    sys.stdout.flush()
    sys.stdout.buffer.write(text.encode())
    sys.stdout.buffer.flush()


def print_notes(*lines: str, console: Console | None = None) -> None:
    """Print notes, by default to standard error."""
    print_reasons((Reason("note", "", line, "") for line in lines), console)


def print_reasons(reasons: Iterable[Reason], console: Console | None = None) -> None:
    """Print reasons not to trust values, each with its weight, by default to standard error, where lines are whole."""
    console = console or Console(stderr=True)
    for reason in reasons:
        console.print(labelled(as_shown(reason.text), reason.weight), highlight=False, soft_wrap=console.stderr)


@contextmanager
def explain_warnings(console: Console) -> Iterator[None]:
    """Collect the warnings of the block and print them at its end, one line each, without repetitions."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        for said_by_verdict in (CompletionWarning, ToleranceWarning):
            warnings.simplefilter("ignore", said_by_verdict)
        yield
    print_notes(*dict.fromkeys(str(warning.message) for warning in caught), console=console)


def as_shown(message: str) -> str:
    """Return a message with unprintable characters replaced and its line breaks kept."""
    return "\n".join(map(printable, message.split("\n")))
