"""Continue the transcript in a folder: find it, verify it, and cut off what a crash left unfinished."""

from __future__ import annotations

from verfedsv.errors import InputError, TranscriptError, TranscriptWarning, warn
from verfedsv.texts import count
from verfedsv.transcript import format as fmt
from verfedsv.transcript.description import Description, Head
from verfedsv.transcript.reader import Transcript
from verfedsv.transcript.segments import SegmentWriter
from verfedsv.transcript.storage import Storage
from verfedsv.transcript.verification import Verified
from verfedsv.untrusted import MOST_JSON_BYTES


def find_transcript(storage: Storage) -> Description | None:
    """Return the description of the transcript in a storage; None if it has no uploads yet."""
    there = None
    if storage.exists(fmt.DESCRIPTION):
        there = Description.from_json(storage.read(fmt.DESCRIPTION, MOST_JSON_BYTES))
    used = [name for name in storage.names() if fmt.segment_of(name) and storage.size(name)]
    if used and there is None:
        raise TranscriptError(
            f"{fmt.DESCRIPTION} is missing, but there is {min(used)}: restore it, or choose another folder"
        )
    is_lost = there is not None and there.mode is not None and not storage.exists(fmt.chain_file(1))
    return there if used or is_lost else None


def remove_unused(storage: Storage, head: Head) -> None:
    """Remove files that an earlier recorder, without records, wrote for another head than the one described."""
    if storage.exists(fmt.DESCRIPTION):
        there = Description.from_json(storage.read(fmt.DESCRIPTION, MOST_JSON_BYTES)).head
        for digest in {*there.state} - {*head.state}:
            storage.remove(fmt.tensor_file(digest))
    if head.program is None:
        storage.remove(fmt.PROGRAM)


def continue_transcript(
    storage: Storage, there: Description, given: Description, labels_file: bytes, segment_rounds: int | None
) -> tuple[SegmentWriter, Verified]:
    """Return a writer that continues a transcript, and what was verified of it.

    Raises InputError if a recorder with this description, labels and, unless None, `segment_rounds` cannot continue it.
    What a crash left unfinished is cut off, with a TranscriptWarning.
    """
    there.check_continues_with(given)
    if segment_rounds not in (None, there.segment_rounds):
        raise InputError(
            f"the folder holds a transcript in segments of {count(there.segment_rounds, 'round')}, which cannot be "
            f"continued with segment_rounds={segment_rounds}; leave that out"
        )
    transcript = Transcript(storage)
    if transcript.origin[1] != labels_file or there.classes != given.classes:
        raise InputError("the folder holds a transcript with other labels or no_gradient; choose another folder")
    verified = transcript.verify_more()
    writer = SegmentWriter(storage, there.segment_rounds)
    lost = writer.resume(verified.link)
    if lost:
        warn(f"the transcript ended in an unfinished record, now cut off ({lost})", TranscriptWarning)
    return writer, verified
