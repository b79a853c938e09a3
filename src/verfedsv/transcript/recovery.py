"""What a crash left unfinished, and what is damage: only the first is cut off."""

from __future__ import annotations

from verfedsv.errors import TranscriptError
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import ENTRY_SIZE, Segment
from verfedsv.transcript.framing import find_extent
from verfedsv.transcript.storage import Storage


def check_end(storage: Storage, segment: Segment) -> None:
    """Raise TranscriptError unless what lies after the last complete record is what a crash leaves: part of one more.

    A message is written before its entry. So a crash leaves part of a message, or a whole one with no entry or part of
    one; a power failure also entries of messages that did not come to the disk. Neither leaves a whole message with an
    entry that is not its own, or two whole messages.
    """
    uploads, chain = fmt.uploads_file(segment.number), fmt.chain_file(segment.number)
    end = segment.end
    rest = memoryview(storage.read(uploads))[end:]
    size = len(fmt.END_OF_STREAM)
    if rest[:size] != fmt.END_OF_STREAM:
        extent = find_extent(rest)
        if extent is None or extent.size > len(rest):
            return
        size = extent.size
    if segment.n_chain_after >= ENTRY_SIZE or size < len(rest):
        raise TranscriptError(
            f"{chain} is damaged: it does not say where the record ends that begins at byte {end:,} of {uploads}. "
            "Nothing was changed. Restore both files from a copy; or, to go on without that record and all after it, "
            f"cut {uploads} to {end} bytes and {chain} to {len(segment.entries) * ENTRY_SIZE}"
        )


def cut_off(storage: Storage, number: int, n_bytes: int, n_chain_bytes: int) -> str:
    """Cut the two files of a segment to so many bytes; return what was cut, in words."""
    lost = []
    for name, kept in ((fmt.uploads_file(number), n_bytes), (fmt.chain_file(number), n_chain_bytes)):
        size = storage.size(name)
        if size > kept:
            storage.truncate(name, kept)
            lost.append(f"{size - kept} bytes of {name}")
    return ", ".join(lost)
