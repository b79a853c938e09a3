"""The intersection of fully blinded sets, which need not fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedsv.alignment.points import SIZE, Points
from verfedsv.alignment.shuffles import Rows
from verfedsv.errors import InputError
from verfedsv.texts import quoted

_ENTRY = np.dtype([("point", f"S{SIZE}"), ("position", "<u4")])
"""Points are compared as texts of 32 bytes; that these ignore zeros at the end makes no difference at equal lengths."""

_PER_BUCKET = 65_536
_MOST_BUCKETS = 64
"""Each is a file for each party, opened for each part."""


class Intersection:
    """Collects the fully blinded sets of all parties in files, and finds what is common.

    The common order is that of the blinded points. They are sorted into buckets by their first bits, and one bucket
    is in memory at a time.
    """

    def __init__(self, folder: Path, sizes: Mapping[str, int], per_bucket: int = _PER_BUCKET) -> None:
        self.n_common = 0
        self._folder, self._numbers = folder, {name: number for number, name in enumerate(sizes)}
        self._n_buckets = min(_MOST_BUCKETS, 1 + max(sizes.values()) // per_bucket)
        self._locks = {name: Lock() for name in sizes}

    def add(self, owner: str, start: int, points: Points) -> None:
        """Add a part of a party's set, which begins at position `start`."""
        entries = np.empty(len(points), _ENTRY)
        entries["point"] = np.ascontiguousarray(points).view(f"S{SIZE}").ravel()
        entries["position"] = np.arange(start, start + len(points))
        first_bits = points[:, 0].astype(np.int64) * 256 + points[:, 1]
        buckets = first_bits * self._n_buckets >> 16
        order = np.argsort(buckets, kind="stable")
        ends = np.cumsum(np.bincount(buckets, minlength=self._n_buckets))
        with self._locks[owner]:
            for bucket, rows in enumerate(np.split(order, ends[:-1])):
                if len(rows):
                    _append(self._bucket_file(owner, bucket), entries[rows])

    def find(self) -> int:
        """Return how many points are common; raise InputError if a set has a point twice."""
        for bucket in range(self._n_buckets):
            sets = {owner: self._read_bucket(owner, bucket) for owner in self._numbers}
            common = reduce(_in_both, (entries["point"] for entries in sets.values()))
            for owner, entries in sets.items():
                found = np.searchsorted(entries["point"], common)
                _append(self._positions_file(owner), np.ascontiguousarray(entries["position"][found]))
            self.n_common += len(common)
        return self.n_common

    def positions(self, owner: str, rows: slice) -> Rows:
        """Return where some of the common points, in their order, are in the set of a party."""
        return np.fromfile(self._positions_file(owner), "<u4", rows.stop - rows.start, offset=4 * rows.start)

    def _read_bucket(self, owner: str, bucket: int) -> NDArray[Any]:
        """Return the entries of a bucket, sorted by point."""
        path = self._bucket_file(owner, bucket)
        entries = np.fromfile(path, _ENTRY) if path.exists() else np.empty(0, _ENTRY)
        path.unlink(missing_ok=True)
        entries = entries[np.argsort(entries["point"])]
        if (entries["point"][1:] == entries["point"][:-1]).any():
            raise InputError(
                f"the set of {quoted([owner])} has a point twice: its ids are repeated, or somebody changed them"
            )
        return entries

    def _bucket_file(self, owner: str, bucket: int) -> Path:
        return self._folder / f"{self._numbers[owner]}-{bucket}.points"

    def _positions_file(self, owner: str) -> Path:
        return self._folder / f"{self._numbers[owner]}.positions"


def _in_both(some: NDArray[Any], others: NDArray[Any]) -> NDArray[Any]:
    return np.intersect1d(some, others, assume_unique=True)


def _append(path: Path, content: NDArray[Any]) -> None:
    with path.open("ab") as file:
        file.write(content.tobytes())
