"""Hashes of ids: checksums of ids in an order, and fingerprints of ids in any order."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from verfedsv.errors import InputError
from verfedsv.texts import quoted

_AT_ONCE = 65_536
"""Ids that are text of Python at a time: some 5 MB."""


def prefix_for(purpose: str, session: bytes = b"") -> bytes:
    """Return what ids are hashed with, so that no hash for one purpose or session is of use for another."""
    return b"verfedsv alignment 1, %s, %d bytes: %s" % (purpose.encode(), len(session), session)


def digests(ids: pa.Array, prefix: bytes, algorithm: Literal["sha256", "sha512"] = "sha256") -> bytes:
    """Return the hashes of a prefix followed by each id in UTF-8, one after the other."""
    algorithm_of = hashlib.sha256 if algorithm == "sha256" else hashlib.sha512
    return b"".join([algorithm_of(prefix + text.encode()).digest() for text in ids.to_pylist()])


def aligned_checksum(ids: pa.Array | Sequence[str], session: bytes = b"") -> str:
    """Return a hash of ids in their order, which is the same for all parties whose rows are aligned.

    It is SHA-256 over the pseudonyms of the ids, which are hashes that differ from session to session. Data that are
    aligned already need no session. Whoever can guess all ids and their order can recognise the checksum.

    >>> aligned_checksum(["a", "b"]) == aligned_checksum(["b", "a"])
    False
    """
    return checksum_of(portions(ids), session)


def checksum_of(ids: Iterable[pa.Array], session: bytes = b"") -> str:
    """Return the same of ids that come in portions."""
    digest, prefix = hashlib.sha256(prefix_for("order", session)), prefix_for("pseudonym", session)
    for some in ids:
        digest.update(digests(some, prefix))
    return digest.hexdigest()


def check_checksums(checksums: Mapping[str, str]) -> None:
    """Raise InputError unless all parties, by name, have the same checksum."""
    first, *others = checksums
    differing = [name for name in others if checksums[name] != checksums[first]]
    if differing:
        raise InputError(
            f"the rows of {quoted(differing)} are not the samples of {quoted([first])} in the same order: their "
            "checksums differ. Align again; if data are said to be aligned, correct the files"
        )


def fingerprint(ids: pa.Array) -> str:
    """Return a hash of all ids of a party, whatever their order, by which it notices that its file has changed.

    It is the sum of their hashes, which is no proof against somebody who looks for ids with the same sum.
    """
    total, prefix = np.zeros(4, np.uint64), prefix_for("own ids")
    for some in portions(ids):
        total += np.frombuffer(digests(some, prefix), "<u8").reshape(-1, 4).sum(axis=0, dtype=np.uint64)
    return total.astype("<u8").tobytes().hex()


def portions(ids: pa.Array | Sequence[str], rows: NDArray[Any] | None = None) -> Iterator[pa.Array]:
    """Yield ids in their order, or in that of `rows`, some at a time."""
    values = ids if isinstance(ids, pa.Array) else pa.array(ids, pa.large_string())
    for start in range(0, len(values) if rows is None else len(rows), _AT_ONCE):
        some = slice(start, start + _AT_ONCE)
        yield values[some] if rows is None else values.take(pa.array(rows[some]))
