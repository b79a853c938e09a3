"""What a client was asked since its last checkpoint, so that a killed one comes back to where it was."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from verfedsv.errors import InputError
from verfedsv.federation.messages import Message
from verfedsv.files import read_whole, write_whole
from verfedsv.network.wire import request_from_bytes, to_bytes

_MOST_BYTES = 2**36


class Journal:
    """Messages to a client, in a file: for each its length and checksum, 8 bytes, then the message.

    A message is written before it is carried out, and not forced to the disk: it survives the process, and not a power
    failure, after which the server goes back to the last checkpoint of all.
    """

    def __init__(self, path: Path, client: str) -> None:
        self._path, self._client = path, client

    def begin(self, *messages: Message) -> None:
        """Replace all messages by these, atomically."""
        write_whole(self._path, b"".join(map(_packed, messages)))

    def add(self, message: Message) -> None:
        """Append a message."""
        with self._path.open("ab") as file:
            file.write(_packed(message))

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages, without one at the end that was not written completely."""
        if not self._path.exists():
            return
        content = memoryview(read_whole(self._path, _MOST_BYTES))
        while len(content) >= 8:
            size, checksum = int.from_bytes(content[:4], "little"), int.from_bytes(content[4:8], "little")
            part, content = bytes(content[8 : 8 + size]), content[8 + size :]
            if len(part) < size or zlib.crc32(part) != checksum:
                return
            try:
                yield request_from_bytes(part, self._client)
            except InputError:
                raise InputError(f"{self._path} was written by another version; delete the folder it is in") from None


def _packed(message: Message) -> bytes:
    content = to_bytes(message)
    return len(content).to_bytes(4, "little") + zlib.crc32(content).to_bytes(4, "little") + content
