"""Checkpoints: files of arrays, whose names, types and shapes are checked before they are read."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np

from verfedsv.arrays import Array
from verfedsv.data.vertical import ClientData
from verfedsv.errors import InputError
from verfedsv.federation.models import State
from verfedsv.files import opening, stored_members, sync_folder, writing

REMEDY = "Delete the folder of checkpoints to start over; the records in the transcript are kept"
SERVER = "server.npz"
"""The name of the server's checkpoint."""


def client_file(index: int) -> str:
    """Return how the names of a client's checkpoints begin; see `path_of_round`."""
    return f"client-{index}"


def path_of_round(begin: Path, round_number: int | str) -> Path:
    """Return the path of a client's checkpoint of a round, given how the paths of all of them begin."""
    return begin.with_name(f"{begin.name}-{round_number}.npz")


def as_bytes(content: Any) -> Array:
    """Return JSON as an array of bytes, which may be of any length; `read_json` takes its `tobytes()`."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def write_checkpoint(path: Path, state: State) -> None:
    """Write arrays to a file atomically; when it returns, the file survives a power failure."""
    path.parent.mkdir(exist_ok=True)
    with writing(path) as file:
        content: dict[str, Any] = dict(state)
        np.savez(file, **content)
    sync_folder(path.parent)


def read_checkpoint(path: Path, expected: State, whose: str) -> dict[str, Array]:
    """Return the arrays in a file; raise InputError unless they have the expected names, types and shapes.

    These are compared before the arrays are read, so that a file cannot take much more memory than the models do.
    `whose` is what the checkpoint should be of, for the message.
    """
    with _explained(path, whose):
        return _read_arrays(path, expected)


def read_any_checkpoint(path: Path, whose: str, *, leave_out: Collection[str] = ()) -> dict[str, Array]:
    """Return the arrays in a file, whatever they are, which take no more memory than the file has bytes.

    Raises InputError if they have more than 4 GiB: a file of that size may be sparse.
    """
    with _explained(path, whose), opening(path) as (file, size), zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in stored_members(archive, size)}
        wanted = {name: member for name, member in members.items() if name not in leave_out}
        if (total := sum(member.file_size for member in wanted.values())) > _MOST_BYTES:
            raise _MisfitError(f"its arrays have {total:,} bytes, and at most {_MOST_BYTES:,} are read")
        return {name: _parse(archive.read(member), name) for name, member in wanted.items()}


def pick(content: Any, name: str, what: str) -> Any:
    """Return a part of JSON content, called `what`; raise InputError if it has none of that name."""
    if not isinstance(content, dict) or name not in content:
        raise InputError(f"{what} has no {name!r}")
    return content[name]


def pick_numbers(arrays: State, name: str, shape: tuple[int, ...], kind: Literal["f", "i"] = "f") -> Array:
    """Return an array; raise InputError unless it has real (f) or whole numbers (i) of that shape."""
    if name not in arrays:
        raise InputError(f"it has no {name!r}")
    array = arrays[name]
    if array.dtype.kind != kind or array.shape != shape:
        wanted = f"{'whole' if kind == 'i' else 'real'} numbers of shape {shape}"
        raise InputError(f"{name} must be {wanted}, and is {array.dtype} of {array.shape}")
    return array


@contextmanager
def _explained(path: Path, whose: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a damaged archive may raise almost anything
        why = str(error) if isinstance(error, _MisfitError) else type(error).__name__
        if isinstance(error, OSError) and error.strerror:
            why = error.strerror
        raise InputError(
            f"{path} cannot be read ({why}): it is damaged, from another version, or not of {whose}. {REMEDY}"
        ) from None


def check_fingerprint(path: Path, found: Array, expected: Array, whose: str) -> None:
    """Raise InputError if a checkpoint was written by a training on other data."""
    if found != expected:
        raise InputError(
            f"the data of {whose} have changed since the training began of which {path} is a checkpoint; restore "
            "the earlier data to continue, or choose another folder to start over"
        )


class _MisfitError(ValueError):
    """The arrays in a checkpoint are not the expected ones."""


def _read_arrays(path: Path, expected: Mapping[str, Array]) -> dict[str, Array]:
    room = sum(_most_bytes(array) + _ROOM_FOR_A_HEADER for array in expected.values())
    with opening(path) as (file, size):
        if size > room + _ROOM_FOR_A_HEADER:
            raise _MisfitError(f"it has {size:,} bytes, more than its arrays take")
        with zipfile.ZipFile(file) as archive:
            members = {member.filename.removesuffix(".npy"): member for member in stored_members(archive, size)}
            if odd := set(members) ^ set(expected):
                raise _MisfitError(f"{min(odd)!a} is missing or unexpected")
            return {name: _parse(archive.read(member), name, expected[name]) for name, member in members.items()}


def _parse(content: bytes, name: str, expected: Array | None = None) -> Array:
    """Return an array in NumPy's format; raise _MisfitError if it is not of the expected type and shape."""
    buffer = io.BytesIO(content)
    if np.lib.format.read_magic(buffer) != (1, 0):
        raise _MisfitError(f"{name} is in another format")
    shape, is_fortran, kind = np.lib.format.read_array_header_1_0(buffer)
    n_bytes = len(content) - buffer.tell()
    if expected is not None:
        is_alike = (shape, kind) == (expected.shape, expected.dtype)
        if _are_bytes(expected):
            is_alike = (shape, kind) == ((n_bytes,), expected.dtype) and n_bytes <= _most_bytes(expected)
        if not is_alike:
            raise _MisfitError(f"{name} is {kind} of shape {shape}, not {expected.dtype} of {expected.shape}")
    if is_fortran or n_bytes != kind.itemsize * math.prod(shape):
        raise _MisfitError(f"{name} is {kind} of shape {shape} in {n_bytes:,} bytes")
    if expected is None and kind.kind not in _USUAL_KINDS:
        raise _MisfitError(f"{name} is {kind}, and neither real numbers nor text")
    array: Array = np.frombuffer(content, kind, offset=buffer.tell()).reshape(shape)
    if kind.kind == "f" and not (np.isfinite(array) | ((name == _DIVISORS) & np.isposinf(array))).all():
        raise _MisfitError(f"{name} has numbers that are not finite")
    if kind.kind == "i" and (array < 0).any():
        raise _MisfitError(f"{name} has negative numbers")
    return array


