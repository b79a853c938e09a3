"""`Chain`: the entries of chain.bin as an array, 40 bytes each however many there are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.errors import TranscriptError
from verfedsv.transcript import format as fmt

_ENTRY = np.dtype([("end", "<u8"), ("link", "<u8", 4)])


class Chain:
    """Of each message of a stream, in order, where it ends and the hash of it and of all before it."""

    def __init__(self, entries: NDArray[Any]) -> None:
        self._entries = entries

    @classmethod
    def of(cls, content: pa.Buffer, n_bytes: int) -> Chain:
        """Return the whole entries of chain.bin whose messages end within a stream of that many bytes.

        Raises TranscriptError if a message would not end after the one before it.
        """
        n_entries = content.size // _ENTRY.itemsize
        entries = np.frombuffer(content, _ENTRY, n_entries) if n_entries else np.empty(0, _ENTRY)
        ends = entries["end"]
        grows = ends > np.concatenate([np.zeros(1, ends.dtype), ends])[:-1]
        if not grows.all():
            raise TranscriptError(f"{fmt.CHAIN} is damaged: entry {int(grows.argmin())} ends before the one before it")
        return cls(entries[: int(np.searchsorted(ends, np.uint64(n_bytes), "right"))])

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def entry_size(self) -> int:
        """How many bytes of chain.bin each entry is."""
        return _ENTRY.itemsize

    @property
    def n_bytes(self) -> int:
        """How many bytes of chain.bin these entries are."""
        return len(self) * _ENTRY.itemsize

    def first(self, n_messages: int) -> Chain:
        """Return the entries of the first messages."""
        return Chain(self._entries[:n_messages])

    def end(self, index: int) -> int:
        """Return where a message ends."""
        return int(self._entries["end"][index])

    def link(self, index: int) -> bytes:
        """Return the hash up to a message."""
        link: bytes = self._entries["link"][index].tobytes()
        return link

    def contains(self, head: str) -> bool:
        """Return whether a hash, in hexadecimal, is among the links."""
        try:
            wanted = np.frombuffer(bytes.fromhex(head), "<u8")
        except ValueError:
            return False
        return wanted.shape == (4,) and bool((self._entries["link"] == wanted).all(axis=1).any())


assert _ENTRY.itemsize == len(fmt.pack_link(0, b""))  # noqa: S101  # one format, in two notations
