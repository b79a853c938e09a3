"""Checkpoints: a training as it was after some rounds, in a file."""

from __future__ import annotations

import hashlib
import io
import json
import math
import time
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.data.vertical import VerticalData
from verfedsv.errors import InputError
from verfedsv.federation import Federation, Moment, Steps
from verfedsv.files import stored_members, writing
from verfedsv.losses import Array, Floats
from verfedsv.runs.live import LiveShares

SAVE_COST = 20
"""A checkpoint is written when training has gone on for so many times as long as the last one took to write."""

REMEDY = "It may be deleted; training then starts over, and what it recorded is found in the transcript"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A training after `n_rounds` rounds, for which it wrote `n_records` records.

    `steps` are those of each client, in asynchronous training, and `live` the values so far, (clients,) both.
    `fingerprint` is that of the data. `state` is the federation's, empty before the first round.
    """

    n_rounds: int
    n_records: int
    steps: Array
    live: Floats
    fingerprint: str
    state: Mapping[str, Array] = field(default_factory=dict)

    @classmethod
    def at_start(cls, n_clients: int, fingerprint: str) -> Checkpoint:
        """Return the one of a training that has not begun."""
        return cls(0, 0, np.zeros(n_clients, np.int64), np.zeros(n_clients), fingerprint)

    @classmethod
    def read(cls, path: Path, start: Checkpoint, state: Mapping[str, Array]) -> Checkpoint:
        """Return the checkpoint in a file, which must be of the same training as the one at its start.

        `state` is that of the training's federation: names, types and shapes of all arrays must be the same. They are
        compared before anything is read, so that no file takes more memory than the models do.
        """
        try:
            content = _read_arrays(path, start._arrays(), state)
            return cls(
                n_rounds=int(content["n_rounds"]),
                n_records=int(content["n_records"]),
                steps=content["steps"],
                live=content["live"],
                fingerprint=str(content["fingerprint"]),
                state={name: content[name] for name in state if name in content},
            )
        except Exception as error:  # what a damaged archive raises cannot be foreseen
            why = str(error) if isinstance(error, _MisfitError) else type(error).__name__
            raise InputError(
                f"{path} cannot be read ({why}): it is damaged, of another training, or of another version. {REMEDY}"
            ) from None

    def write(self, path: Path) -> None:
        """Write the checkpoint to the disk, whole, or leave the one that was there."""
        with writing(path) as file:
            content: dict[str, Any] = {**self._arrays(), **self.state}
            np.savez(file, **content)

    def _arrays(self) -> dict[str, Any]:
        return {name: np.asarray(value) for name, value in vars(self).items() if name != "state"}


class _MisfitError(ValueError):
    """An array in a checkpoint is not what it should be."""


def _read_arrays(path: Path, own: Mapping[str, Array], state: Mapping[str, Array]) -> dict[str, Array]:
    """Return the arrays in a file, if they are of these names, types and shapes; those of the state may be absent."""
    expected = {**own, **state}
    room = sum(_most_bytes(array) + _ROOM_FOR_A_HEADER for array in expected.values())
    if (size := path.stat().st_size) > room + _ROOM_FOR_A_HEADER:
        raise _MisfitError(f"it has {size:,} bytes, more than such models and embeddings take")
    with path.open("rb") as file, zipfile.ZipFile(file) as archive:
        members = {member.filename.removesuffix(".npy"): member for member in stored_members(archive, size)}
        if set(members) not in (set(expected), set(own)):
            odd = set(members) ^ set(expected)
            raise _MisfitError(f"{min(odd)!a} is missing, or should not be there")
        arrays = {name: _parse(archive.read(member), name, expected[name]) for name, member in members.items()}
    if arrays["n_rounds"] and set(arrays) != set(expected):
        raise _MisfitError("the state of the models is missing")
    return arrays


def _parse(content: bytes, name: str, expected: Array) -> Array:
    """Return an array in NumPy's format; raise an error, before it is made, if it is not like another."""
    buffer = io.BytesIO(content)
    if np.lib.format.read_magic(buffer) != (1, 0):
        raise _MisfitError(f"{name} is in another format")
    shape, is_fortran, kind = np.lib.format.read_array_header_1_0(buffer)
    n_bytes = len(content) - buffer.tell()
    is_alike = (shape, kind) == (expected.shape, expected.dtype)
    if _is_saved_module(expected):
        is_alike = (shape, kind) == ((n_bytes,), expected.dtype) and n_bytes <= _most_bytes(expected)
    if is_fortran or not is_alike or n_bytes != kind.itemsize * math.prod(shape):
        raise _MisfitError(f"{name} is {kind} of shape {shape}, not {expected.dtype} of {expected.shape}")
    array: Array = np.frombuffer(content, kind, offset=buffer.tell()).reshape(shape)
    if kind.kind == "f" and not np.isfinite(array).all():
        raise _MisfitError(f"{name} has numbers that are not finite")
    if kind.kind == "i" and (array < 0).any():
        raise _MisfitError(f"{name} has negative numbers")
    return array


def _is_saved_module(array: Array) -> bool:
    return array.dtype == np.uint8


def _most_bytes(array: Array) -> int:
    """Return how long an array may be: a saved torch module grows when its optimiser begins to keep averages."""
    return 4 * array.nbytes + _ROOM_FOR_A_HEADER if _is_saved_module(array) else array.nbytes


_ROOM_FOR_A_HEADER = 1 << 14


class Saver:
    """Writes checkpoints, not more often than is worth it."""

    def __init__(self, path: Path, federation: Federation, live: LiveShares, fingerprint: str) -> None:
        self._path, self._federation, self._live, self._fingerprint = path, federation, live, fingerprint
        self._took, self._last = 0.5, time.monotonic()

    def is_due(self) -> bool:
        """Return whether it is time for another one."""
        return time.monotonic() - self._last > SAVE_COST * self._took

    def save(self, moment: Moment, steps: Steps) -> None:
        """Write the training as it is now; the records that the checkpoint counts are on the disk before it is."""
        begin = time.monotonic()
        values = self._live.values_at(moment)
        with self._federation.lock:
            self._federation.tape.sync()
            Checkpoint(
                n_rounds=moment.n_rounds,
                n_records=self._federation.tape.n_records,
                steps=np.array(steps.of_clients),
                live=values,
                fingerprint=self._fingerprint,
                state=self._federation.state(),
            ).write(self._path)
        self._last = time.monotonic()
        self._took = self._last - begin


def fingerprint(data: VerticalData) -> str:
    """Return a hash of the data of all clients, the labels, and which samples are to test on."""
    digest = hashlib.sha256()
    for part in _parts(data):
        digest.update(len(part).to_bytes(8, "little"))
        digest.update(part)
    return digest.hexdigest()


def _parts(data: VerticalData) -> Iterator[bytes | memoryview]:
    yield json.dumps([data.names, data.n_classes]).encode()
    yield from _bytes_of(data.labels)
    yield from _bytes_of(data.is_test)
    for client in data.clients:
        numeric = client.numeric
        if isinstance(numeric, np.ndarray):
            yield from _bytes_of(numeric)
        else:
            yield json.dumps(numeric.shape).encode()
            for array in (numeric.data, numeric.indices, numeric.indptr):
                yield from _bytes_of(array)
        categories = None if client.categorical is None else client.categorical.tolist()
        yield json.dumps(categories, default=str).encode()


def _bytes_of(array: Array) -> Iterator[bytes | memoryview]:
    yield json.dumps([array.dtype.str, array.shape]).encode()
    yield np.ascontiguousarray(array).tobytes()
