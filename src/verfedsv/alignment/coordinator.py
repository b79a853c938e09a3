"""Drives an alignment: relays everything between the parties, intersects the blinded sets, has positions opened."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from threading import Event, Lock
from typing import Protocol, TypeVar

from verfedsv.alignment.aligned import match_rates
from verfedsv.alignment.digests import check_checksums
from verfedsv.alignment.intersection import Intersection
from verfedsv.alignment.points import Points, check_group, check_points
from verfedsv.alignment.session import PART, Session
from verfedsv.alignment.shuffles import Rows, check_positions
from verfedsv.alignment.spellings import Spelling, compare_spellings
from verfedsv.errors import InputError
from verfedsv.texts import quoted

Result = TypeVar("Result")


class Participant(Protocol):
    """What a party answers, in this process or elsewhere; `Party` says what each call does."""

    @property
    def name(self) -> str: ...
    def introduce(self) -> Spelling: ...
    def begin(self, session: Session) -> None: ...
    def own_points(self, part: int) -> Points: ...
    def blind(self, owner: str, part: int, points: Points) -> None: ...
    def blinded(self, owner: str, part: int) -> Points: ...
    def begin_opening(self, n_common: int) -> None: ...
    def open(self, owner: str, part: int, positions: Rows) -> Rows: ...
    def collect(self, part: int, positions: Rows) -> None: ...
    def finish(self) -> str: ...
    def agree(self, checksums: Mapping[str, str]) -> None: ...


@dataclass(frozen=True)
class Alignment:
    """What is known to everybody after an alignment; each party has its rows in its `Party.aligned`.

    `doubts` are sentences on spellings that may have kept ids from matching.
    """

    session: str
    sizes: Mapping[str, int]
    n_common: int
    checksum: str
    doubts: Sequence[str]

    @property
    def rates(self) -> dict[str, float]:
        """The fraction of each party's ids that all parties have."""
        return match_rates(self.sizes, self.n_common)


def align(
    parties: Sequence[Participant],
    *,
    folder: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
    part_size: int = PART,
    n_in_flight: int = 2,
    check_sizes: Callable[[Mapping[str, int]], None] = lambda sizes: None,  # noqa: ARG005
) -> Alignment:
    """Find the ids that all parties have, without showing the others; docs/security.md says what each party learns.

    Args:
        parties: all parties, the server's own among them. Their order is that of the ring.
        folder: where a temporary folder is made, which takes 36 bytes for each id of each party.
        progress: called with the number of blinded points and their total, from several threads, one at a time.
        part_size: points in a message.
        n_in_flight: messages of one set that are under way at the same time, so that a party need not wait for them.
        check_sizes: called with the number of ids that each party says it has, before anything is written; what it
            raises ends the alignment.

    Returns what everybody may know. Raises InputError if ids are written so differently that none can match, if a party
    refuses a call or answers something else, or if the parties end with different checksums. It is no error if no id is
    common.

    >>> from verfedsv.alignment import Party, make_ids
    >>> bank, telco = Party("bank", make_ids(["1", "2", "3"])), Party("telco", make_ids(["3", "4", "5", "1"]))
    >>> align([bank, telco]).rates
    {'bank': 0.6666666666666666, 'telco': 0.5}
    >>> sorted(bank.aligned.rows.tolist())
    [0, 2]
    """
    by_name = {party.name: party for party in parties}
    if not 2 <= len(by_name) == len(parties):
        raise InputError(f"an alignment needs two or more parties with different names; received {[*by_name]}")
    with (
        ThreadPoolExecutor(len(parties)) as pool,
        tempfile.TemporaryDirectory(prefix="verfedsv-alignment-", dir=folder) as place,
    ):
        spellings = _ask_all(pool, by_name, lambda party: party.introduce())
        doubts = compare_spellings(spellings)
        sizes = {name: spelling.n_ids for name, spelling in spellings.items()}
        check_sizes(sizes)
        session = Session(os.urandom(32), sizes, part_size)
        _ask_all(pool, by_name, lambda party: party.begin(session))
        relay = _Relay(by_name, session, Intersection(Path(place), sizes), n_in_flight, _Counter(session, progress))
        relay.for_all_sets(pool, relay.blind)
        n_common = relay.intersection.find()
        _ask_all(pool, by_name, lambda party: party.begin_opening(n_common))
        relay.for_all_sets(pool, relay.open)
        checksums = _ask_all(pool, by_name, lambda party: party.finish())
        check_checksums(checksums)
        _ask_all(pool, by_name, lambda party: party.agree(checksums))
    return Alignment(session.value.hex(), sizes, n_common, checksums[parties[0].name], doubts)


