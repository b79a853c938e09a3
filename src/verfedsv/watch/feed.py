"""`Feed`: the newest state, from one thread that writes to any number of connections that listen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import suppress


class Feed:
    """Hands the newest text to all listeners. One that is slow misses texts; nothing is kept for it."""

    def __init__(self, first: str) -> None:
        self._number, self._text, self._is_closed = 1, first, False
        self._listeners: set[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = set()
        # A signal handler may close the feed while its own thread is in it.
        self._lock = threading.RLock()

    @property
    def newest(self) -> str:
        """The last text."""
        return self._text

    @property
    def is_closed(self) -> bool:
        """Whether nothing will follow."""
        return self._is_closed

    def publish(self, text: str) -> None:
        """Hand a text to all who listen, now or later; one that is the last again is none."""
        with self._lock:
            if text == self._text:
                return
            self._number, self._text = self._number + 1, text
        self._wake()

    def close(self) -> None:
        """Let all listeners end."""
        self._is_closed = True
        self._wake()

    async def listen(self, heartbeat: float = 15.0) -> AsyncIterator[tuple[int, str] | None]:
        """Yield the newest text with its number, then each newer one, until closed; None if there is none for long."""
        listener = (asyncio.get_running_loop(), asyncio.Event())
        with self._lock:
            self._listeners.add(listener)
        seen = 0
        try:
            while not self._is_closed:
                listener[1].clear()
                number, text = self._number, self._text
                if number != seen:
                    seen = number
                    yield number, text
                    continue
                try:
                    await asyncio.wait_for(listener[1].wait(), heartbeat)
                except TimeoutError:
                    yield None
        finally:
            with self._lock:
                self._listeners.discard(listener)

    def _wake(self) -> None:
        with self._lock:
            listeners = tuple(self._listeners)
        for loop, event in listeners:
            with suppress(RuntimeError):  # a loop that has ended
                loop.call_soon_threadsafe(event.set)
