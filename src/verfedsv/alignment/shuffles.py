"""Secret permutations, and arrays in files whose rows are written and read in any order: neither takes much memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from verfedsv.errors import InputError

Rows = NDArray[np.uint32]

MOST_ROWS = 2**32 - 1
"""Rows are numbered by 32 bits."""

_AT_ONCE = 2**18
_N_BUCKETS = 256


class StoredArray:
    """An array in a file of its own, mapped only while rows are written or read, so that it is not held in memory."""

    def __init__(self, path: Path, n_rows: int, dtype: DTypeLike, width: int | None = None) -> None:
        self.path, self.dtype = path, np.dtype(dtype)
        self.shape = (n_rows,) if width is None else (n_rows, width)
        n_bytes = int(np.prod(self.shape)) * self.dtype.itemsize
        with path.open("xb") as file:
            file.truncate(n_bytes)
            if n_bytes and hasattr(os, "posix_fallocate"):
                # Else a full disk would end the process, at the first write through the mapping.
                os.posix_fallocate(file.fileno(), 0, n_bytes)

    def __len__(self) -> int:
        return self.shape[0]

    def write(self, rows: slice | NDArray[Any], values: NDArray[Any]) -> None:
        """Replace some rows."""
        if len(self):
            np.memmap(self.path, self.dtype, "r+", shape=self.shape)[rows] = values

    def read(self, rows: slice | NDArray[Any]) -> NDArray[Any]:
        """Return a copy of some rows."""
        if not len(self):
            return np.empty(self.shape, self.dtype)
        return np.array(np.memmap(self.path, self.dtype, "r", shape=self.shape)[rows])

    def delete(self) -> None:
        """Delete the file."""
        self.path.unlink(missing_ok=True)


def check_positions(positions: Rows, n_positions: int) -> None:
    """Raise InputError unless these are so many positions."""
    if positions.dtype != np.uint32 or positions.shape != (n_positions,):
        what = f"received {positions.dtype} of shape {positions.shape}"
        raise InputError(f"a part must be uint32 of shape {(n_positions,)}; {what}")


def random_permutation(n_rows: int) -> Rows:
    """Return the numbers from 0 in an order that nobody can predict: that of random numbers of the operating system.

    A generator of NumPy would not do: from the part of its permutation that is opened, others might compute the rest.
    """
    return np.argsort(np.frombuffer(os.urandom(8 * n_rows), np.uint64)).astype(np.uint32)


def store_permutation(path: Path, n_rows: int, at_once: int = _AT_ONCE) -> StoredArray:
    """Write a secret permutation of `n_rows` to a file.

    More than `at_once` rows are dealt out to buckets at random, and each bucket is shuffled; all permutations are then
    still equally likely (Rao 1961, Sandelius 1962).
    """
    stored = StoredArray(path, n_rows, np.uint32)
    if n_rows <= at_once:
        stored.write(slice(None), random_permutation(n_rows))
        return stored
    # The rows of each portion, sorted by bucket; `ends` says where in a portion each bucket ends.
    sorted_rows = StoredArray(path.with_suffix(".part"), n_rows, np.uint32)
    starts = range(0, n_rows, at_once)
    ends = np.zeros((len(starts), _N_BUCKETS + 1), np.int64)
    for portion, start in enumerate(starts):
        buckets = np.frombuffer(os.urandom(min(at_once, n_rows - start)), np.uint8)
        sorted_rows.write(slice(start, start + at_once), start + np.argsort(buckets, kind="stable"))
        ends[portion, 1:] = start + np.cumsum(np.bincount(buckets, minlength=_N_BUCKETS))
        ends[portion, 0] = start
    done = 0
    for bucket in range(_N_BUCKETS):
        pieces = [sorted_rows.read(slice(*edges)) for edges in ends[:, bucket : bucket + 2] if edges[0] < edges[1]]
        if pieces:
            rows = np.concatenate(pieces)
            stored.write(slice(done, done + len(rows)), rows[random_permutation(len(rows))])
            done += len(rows)
    sorted_rows.delete()
    return stored
