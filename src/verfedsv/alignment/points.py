"""Ids as points of the group Ristretto255, and points multiplied by a secret number.

libsodium computes, in constant time; the package rbcl brings it along. Points are arrays of bytes, (points, 32).
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.alignment.digests import digests
from verfedsv.errors import InputError, how_to_install
from verfedsv.threads import available_threads, ordered_map, split

Points = NDArray[np.uint8]

SIZE = 32
"""Bytes of a point, and of a number that multiplies it."""

_HASH = 64
_MOST_AT_ONCE = 512
"""Points in one piece of work of a thread: some 20 ms."""


class _Sodium(NamedTuple):
    """The functions of libsodium that are called for each point; their arguments are addresses."""

    multiply: Callable[[int, int, int], int]
    from_hash: Callable[[int, int], int]
    random_scalar: Callable[[], bytes]


def multiply(points: Points, scalar: bytes, n_threads: int | None = None) -> Points:
    """Return each of these points multiplied by a number of 32 bytes.

    Raises InputError if one of them is not a point, or is the neutral element, which no id is hashed to.
    """
    sodium, source, result = _sodium(), np.ascontiguousarray(points), np.empty((len(points), SIZE), np.uint8)
    number = ctypes.create_string_buffer(scalar, SIZE)

    def multiply_some(rows: slice) -> None:
        # Whole addresses: 0.1 microseconds a call instead of 1 with an array for each point. Decoding a point checks
        # it, so that is not done again.
        factor, begin, to = ctypes.addressof(number), source.ctypes.data, result.ctypes.data
        for offset in range(SIZE * rows.start, SIZE * rows.stop, SIZE):
            if sodium.multiply(to + offset, factor, begin + offset) != 0:
                raise InputError(f"point {offset // SIZE + 1:,} of the part is none of Ristretto255, or is neutral")

    _do(multiply_some, len(points), n_threads)
    return result


def hash_ids(ids: pa.Array, prefix: bytes, n_threads: int | None = None) -> Points:
    """Return the point of each id: the hash of a prefix followed by the id, mapped to the group."""
    sodium, result = _sodium(), np.empty((len(ids), SIZE), np.uint8)
    source = np.frombuffer(digests(ids, prefix, "sha512"), np.uint8)

    def hash_some(rows: slice) -> None:
        begin, to = source.ctypes.data, result.ctypes.data
        for row in range(rows.start, rows.stop):
            sodium.from_hash(to + SIZE * row, begin + _HASH * row)

    _do(hash_some, len(ids), n_threads)
    return result


def check_points(points: Points, n_points: int) -> None:
    """Raise InputError unless these are bytes of so many points; `multiply` checks that they are points."""
    if points.dtype != np.uint8 or points.shape != (n_points, SIZE):
        raise InputError(
            f"a part must be bytes of shape {(n_points, SIZE)}; received {points.dtype} of shape {points.shape}"
        )


def check_group(points: Points) -> None:
    """Raise InputError, as `multiply` does, unless all of these are points."""
    multiply(points, (1).to_bytes(SIZE, "little"))


def random_scalar() -> bytes:
    """Return a secret number that multiplies points, uniform from 1 to the order of the group."""
    return _sodium().random_scalar()


def _do(work: Callable[[slice], None], n_points: int, n_threads: int | None) -> None:
    """Do some work in threads. libsodium runs without the interpreter lock: two threads are twice as fast."""
    n_threads = n_threads or available_threads()
    size = min(_MOST_AT_ONCE, max(1, -(-n_points // n_threads)))
    for _ in ordered_map(work, split(n_points, size), n_threads):
        pass


@cache
def _sodium() -> _Sodium:
    try:
        import rbcl
    except ImportError:
        raise InputError(f"alignment of ids needs rbcl: {how_to_install('net')}") from None
    library = rbcl._sodium
    _delete_copy(Path(library._name))
    two, three = (ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_void_p] * n) for n in (2, 3))
    return _Sodium(
        three(("crypto_scalarmult_ristretto255", library)),
        two(("crypto_core_ristretto255_from_hash", library)),
        rbcl.crypto_core_ristretto255_scalar_random,
    )


def _delete_copy(path: Path) -> None:
    """Delete the copy of libsodium that rbcl 1.1 writes for each process and leaves behind, 3 MB; it stays loaded."""
    if os.name == "posix" and path.parent == Path(tempfile.gettempdir()):
        path.unlink(missing_ok=True)
