"""Alignment of ids: which samples all parties have, without showing the others. docs/security.md has the protocol."""

from verfedsv.alignment.aligned import Aligned, read_aligned, write_aligned
from verfedsv.alignment.coordinator import Alignment, Participant, align
from verfedsv.alignment.digests import aligned_checksum, check_checksums
from verfedsv.alignment.party import Party
from verfedsv.alignment.session import Session
from verfedsv.alignment.spellings import Spelling, make_ids

__all__ = [
    "Aligned",
    "Alignment",
    "Participant",
    "Party",
    "Session",
    "Spelling",
    "align",
    "aligned_checksum",
    "check_checksums",
    "make_ids",
    "read_aligned",
    "write_aligned",
]