class _Counter:
    """Counts blinded points, for all threads."""

    def __init__(self, session: Session, progress: Callable[[int, int], None] | None) -> None:
        self._done, self._total = 0, sum(session.sizes.values()) * len(session.sizes)
        self._progress, self._lock = progress, Lock()

    def add(self, n_points: int) -> None:
        with self._lock:
            self._done += n_points
            if self._progress:
                self._progress(self._done, self._total)


@dataclass(frozen=True)
class _Relay:
    """Passes sets and positions on from party to party, several sets at a time."""

    parties: Mapping[str, Participant]
    session: Session
    intersection: Intersection
    n_in_flight: int
    counter: _Counter
    is_stopped: Event = field(default_factory=Event)

    def for_all_sets(self, pool: ThreadPoolExecutor, work: Callable[[str], None]) -> None:
        """Do some work for the set of each party; the first error stops the others."""
        futures = [pool.submit(work, owner) for owner in self.session.sizes]
        try:
            done, _ = wait(futures, return_when=FIRST_EXCEPTION)
            for future in done:
                future.result()
        except BaseException:
            self.is_stopped.set()
            raise

    def blind(self, owner: str) -> None:
        """Have a set blinded by each party in turn, and add it to the intersection."""
        ring, n_parts = self.session.ring(owner), self.session.n_parts(self.session.sizes[owner])
        for giver, taker in pairwise(ring):
            self._for_parts(n_parts, partial(self._pass_on, owner, giver, taker))
        self._for_parts(n_parts, partial(self._gather, owner, ring[-1]))

    def open(self, owner: str) -> None:
        """Have the positions of common points in a set traced back to its owner."""
        self._for_parts(self.session.n_parts(self.intersection.n_common), partial(self._trace, owner))

    def _pass_on(self, owner: str, giver: str, taker: str, part: int) -> None:
        points = self._fetch(owner, giver, part)
        try:
            with _named(taker):
                self.parties[taker].blind(owner, part, points)
        except InputError:
            with _named(giver):  # whose points may be none: then it is not the taker's fault
                check_group(points)
            raise
        self.counter.add(len(points))

    def _gather(self, owner: str, giver: str, part: int) -> None:
        rows = self.session.rows_of(owner, part)
        self.intersection.add(owner, rows.start, self._fetch(owner, giver, part))

    def _fetch(self, owner: str, giver: str, part: int) -> Points:
        rows, party = self.session.rows_of(owner, part), self.parties[giver]
        with _named(giver):
            points = party.own_points(part) if giver == owner else party.blinded(owner, part)
            check_points(points, rows.stop - rows.start)
        if giver == owner:
            self.counter.add(len(points))
        return points

    def _trace(self, owner: str, part: int) -> None:
        rows = self.session.rows(part, self.intersection.n_common)
        positions = self.intersection.positions(owner, rows)
        for name in reversed(self.session.ring(owner)[1:]):
            with _named(name):
                positions = self.parties[name].open(owner, part, positions)
                check_positions(positions, rows.stop - rows.start)
        with _named(owner):
            self.parties[owner].collect(part, positions)

    def _for_parts(self, n_parts: int, step: Callable[[int], None]) -> None:
        def do(part: int) -> None:
            if self.is_stopped.is_set():
                raise InputError("the alignment was stopped")
            step(part)

        with ThreadPoolExecutor(self.n_in_flight) as pool:
            for _ in pool.map(do, range(n_parts)):
                pass


def _ask_all(
    pool: ThreadPoolExecutor, parties: Mapping[str, Participant], call: Callable[[Participant], Result]
) -> dict[str, Result]:
    """Return what each party answers, asked at the same time."""

    def ask(name: str) -> Result:
        with _named(name):
            return call(parties[name])

    return dict(zip(parties, pool.map(ask, parties), strict=True))


@contextmanager
def _named(name: str) -> Iterator[None]:
    """Say in an error which party it comes from."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{quoted([name])}: {error}") from error
