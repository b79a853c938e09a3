"""What an audit says of a transcript: that it is whole, who was absent, and what part the server has of its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from verfedsv.errors import InputError, TranscriptError
from verfedsv.runs.folder import RunFolder
from verfedsv.settlement.comparisons import Check, Difference
from verfedsv.settlement.statement import Statement
from verfedsv.shapley.result import count
from verfedsv.texts import LONGEST_NAME, shortened
from verfedsv.transcript import Stamp, Transcript


def open_whole(folder: RunFolder) -> Transcript:
    """Return a transcript whose chain holds; raise Difference, naming round and client, if it does not."""
    if folder.is_running:
        raise InputError("the training is still running, so it is not audited yet: wait until it has ended, or stop it")
    try:
        transcript = folder.open()
        transcript.verify()
        _ = transcript.n_rounds
    except TranscriptError as error:
        raise Difference(str(error)) from None
    return transcript


def check_chain(transcript: Transcript, stated: Statement) -> Check:
    """Return that a whole transcript is the one that was signed; raise Difference if it is not."""
    head, signed, found = stated.content["head"], stated.content["n_rounds"], transcript.n_rounds
    if transcript.head != head and transcript.contains(head):
        raise Difference(f"the transcript has grown since the statement, by {count(found - signed, 'round')}")
    if transcript.head != head:
        raise Difference(
            f"the transcript is not the one that was signed: rounds were cut off or replaced; signed are "
            f"{count(signed, 'round')}, found {count(found, 'round')}"
        )
    if (found, transcript.clients) != (signed, stated.clients):
        raise Difference("the transcript has other clients, or another number of rounds, than the statement says")
    return Check("chain", f"{count(found, 'round')}, head {head[:16]}…")


def say_server_and_absent(transcript: Transcript) -> Iterator[str]:
    """Yield who was declared absent, and that the server predicts by itself; nothing where neither is so.

    Of absences, the server alone says so. Its own part is more than an intercept if it differs between samples.
    """
    stamps = [record for record in transcript if isinstance(record, Stamp)]
    rounds = Counter(name for stamp in stamps for name in stamp.absent)
    if rounds:
        most = rounds.most_common(_MOST_NAMED)
        who = ", ".join(f"{shortened(name, LONGEST_NAME)!r} from {n_rounds:,}" for name, n_rounds in most)
        more = f" and {len(rounds) - _MOST_NAMED:,} more clients" if len(rounds) > _MOST_NAMED else ""
        yield f"declared absent, of {count(len(stamps), 'round')}: {who}{more}; ask them whether they were"
    offsets = (stamp.offset for stamp in stamps if stamp.offset is not None)
    if any(offset.ndim == 2 and (offset != offset[:1]).any() for offset in offsets):
        yield (
            "the server's own part differs between samples: it is more than an intercept, and what the changes of "
            "clients are worth depends on it. Make sure that this was agreed"
        )


_MOST_NAMED = 10
