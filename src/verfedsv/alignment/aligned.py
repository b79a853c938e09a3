"""The result of an alignment for one party, kept in a file so that it need not be repeated."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from verfedsv.alignment.digests import aligned_checksum, fingerprint, portions
from verfedsv.alignment.shuffles import Rows
from verfedsv.data.ids import Ids
from verfedsv.errors import InputError
from verfedsv.files import read_whole, writing
from verfedsv.untrusted import read_json

_FORMAT, _VERSION = "verfedsv aligned ids", 1
_MOST_BYTES = 2**40
_REMEDY = "Delete it and align again"


@dataclass(frozen=True, eq=False)
class Aligned:
    """Which rows of a party's own file are the common samples, in the order that all parties have.

    `sizes` are the numbers of ids of all parties; session and checksum are the same for all of them.
    """

    rows: Rows
    session: str
    checksum: str
    sizes: Mapping[str, int]

    @property
    def n_common(self) -> int:
        return len(self.rows)

    @property
    def rates(self) -> dict[str, float]:
        """The fraction of each party's ids that all parties have."""
        return match_rates(self.sizes, self.n_common)


def match_rates(sizes: Mapping[str, int], n_common: int) -> dict[str, float]:
    """Return the fraction of the ids of each party that are common."""
    return {name: n_common / size for name, size in sizes.items()}


def write_aligned(path: Path, aligned: Aligned, own: Ids) -> None:
    """Write the result of an alignment of the ids `own` to a file, atomically.

    It has a line of JSON; where each id ends, in bytes, as int64; and the ids in the common order, as UTF-8. They are
    not encrypted.
    """
    lengths = np.empty(aligned.n_common, np.int64)
    np.concatenate([pc.binary_length(some) for some in portions(own.values, aligned.rows)] or [lengths], out=lengths)
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "session": aligned.session,
        "checksum": aligned.checksum,
        "sizes": dict(aligned.sizes),
        "n_common": aligned.n_common,
        "fingerprint": fingerprint(own.values),
    }
    with writing(path) as file:
        file.write(json.dumps(header).encode() + b"\n")
        file.write(np.cumsum(lengths, dtype="<i8").tobytes())
        for some in portions(own.values, aligned.rows):
            file.write("".join(some.to_pylist()).encode())


def read_aligned(path: Path, own: Ids) -> Aligned:
    """Return the result that `write_aligned` wrote, for the same ids, whose rows may be in another order since.

    Raises InputError if the file is damaged, or if ids were added or removed since.
    """
    content = read_whole(path, _MOST_BYTES)
    line, _, body = content.partition(b"\n")
    del content
    header = read_json(line, f"the first line of {path}")
    try:
        if (header["format"], header["version"]) != (_FORMAT, _VERSION):
            raise InputError(f"{path} is not of this version. {_REMEDY}")
        found = Aligned(np.empty(0, np.uint32), header["session"], header["checksum"], header["sizes"])
        ids = _read_ids(body, header["n_common"])
        session, is_sound = bytes.fromhex(found.session), _are_sizes(found.sizes, len(ids))
        before = header["fingerprint"]
    except (KeyError, TypeError, ValueError, AttributeError, pa.ArrowException):
        raise InputError(f"{path} is damaged. {_REMEDY}") from None
    if not is_sound or aligned_checksum(ids, session) != found.checksum:
        raise InputError(f"{path} is damaged: its ids do not have its checksum. {_REMEDY}")
    if before != fingerprint(own.values):
        raise InputError(f"the ids in {own.path} have changed since they were aligned in {path}. {_REMEDY}")
    return replace(found, rows=np.asarray(own.rows(ids), np.uint32))


def _read_ids(body: bytes, n_ids: int) -> pa.Array:
    """Return the ids in a file; raise ValueError or an exception of Arrow if there are none."""
    ends, text = np.frombuffer(body, "<i8", n_ids), pa.py_buffer(body).slice(8 * n_ids)
    if text.size != (ends[-1] if n_ids else 0):
        raise ValueError
    offsets = np.concatenate([np.zeros(1, np.int64), ends])
    ids = pa.LargeStringArray.from_buffers(n_ids, pa.py_buffer(offsets), text)
    ids.validate(full=True)
    return ids


def _are_sizes(sizes: object, n_common: int) -> bool:
    return isinstance(sizes, dict) and all(type(size) is int and size >= max(1, n_common) for size in sizes.values())
