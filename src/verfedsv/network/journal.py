"""What a client was asked since its last checkpoint, so that a killed one comes back to where it was."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

from verfedsv.errors import InputError
from verfedsv.federation.messages import Message
from verfedsv.files import naming, read_whole, write_whole
from verfedsv.network.wire import request_from_bytes, to_bytes

_MOST_BYTES = 2**36


class Journal:
    """Messages to a client, in a file: for each its length and checksum, 8 bytes, then the message.

    A message is written before it is carried out, and not forced to the disk: it survives the process, and not a power
    failure, after which the server goes back to the last checkpoint of all. A message that was not written completely
    is cut off before the next one is added.
    """

    def __init__(self, path: Path, client: str) -> None:
        self._path, self._client = path, client
        self._size: int | None = None  # of what was written completely; None before it was read

    def begin(self, *messages: Message) -> None:
        """Replace all messages by these, atomically."""
        content = b"".join(map(_packed, messages))
        write_whole(self._path, content)
        self._size = len(content)

    def add(self, message: Message) -> None:
        """Append a message."""
        if self._size is None:
            for _ in self:
                pass
        content, size = _packed(message), self._size or 0
        with naming(self._path), self._path.open("r+b" if self._path.exists() else "wb") as file:
            file.truncate(size)
            file.seek(size)
            file.write(content)
        self._size = size + len(content)

    def __iter__(self) -> Iterator[Message]:
        """Yield the messages, without one at the end that was not written completely."""
        self._size = 0
        if not self._path.exists():
            return
        content = memoryview(read_whole(self._path, _MOST_BYTES))
        while len(content) >= 8:
            size, checksum = int.from_bytes(content[:4], "little"), int.from_bytes(content[4:8], "little")
            part, content = bytes(content[8 : 8 + size]), content[8 + size :]
            if len(part) < size or zlib.crc32(part) != checksum:
                return
            try:
                message = request_from_bytes(part, self._client)
            except InputError:
                raise InputError(
                    f"{self._path} was written by another version; finish the training with that one"
                ) from None
            self._size += 8 + size
            yield message


def _packed(message: Message) -> bytes:
    content = to_bytes(message)
    return len(content).to_bytes(4, "little") + zlib.crc32(content).to_bytes(4, "little") + content