def _are_bytes(array: Array) -> bool:
    return array.dtype == np.uint8


def _most_bytes(array: Array) -> int:
    """Return the size limit of an array: JSON may differ, and a torch module grows once its optimiser has averages."""
    return 4 * array.nbytes + _ROOM_FOR_A_HEADER if _are_bytes(array) else array.nbytes


_ROOM_FOR_A_HEADER = 1 << 14
_MOST_BYTES = 1 << 32
_USUAL_KINDS = "biufU"
_DIVISORS = "divisor"
"""The only array with infinite numbers: columns that are constant in training are divided by infinity."""


def fingerprint_client(data: ClientData, is_test: Array) -> Array:
    """Return a hash of a client's columns with their names, and of which samples are test samples."""
    numeric = data.numeric
    arrays = [numeric] if isinstance(numeric, np.ndarray) else [numeric.data, numeric.indices, numeric.indptr]
    categories = None if data.categorical is None else data.categorical.tolist()
    return fingerprint([data.name, data.columns, numeric.shape, categories], [*arrays, is_test])


def fingerprint(content: Any, arrays: Iterable[Array]) -> Array:
    """Return a hash of JSON content and arrays."""
    digest = hashlib.sha256()
    for part in _parts(content, arrays):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return np.array(digest.hexdigest())


def _parts(content: Any, arrays: Iterable[Array]) -> Iterator[bytes]:
    yield json.dumps(content, default=str).encode()
    for array in arrays:
        yield json.dumps([array.dtype.str, array.shape]).encode()
        yield np.ascontiguousarray(array).tobytes()
