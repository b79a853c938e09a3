"""What happens on the network, as it is logged: sparingly, as a stranger could otherwise fill the disk with lines."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from verfedsv.texts import count

_MOST, _SECONDS = 30, 60.0


@dataclass(frozen=True)
class Event:
    """Something that happened on the network: `kind` is joined, left, refused or ignored."""

    kind: str
    client: str
    text: str


@dataclass
class _Minute:
    start: float
    n_events: int = 0


class Sparing:
    """Passes on at most 30 events of a client in a minute, then says how many it left out.

    All events of others than the `clients` share that number.
    """

    def __init__(
        self,
        on_event: Callable[[Event], None],
        clients: Iterable[str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._on_event, self._clock = on_event, clock
        self._minutes = {name: _Minute(-_SECONDS) for name in (*clients, "")}

    def __call__(self, event: Event) -> None:
        """Pass on an event, unless there were too many."""
        whose = event.client if event.client in self._minutes else ""
        minute, now = self._minutes[whose], self._clock()
        if now - minute.start >= _SECONDS:
            left_out = minute.n_events - _MOST
            if left_out > 0:
                self._on_event(Event("ignored", whose, f"{count(left_out, 'more line')} like those before"))
            minute.start, minute.n_events = now, 0
        minute.n_events += 1
        if minute.n_events <= _MOST:
            self._on_event(event)
