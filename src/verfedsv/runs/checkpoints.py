"""Checkpoints: a training as it was after some rounds, in a file."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.data.vertical import VerticalData
from verfedsv.errors import InputError
from verfedsv.federation import Federation, Moment, Steps
from verfedsv.files import writing
from verfedsv.losses import Array, Floats
from verfedsv.runs.live import LiveShares

SAVE_COST = 20
"""A checkpoint is written when training has gone on for so many times as long as the last one took to write."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A training after `n_rounds` rounds or time stamps, for which it wrote `n_records` records.

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
    def read(cls, path: Path) -> Checkpoint:
        """Return the checkpoint in a file."""
        try:
            with path.open("rb") as file, np.load(file) as arrays:
                content = dict(arrays)
            return cls(
                n_rounds=int(content["n_rounds"]),
                n_records=int(content["n_records"]),
                steps=content["steps"],
                live=content["live"],
                fingerprint=str(content["fingerprint"]),
                state={name: value for name, value in content.items() if "/" in name},
            )
        except Exception as error:  # what a damaged archive raises cannot be foreseen
            raise InputError(
                f"{path} cannot be read ({type(error).__name__}): it is damaged, or of another version. It may be "
                "deleted; training then starts over, and what it recorded is found in the transcript"
            ) from None

    def write(self, path: Path) -> None:
        """Write the checkpoint to the disk, whole, or leave the one that was there."""
        content: dict[str, Any] = {**vars(self), **self.state}
        del content["state"]
        with writing(path) as file:
            np.savez(file, **content)


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
