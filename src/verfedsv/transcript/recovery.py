"""What a crash left unfinished, and what is damage: only the first is cut off."""

from __future__ import annotations

import pyarrow as pa

from verfedsv.errors import TranscriptError
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import Chain
from verfedsv.transcript.framing import find_extent
from verfedsv.transcript.storage import Storage


def check_end(storage: Storage) -> None:
    """Raise TranscriptError unless what lies after the last complete record is what a crash leaves: part of one more.

    A record is written before its entry in chain.bin. So a crash leaves part of a record, or a whole one with no entry
    or part of one; a power failure also entries of records that did not come to the disk. Neither leaves a whole
    record with an entry that is not its own, or two whole records.
    """
    content, uploads = storage.read(fmt.CHAIN), storage.read(fmt.UPLOADS)
    chain = Chain.of(content, uploads.size)
    end = chain.end(-1) if len(chain) else 0
    rest = memoryview(uploads)[end:]
    extent = find_extent(rest)
    if extent is None or extent.size > len(rest):
        return
    has_entry = content.size - chain.n_bytes >= chain.entry_size
    if has_entry or extent.size < len(rest):
        raise TranscriptError(
            f"{fmt.CHAIN} is damaged: it does not say where the record ends that begins at byte {end:,} of "
            f"{fmt.UPLOADS}. Nothing was changed. Restore both files from a copy; or, to go on without that record and "
            f"all after it, cut {fmt.UPLOADS} to {end} bytes and {fmt.CHAIN} to {chain.n_bytes}"
        )


def cut_off(storage: Storage, end: int | None = None) -> tuple[Chain, str]:
    """Cut what is unfinished, or lies beyond `end`, off the files; return the rest of the chain and what was cut."""
    content, n_uploads = storage.read(fmt.CHAIN), storage.read(fmt.UPLOADS).size
    chain = Chain.of(pa.py_buffer(content.to_pybytes()), n_uploads if end is None else end)
    last = chain.end(-1) if len(chain) else 0
    lost = []
    for name, size, kept in ((fmt.UPLOADS, n_uploads, last), (fmt.CHAIN, content.size, chain.n_bytes)):
        if size > kept:
            storage.truncate(name, kept)
            lost.append(f"{size - kept} bytes of {name}")
    return chain, ", ".join(lost)
