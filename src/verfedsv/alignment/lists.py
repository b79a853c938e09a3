"""The lists of points that a party holds in files: its own ids, and the sets of others that pass through it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedsv.alignment.points import SIZE, Points
from verfedsv.alignment.shuffles import Rows, StoredArray, store_permutation
from verfedsv.errors import InputError


class Parts:
    """Which of the parts of something have come. The same one may come again, with the same content."""

    def __init__(self, n_parts: int, what: str) -> None:
        self.n_parts, self.what = n_parts, what
        self._digests: dict[int, bytes] = {}

    def has(self, part: int, content: NDArray[Any]) -> bool:
        """Return whether this part has come already; raise InputError if it had another content."""
        known = self._digests.get(part)
        if known is not None and known != _digest(content):
            raise InputError(f"part {part:,} of {self.what} has come with another content; begin a new session")
        return known is not None

    def add(self, part: int, content: NDArray[Any]) -> None:
        self._digests[part] = _digest(content)

    def check_complete(self) -> None:
        """Raise InputError if some have not come."""
        if len(self._digests) < self.n_parts:
            raise InputError(f"only {len(self._digests):,} of {self.n_parts:,} parts of {self.what} have come yet")


class Opening:
    """Says of rows of a shuffled list where they were before, once for each row.

    `origin` is where each row was. There are `n_common` rows to open.
    """

    def __init__(self, origin: StoredArray, n_parts: int, whose: str) -> None:
        self.origin = origin
        self.parts = Parts(n_parts, f"the positions of {whose}")
        self._is_open = StoredArray(origin.path.with_suffix(".open"), len(origin), np.bool_)
        self._lock = Lock()

    def trace(self, part: int, positions: Rows) -> Rows:
        """Return where the rows of a part were; raise InputError if one was asked for before, or does not exist."""
        if len(positions) and positions.max() >= len(self.origin):
            raise InputError(f"position {positions.max():,} does not exist: there are {len(self.origin):,} points")
        with self._lock:
            if not self.parts.has(part, positions):
                if len(np.unique(positions)) < len(positions) or self._is_open.read(positions).any():
                    raise InputError(f"part {part:,} has positions that are repeated")
                self._is_open.write(positions, np.ones(len(positions), np.bool_))
                self.parts.add(part, positions)
        return self.origin.read(positions)


class PassingSet:
    """The set of another party: its points as they come, and, once all have, in a secret order."""

    def __init__(self, folder: Path, name: str, n_rows: int, n_parts: int, whose: str) -> None:
        self.parts = Parts(n_parts, f"the points of {whose}")
        self.origin = StoredArray(folder / f"{name}.origin", n_rows, np.uint32)
        self._target = store_permutation(folder / f"{name}.target", n_rows)
        self._points = StoredArray(folder / f"{name}.points", n_rows, np.uint8, SIZE)

    def put(self, rows: slice, points: Points) -> None:
        """Write the points of these rows, as they came, to where they belong."""
        target = self._target.read(rows)
        self._points.write(target, points)
        self.origin.write(target, np.arange(rows.start, rows.stop, dtype=np.uint32))

    def take(self, rows: slice) -> Points:
        """Return points in the secret order; raise InputError if some have not come."""
        self.parts.check_complete()
        return self._points.read(rows)

    def forget_points(self) -> None:
        """Keep only what is needed to open positions."""
        self._target.delete()
        self._points.delete()


def _digest(content: NDArray[Any]) -> bytes:
    return hashlib.sha256(content.tobytes()).digest()
