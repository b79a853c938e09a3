"""A live connection of a client, at the server.

Its stream carries a request, then the answer to it, and nothing is read from it while no answer is owed: a client that
sends more than it was asked for fills the buffers of its own connection, and nobody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

import grpc

from verfedsv.errors import InputError
from verfedsv.federation.messages import Answer, Message
from verfedsv.network.messages import End, Hello
from verfedsv.network.reception import Refused
from verfedsv.network.wire import Assembly, answer_from_bytes, frames, next_message, to_bytes

_RECHECK = 5.0
"""Seconds after which the certificates of all that are connected are checked again."""

_MOST_OWED = 4
"""Messages that a client may leave unanswered; then it is hung up on, and begins again with the last."""

_LAST_WORDS = 5.0
"""Seconds that a client has to take what is being written when its connection is to end."""


class Session:
    """Sends what a client is asked, and takes what it answers; used in the event loop only.

    `check` raises Refused if the client is no longer admitted, and `take` gets each answer that was owed.
    """

    def __init__(self, hello: Hello, check: Callable[[], object], take: Callable[[Session, Answer], None]) -> None:
        self.hello, self.why = hello, "its connection ended"
        self._check, self._take = check, take
        self._outbox = asyncio.Queue[bytes | None]()  # None: hang up
        self._owed: dict[int, int] = {}  # largest size of each answer, by its sequence number
        self._is_owed, self._is_over = asyncio.Event(), asyncio.Event()
        self._refused: Refused | None = None
        self._last_message: End | None = None
        self._writing: asyncio.Task[None] | None = None

    def say(self, message: Message) -> None:
        """Send a message that is not answered."""
        self._outbox.put_nowait(to_bytes(message))

    def ask(self, content: bytes, sequence: int, limit: int) -> None:
        """Send a message, whose answer may have that many bytes, unless the client is no longer admitted."""
        if not self._check_again():
            return
        if len(self._owed) >= _MOST_OWED:
            self.end(f"it left {_MOST_OWED} messages unanswered")
            return
        self._owed[sequence] = limit
        self._outbox.put_nowait(content)
        self._is_owed.set()

    def end(self, why: str | None = None, last_message: End | None = None) -> None:
        """Hang up, after a last message if there is one."""
        self.why, self._last_message = why or self.why, last_message
        self._is_over.set()

    async def carry(self, incoming: AsyncIterator[bytes], context: Any) -> None:
        """Carry messages until either side ends it; raise Refused if it was for the client's doing."""
        self._writing = asyncio.ensure_future(self._write(context))
        # A write fails if the client is gone, which is no error, but asyncio would log it.
        self._writing.add_done_callback(lambda writing: writing.cancelled() or writing.exception())
        tasks = [
            asyncio.ensure_future(self._listen(incoming)),
            asyncio.ensure_future(self._is_over.wait()),
            asyncio.ensure_future(self._keep_checking()),
        ]
        try:
            done, _ = await asyncio.wait([self._writing, *tasks], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        _raise_first(done - {self._writing})
        if self._refused is not None:
            raise self._refused

    async def finish(self, end: End | None) -> None:
        """Write the last message, `end` if it has none of its own, instead of those that wait.

        A write that has begun is not cancelled, unless it takes long: gRPC could not tell the client any more how the
        call ended, and the client would wait for ever.
        """
        if self._writing is None:
            return
        while not self._outbox.empty():
            self._outbox.get_nowait()
        if (last := self._last_message or end) is not None:
            self.say(last)
        self._outbox.put_nowait(None)
        await asyncio.wait([self._writing], timeout=_LAST_WORDS)
        self._writing.cancel()

    async def _write(self, context: Any) -> None:
        while (content := await self._outbox.get()) is not None:
            for frame in frames(content):
                await context.write(frame)

    async def _listen(self, incoming: AsyncIterator[bytes]) -> None:
        """Take the answers that are owed; raise InputError for anything else."""
        while True:
            while not self._owed:
                self._is_owed.clear()
                await self._is_owed.wait()
            content = await next_message(incoming, Assembly(max(self._owed.values())))
            if content is None:
                # Rarely, gRPC refused a frame for its size: it tells the client, and here the stream just ends.
                self.why = "the connection was lost"
                return
            answer: Any = answer_from_bytes(content, self.hello.name)
            if answer.sequence not in self._owed or isinstance(answer, Hello):
                raise InputError(f"an answer to message {answer.sequence}, which nobody asked")
            del self._owed[answer.sequence]
            self._take(self, answer)

    async def _keep_checking(self) -> None:
        while self._check_again():
            await asyncio.sleep(_RECHECK)

    def _check_again(self) -> bool:
        """Return whether the client is still admitted; otherwise end the connection."""
        try:
            self._check()
        except Refused as refused:
            self._refused = refused
            self.end("its certificate is no longer accepted")
            return False
        return True


def _raise_first(done: Iterable[asyncio.Task[Any]]) -> None:
    """Raise what ended a connection; Refused if it was a message that cannot be read."""
    for task in done:
        error = task.exception()
        if isinstance(error, InputError):
            raise Refused(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if error is not None:
            raise error
