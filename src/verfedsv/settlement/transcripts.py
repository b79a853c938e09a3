"""Whether the transcript in a folder is the one that was signed; if not, what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

import pyarrow as pa

from verfedsv.errors import InputError, TranscriptError
from verfedsv.settlement.comparisons import Check, Difference, check_nothing_is_missing
from verfedsv.settlement.statement import Statement
from verfedsv.shapley.result import count
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.reader import folder_of
from verfedsv.transcript.storage import is_being_written

_UNREADABLE = ValueError, TypeError, LookupError, OverflowError, OSError, pa.ArrowException
"""What a damaged transcript leads to."""


def open_whole(folder: Path) -> Transcript:
    """Return a transcript whose chain holds; raise Difference, naming round and client, if it does not."""
    if is_being_written(folder_of(folder)):
        raise InputError("the training is still running, so it is not audited yet: wait until it has ended, or stop it")
    try:
        transcript = Transcript.open(folder)
        transcript.verify()
        _ = transcript.n_rounds
    except TranscriptError as error:
        raise Difference(str(error)) from None
    except _UNREADABLE as error:
        raise Difference(f"the transcript was changed: it cannot be read ({error})") from None
    return transcript


def open_stated(folder: Path, stated: Statement, found: Mapping[str, str]) -> Transcript:
    """Return the transcript of a statement if its chain holds; `found` are hashes by path.

    What the statement has of each file tells which of them was changed, where the chain alone cannot.
    """
    try:
        return open_whole(folder)
    except Difference:
        check_nothing_is_missing(stated, found, only=fmt.FILES)
        changed = {
            PurePosixPath(name).name: name
            for name, digest in stated.content["files"].items()
            if found.get(name) != digest and PurePosixPath(name).name in fmt.FILES
        }
        n_whole = _count_whole_rounds(folder)
        if changed and n_whole is not None and n_whole < stated.content["n_rounds"]:
            which = ", ".join(map(repr, changed.values()))
            missing = _say_missing(n_whole, stated.content["n_rounds"])
            raise Difference(f"{missing}: {which} was changed, or cut off") from None
        if changed and fmt.UPLOADS not in changed:
            raise Difference(f"{next(iter(changed.values()))!r} was changed") from None
        raise


def _count_whole_rounds(folder: Path) -> int | None:
    """Return the number of rounds of a transcript if they are as they were written, whatever comes after them."""
    try:
        transcript = Transcript.open(folder)
        transcript.verify(may_go_on=True)
    except (TranscriptError, *_UNREADABLE):
        return None
    return transcript.n_rounds


def _say_missing(n_found: int, n_stated: int) -> str:
    if n_found + 1 == n_stated:
        return f"round {n_stated} of the transcript is missing"
    return f"rounds {n_found + 1} to {n_stated} of the transcript are missing"


def check_chain(transcript: Transcript, stated: Statement, found: Mapping[str, str]) -> Check:
    """Raise Difference unless a whole transcript is the one that was signed; `found` are hashes by path."""
    head = stated.content["head"]
    if transcript.head != head:
        check_nothing_is_missing(stated, found, only=fmt.FILES)
        if transcript.contains(head):
            more = transcript.n_rounds - stated.content["n_rounds"]
            raise Difference(f"the transcript has grown since the statement, by {count(more, 'round')}")
        raise Difference(_explain_other_head(transcript, stated, found))
    if transcript.n_rounds != stated.content["n_rounds"]:
        raise Difference(f"the statement is of {stated.content['n_rounds']} rounds; there are {transcript.n_rounds}")
    if transcript.description.clients != stated.clients:
        raise Difference("the clients of the statement are not those of the transcript")
    return Check("chain", f"{count(transcript.n_rounds, 'round')}, head {head[:16]}…")


def _explain_other_head(transcript: Transcript, stated: Statement, found: Mapping[str, str]) -> str:
    """Return why a whole transcript is not that of a statement: it lost its end, or is that of another run."""
    files = stated.content["files"]
    begin = [name for name in files if PurePosixPath(name).name in (fmt.DESCRIPTION, fmt.LABELS)]
    is_same_training = all(found.get(name) == files[name] for name in begin)
    n_stated, n_found = stated.content["n_rounds"], transcript.n_rounds
    if is_same_training and n_found < n_stated:
        return f"{_say_missing(n_found, n_stated)}: it was cut off"
    counts = count_both(stated, transcript.description.clients, n_found)
    what = "it was recorded anew" if is_same_training else "this is another run, or it was recorded anew"
    return f"the transcript is not that of the statement: {what}; {counts}"


def count_both(stated: Statement, clients: Sequence[str], n_rounds: int) -> str:
    """Return how many clients and rounds were signed, and how many were found."""
    signed = f"{count(len(stated.clients), 'client')} and {count(stated.content['n_rounds'], 'round')}"
    return f"signed are {signed}, found {count(len(clients), 'client')} and {count(n_rounds, 'round')}"
