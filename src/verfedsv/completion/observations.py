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
        draws = HeldOut(fraction, seed, len(self.rounds), self.n_samples)
        is_held_out = draws.among(0, 0, self.starts)
        kept = draws.kept_of_rounds(np.diff(self.edges))
        is_held_out[self.positions[self.edges[:-1][kept >= 0] + kept[kept >= 0]]] = False
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
                place(embeddings[t].reshape(-1, n_classes), self.of_round(t), values)

        list(ordered_map(scatter, split(self.n_rounds, 16), n_threads))
        return values


@dataclass(frozen=True)
class HeldOut:
    """A random fraction of the observations of a client, any part of which can be drawn without the others."""

    fraction: float
    seed: int
    n_observations: int
    n_samples: int

    def among(self, first_observation: int, first_sample: int, starts: Integers) -> NDArray[np.bool_]:
        """Return a mask of the observations of successive samples that leaves one of each.

        Those of the i-th of them are `starts[i]` to `starts[i + 1]` - 1, counted from the first observation.
        """
        # A draw of the generator has 64 bits, of which a number in single precision takes half.
        skipped = first_observation % 2
        draws = self._draws(first_observation // 2).random(skipped + int(starts[-1]), dtype=np.float32)
        is_held_out = draws[skipped:] < self.fraction
        n_of_sample = np.diff(starts)
        chance = self._draws(self._n_before + first_sample).random(len(n_of_sample))
        kept = starts[:-1] + (chance * n_of_sample).astype(np.int64)
        is_held_out[kept[n_of_sample > 0]] = False
        return is_held_out

    def kept_of_rounds(self, sizes: Integers) -> Integers:
        """Return for each round which entry of its upload is not held out, -1 if it has none."""
        chance = self._draws(self._n_before + self.n_samples).random(len(sizes))
        return np.where(sizes > 0, (chance * sizes).astype(np.int64), -1)

    @property
    def _n_before(self) -> int:
        return -(-self.n_observations // 2)

    def _draws(self, n_skipped: int) -> np.random.Generator:
        """Return the generator after that many draws."""
        return np.random.Generator(np.random.PCG64(self.seed).advance(n_skipped))


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
def place(uploaded: Array, positions: Array, values: Array) -> None:
    """Write rows to their positions."""
    for k in range(len(positions)):
        for c in range(values.shape[1]):
            values[positions[k], c] = uploaded[k, c]
