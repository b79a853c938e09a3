"""Two clocks with one interface: a virtual one that jumps from event to event, and wall time."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import Protocol

from verfedsv.arguments import as_positive

_STEP = 0.01
"""Seconds between two looks whether a stamp that was held back is due."""


@dataclass(frozen=True)
class Actor:
    """Something that happens every `period` seconds, first after `period`: `act(step)` for step 0, 1, ..."""

    period: float
    act: Callable[[int], None]


IsDue = Callable[[int], bool]


def always(_: int) -> bool:
    """Return True."""
    return True


class Clock(Protocol):
    """Lets actors act, each at its own times."""

    def now(self) -> float:
        """Return the seconds since the training began."""

    def run(
        self, actors: Sequence[Actor], first_steps: Sequence[int], stamp: float, first: int, is_due: IsDue = always
    ) -> Iterator[int]:
        """Let actors act, and yield the number of each time stamp, k = first, first + 1, ..., at k * stamp seconds.

        `first_steps` are the numbers of steps that the actors have taken before. A stamp whose number is not yet due is
        held back, where actors can be late. Ends when the iterator is closed.
        """


class VirtualClock:
    """Runs events in order of time, without waiting; simultaneous ones in the order of the actors, stamps last.

    Times are multiples of a period, not sums, so that they do not drift, and whole nanoseconds, so that 3 x 0.1 s and
    1 x 0.3 s are the same.
    """

    def __init__(self) -> None:
        self._now = 0.0

    def now(self) -> float:
        return self._now

    def run(
        self,
        actors: Sequence[Actor],
        first_steps: Sequence[int],
        stamp: float,
        first: int,
        is_due: IsDue = always,  # noqa: ARG002  # nobody is late
    ) -> Iterator[int]:
        last = len(actors)
        pairs = zip(actors, first_steps, strict=True)
        # An actor may have been idle, so that its steps are fewer than the times that have passed.
        passed = [max(step, _n_multiples(actor.period, _multiple(first - 1, stamp))) for actor, step in pairs]
        events = [(_multiple(step + 1, actors[m].period), m, step) for m, step in enumerate(passed)]
        events.append((_multiple(first, stamp), last, first))
        heapq.heapify(events)
        while True:
            self._now, m, step = events[0]
            if m == last:
                heapq.heapreplace(events, (_multiple(step + 1, stamp), last, step + 1))
                yield step
            else:
                heapq.heapreplace(events, (_multiple(step + 2, actors[m].period), m, step + 1))
                actors[m].act(step)


def _multiple(number: int, period: float) -> float:
    return round(number * period, 9)


def _n_multiples(period: float, until: float) -> int:
    """Return how many multiples of a period, as `_multiple` rounds them, are at most `until`."""
    number = int(until / period)
    while _multiple(number + 1, period) <= until:
        number += 1
    while number and _multiple(number, period) > until:
        number -= 1
    return number


class RealClock:
    """Wall time: each actor has a thread, and stamps are yielded in the calling thread.

    A late actor does not catch up in a burst: it acts once for all the times it missed, and not for those before the
    clock began. Stamps may be late, but none is skipped.

    `speed` is relative to wall time. `begin` is the clock's time at the start, above 0 if a training continues.
    """

    def __init__(self, speed: float = 1.0, begin: float = 0.0) -> None:
        self._speed, self._offset = as_positive("speed", speed), begin
        self._started = time.monotonic()

    def now(self) -> float:
        return self._offset + (time.monotonic() - self._started) * self._speed

    def run(
        self, actors: Sequence[Actor], first_steps: Sequence[int], stamp: float, first: int, is_due: IsDue = always
    ) -> Iterator[int]:
        self._started = time.monotonic()
        stop = Event()

        def live(actor: Actor, step: int) -> None:
            number = max(step + 1, int(self._offset / actor.period) + 1)
            try:
                while not self._wait(number * actor.period, stop):
                    actor.act(step)
                    step, number = step + 1, max(number + 1, int(self.now() / actor.period))
            finally:
                stop.set()  # a failure ends the others, and is raised below

        with ThreadPoolExecutor(len(actors)) as pool:
            lives = [pool.submit(live, actor, step) for actor, step in zip(actors, first_steps, strict=True)]
            try:
                k = first
                while not self._wait(k * stamp, stop):
                    if is_due(k):
                        yield k
                        k += 1
                    else:
                        stop.wait(_STEP)
            finally:
                stop.set()
        for ended in lives:
            ended.result()

    def _wait(self, until: float, stop: Event) -> bool:
        """Wait for a time or for `stop`; return whether it was `stop`."""
        return stop.wait(max(0.0, (until - self.now()) / self._speed))
