"""Whether the transcript in a folder is the one that was signed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from verfedsv.errors import InputError, TranscriptError
from verfedsv.settlement.comparisons import Check, Difference
from verfedsv.settlement.statement import Statement
from verfedsv.shapley.result import count
from verfedsv.texts import LONGEST_NAME, shortened
from verfedsv.transcript import Stamp, Transcript
from verfedsv.transcript.reader import folder_of
from verfedsv.transcript.storage import is_being_written


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
    return transcript


def check_chain(transcript: Transcript, stated: Statement) -> Check:
    """Return that a whole transcript is the one that was signed; raise Difference if it is not."""
    head, clients, n_rounds = stated.content["head"], transcript.clients, transcript.n_rounds
    if transcript.head != head:
        if transcript.contains(head):
            more = n_rounds - stated.content["n_rounds"]
            raise Difference(f"the transcript has grown since the statement, by {count(more, 'round')}")
        both = count_both(stated, clients, n_rounds)
        raise Difference(f"the transcript is not that of the statement: rounds were cut off or replaced; {both}")
    if (n_rounds, clients) != (stated.content["n_rounds"], stated.clients):
        raise Difference(f"the clients or rounds of the statement are others: {count_both(stated, clients, n_rounds)}")
    return Check("chain", f"{count(n_rounds, 'round')}, head {head[:16]}…")


def count_both(stated: Statement, clients: Sequence[str], n_rounds: int) -> str:
    """Return how many clients and rounds were signed, and how many were found."""
    signed = f"{count(len(stated.clients), 'client')} and {count(stated.content['n_rounds'], 'round')}"
    return f"signed are {signed}, found {count(len(clients), 'client')} and {count(n_rounds, 'round')}"


def has_offset(transcript: Transcript) -> bool:
    """Return whether the server has a part of its own in any round."""
    return any(isinstance(record, Stamp) and record.offset is not None for record in transcript)


def say_own_part(transcript: Transcript) -> Iterator[str]:
    """Yield that the server's own part is more than an intercept, if it is: with it, the server predicts by itself."""
    offsets = (record.offset for record in transcript if isinstance(record, Stamp) and record.offset is not None)
    if any(own.ndim == 2 and (own != own[:1]).any() for own in offsets):
        yield (
            "the server's own part differs between samples: it is more than an intercept, and what the changes of "
            "clients are worth depends on it. Make sure that this was agreed"
        )


def say_absences(transcript: Transcript) -> Iterator[str]:
    """Yield who was declared absent, from how many rounds, if anybody was: the server alone says so."""
    rounds = Counter(name for record in transcript if isinstance(record, Stamp) for name in record.absent)
    if not rounds:
        return
    most = rounds.most_common(_MOST_NAMED)
    who = ", ".join(f"{shortened(name, LONGEST_NAME)!r} from {n_rounds:,}" for name, n_rounds in most)
    more = f" and {len(rounds) - _MOST_NAMED:,} more clients" if len(rounds) > _MOST_NAMED else ""
    yield f"declared absent, of {count(transcript.n_rounds, 'round')}: {who}{more}; ask them whether they were"


_MOST_NAMED = 10
