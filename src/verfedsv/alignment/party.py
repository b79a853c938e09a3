"""One party's side of an alignment: what it answers, and what it keeps to itself."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from types import TracebackType
from typing import Self

import numpy as np
import pyarrow as pa

from verfedsv.alignment.aligned import Aligned
from verfedsv.alignment.digests import check_checksums, checksum_of, portions, prefix_for
from verfedsv.alignment.lists import Opening, PassingSet
from verfedsv.alignment.points import Points, check_points, hash_ids, multiply, random_scalar
from verfedsv.alignment.session import Session
from verfedsv.alignment.shuffles import Rows, check_positions, store_permutation
from verfedsv.alignment.spellings import Spelling, describe_spelling
from verfedsv.data.ids import Ids
from verfedsv.errors import InputError
from verfedsv.texts import quoted


class Party:
    """A party with its ids, which answers the calls of a coordinator.

    The calls come in this order:

        introduce                       how many ids it has, and how they are written
        begin                           a new session: a fresh key, fresh permutations
        own_points, part by part        its own ids, hashed, blinded by its key and shuffled
        blind, part by part             points of another party's set, which it blinds
        blinded, part by part           that set, once it has all of it, in a secret order
        begin_opening                   how many ids are common; nothing is blinded any more
        open, part by part              positions in a set that it shuffled → where these points were when they came
        collect, part by part           positions in its own set, in the common order
        finish                          the checksum of its ids in the common order
        agree                           the checksums of all; if they are equal, `aligned` has its rows

    Calls may be repeated and get the same answer, until `agree` ends the session; those for different sets or parts may
    come at the same time and in any order. What is out of order, out of range or repeated with another content raises
    InputError, and changes nothing. The key is in memory only. The permutations are in files, in a private folder that
    `begin` makes in `folder` and `agree` or `close` deletes: 40 bytes for each id of another party, 5 for each own one.
    """

    def __init__(self, name: str, ids: Ids, folder: Path | None = None, n_threads: int | None = None) -> None:
        self.name, self.ids = name, ids
        self.aligned: Aligned | None = None
        self._folder, self._n_threads = folder, n_threads
        self._work: _Work | None = None
        self._lock = Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def session(self) -> Session | None:
        """The session that was begun last."""
        return self._work.session if self._work else None

    def close(self, why: str = "") -> None:
        """Delete the files of the session; whoever asks for more is told the reason. `aligned` remains."""
        if self._work:
            self._work.close(why)

    def introduce(self) -> Spelling:
        return describe_spelling(self.ids)

    def begin(self, session: Session) -> None:
        size = session.sizes.get(self.name)
        if size != len(self.ids):
            said = "does not have it" if size is None else f"says {size:,}"
            raise InputError(f"{self.name} has {len(self.ids):,} ids, and the session {said}")
        with self._lock:
            if self.session is None or not session.is_same_as(self.session):
                self.close()
                self.aligned, self._work = None, _Work(self.name, session, self._folder)

    def own_points(self, part: int) -> Points:
        work = self._blinding()
        rows = work.order.read(work.session.rows(part, len(self.ids)))
        points = hash_ids(self.ids.values.take(pa.array(rows)), work.prefix, self._n_threads)
        return multiply(points, work.key, self._n_threads)

    def blind(self, owner: str, part: int, points: Points) -> None:
        work = self._blinding()
        passing, rows = work.passing_set(owner), work.session.rows_of(owner, part)
        check_points(points, rows.stop - rows.start)
        if not passing.parts.has(part, points):
            passing.put(rows, multiply(points, work.key, self._n_threads))
            passing.parts.add(part, points)

    def blinded(self, owner: str, part: int) -> Points:
        work = self._blinding()
        return work.passing_set(owner).take(work.session.rows_of(owner, part))

    def begin_opening(self, n_common: int) -> None:
        with self._lock:
            self._working().begin_opening(n_common)

    def open(self, owner: str, part: int, positions: Rows) -> Rows:
        work = self._working()
        work.passing_set(owner)
        return work.trace(owner, part, positions)

    def collect(self, part: int, positions: Rows) -> None:
        work = self._working()
        rows = work.trace(self.name, part, positions)
        work.collected[work.session.rows(part, len(work.collected))] = rows

    def finish(self) -> str:
        work = self._working()
        work.opening(self.name).parts.check_complete()
        return checksum_of(portions(self.ids.values, work.collected), work.session.value)

    def agree(self, checksums: Mapping[str, str]) -> None:
        work = self._working()
        own = self.aligned.checksum if self.aligned else self.finish()
        if set(checksums) != set(work.session.sizes) or checksums[self.name] != own:
            raise InputError(f"the checksums are not those of all parties, or not {self.name}'s own, {own}")
        check_checksums(checksums)
        self.aligned = Aligned(work.collected, work.session.value.hex(), own, dict(work.session.sizes))
        self.close()

    def _working(self) -> _Work:
        if self._work is None:
            raise InputError(f"{self.name} was asked before a session began")
        return self._work

    def _blinding(self) -> _Work:
        work = self._working()
        work.check_is_blinding()
        return work


class _Work:
    """What a party has to remember in a session."""

    def __init__(self, name: str, session: Session, folder: Path | None) -> None:
        self.name, self.session = name, session
        self.key = random_scalar()
        self.prefix = prefix_for("point", session.value)
        self.collected = np.empty(0, np.uint32)
        self._n_common: int | None = None
        self._is_closed, self._why_closed = False, ""
        self._openings: dict[str, Opening] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="verfedsv-alignment-", dir=folder)
        place = Path(self._folder.name)
        self.order = store_permutation(place / "own.origin", session.sizes[name])
        # Files have numbers: names are from others.
        self._passing = {
            owner: PassingSet(place, str(number), size, session.n_parts(size), quoted([owner]))
            for number, (owner, size) in enumerate(session.sizes.items())
            if owner != name
        }

    def close(self, why: str) -> None:
        self.key, self._is_closed, self._why_closed = b"", True, self._why_closed or why
        self._folder.cleanup()

    def check_is_blinding(self) -> None:
        self._check_has_files()
        if self._n_common is not None:
            raise InputError(f"{self.name} was asked for points after the opening began; begin a new session")

    def passing_set(self, owner: str) -> PassingSet:
        if owner not in self._passing:
            raise InputError(f"{quoted([owner])} is not another party of this session")
        return self._passing[owner]

    def begin_opening(self, n_common: int) -> None:
        if n_common == self._n_common:
            return
        self.check_is_blinding()
        if not 0 <= n_common <= min(self.session.sizes.values()):
            raise InputError(f"{n_common:,} ids cannot be common: a party has {min(self.session.sizes.values()):,}")
        for passing in self._passing.values():
            passing.parts.check_complete()
        self._n_common, self.key = n_common, b""
        self.collected = np.empty(n_common, np.uint32)
        for passing in self._passing.values():
            passing.forget_points()
        n_parts = self.session.n_parts(n_common)
        origins = {self.name: self.order, **{owner: passing.origin for owner, passing in self._passing.items()}}
        self._openings = {owner: Opening(origin, n_parts, quoted([owner])) for owner, origin in origins.items()}

    def opening(self, owner: str) -> Opening:
        if self._n_common is None:
            raise InputError(f"{self.name} was asked for positions before the opening began")
        return self._openings[owner]

    def trace(self, owner: str, part: int, positions: Rows) -> Rows:
        opening = self.opening(owner)
        self._check_has_files()
        rows = self.session.rows(part, len(self.collected))
        check_positions(positions, rows.stop - rows.start)
        return opening.trace(part, positions)

    def _check_has_files(self) -> None:
        if self._is_closed:
            why = f": {self._why_closed}" if self._why_closed else ""
            raise InputError(f"the session has ended for {self.name}{why}; begin a new one")
