"""The uploads of one client in a synchronous training, sorted by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array
from verfedsv.compiled import compiled
from verfedsv.threads import ordered_map, split

Integers = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Pattern:
    """Which samples were uploaded in which round; the same for all clients that uploaded the same batches.

    The observations of sample i are `starts[i]` to `starts[i + 1]`, in the order of time; observation p is from round
    `rounds[p]`. Entry k of the upload of round t is observation `positions[edges[t] + k]`.
    """

    starts: Integers
    rounds: NDArray[np.int32]
    positions: Array
    edges: Integers

    @classmethod
    def from_batches(cls, batches: Sequence[Array], n_samples: int) -> Pattern:
        """Return the pattern of one batch of sample numbers per round, without repetitions."""
        edges = np.cumsum([0, *map(len, batches)])
        n_observations = int(edges[-1])
        starts = np.zeros(n_samples + 1, np.int64)
        for batch in batches:
            _count(batch, starts[1:])
        np.cumsum(starts, out=starts)
        small = n_observations < 2**31
        rounds = np.empty(n_observations, np.int32)
        positions = np.empty(n_observations, np.int32 if small else np.int64)
        ends = starts[:-1].copy()
        for t, batch in enumerate(batches):
            _fill(t, batch, ends, rounds, positions[edges[t] : edges[t + 1]])
        return cls(starts, rounds, positions, edges)

    @property
    def n_rounds(self) -> int:
        return len(self.edges) - 1

    @property
    def n_samples(self) -> int:
        return len(self.starts) - 1

    @property
    def is_seen(self) -> NDArray[np.bool_]:
        """Which samples were ever uploaded, (samples,)."""
        return np.diff(self.starts) > 0

    def of_round(self, round_number: int) -> Array:
        """Return the observations of a round."""
        return self.positions[self.edges[round_number] : self.edges[round_number + 1]]

    def hold_out(self, fraction: float, seed: int) -> NDArray[np.bool_]:
        """Return a mask of randomly chosen observations, (observations,), that leaves one of each sample and round."""
        rng = np.random.default_rng(seed)
        is_held_out = rng.random(len(self.rounds), dtype=np.float32) < fraction
        n_of_sample = np.diff(self.starts)
        kept = self.starts[:-1] + (rng.random(self.n_samples) * n_of_sample).astype(np.int64)
        is_held_out[kept[n_of_sample > 0]] = False
        n_of_round = np.diff(self.edges)
        kept = self.edges[:-1] + (rng.random(self.n_rounds) * n_of_round).astype(np.int64)
        is_held_out[self.positions[kept[n_of_round > 0]]] = False
        return is_held_out

    def sort(self, embeddings: Sequence[Array], n_classes: int, n_threads: int) -> Array:
        """Return one client's uploads, (observations, classes), in the order of the pattern.

        `embeddings` are float32 or float64, (samples,) or (samples, classes), one array for each round.
        """
        if [array.size for array in embeddings] != (np.diff(self.edges) * n_classes).tolist():
            raise ValueError("the uploads are not those of the pattern")
        dtype = np.result_type(np.float32, *{array.dtype for array in embeddings})
        values = np.empty((len(self.rounds), n_classes), dtype)

        def scatter(part: slice) -> None:
            for t in range(part.start, part.stop):
                _scatter(embeddings[t].reshape(-1, n_classes), self.of_round(t), values)

        list(ordered_map(scatter, split(self.n_rounds, 16), n_threads))
        return values


def spread_evenly(numbers: Array, most: int) -> Array:
    """Return at most `most` of some numbers, evenly spaced."""
    return numbers[evenly_spaced(len(numbers), most)]


def evenly_spaced(n: int, most: int) -> NDArray[np.intp]:
    """Return at most `most` of the numbers from 0 to n - 1, evenly spaced."""
    return np.linspace(0, n - 1, min(n, most)).astype(np.intp)


@compiled
def _count(batch: Array, counts: Integers) -> None:
    for k in range(len(batch)):
        counts[batch[k]] += 1


@compiled
def _fill(t: int, batch: Array, ends: Integers, rounds: Array, positions: Array) -> None:
    for k in range(len(batch)):
        position = ends[batch[k]]
        rounds[position] = t
        positions[k] = position
        ends[batch[k]] = position + 1


@compiled
def _scatter(uploaded: Array, positions: Array, values: Array) -> None:
    for k in range(len(positions)):
        for c in range(values.shape[1]):
            values[positions[k], c] = uploaded[k, c]
