"""Blocks of samples, and sums that do not lose digits."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from verfedsv.arrays import Array, Floats

LARGEST_EMBEDDING = 1e60
"""Limit of the summed absolute embeddings and changes of a sample: their fourth powers must stay within float64."""

BLOCK_ELEMENTS = 2**18
"""Embeddings of all clients in one block, 2 MB of float64: smaller blocks lose time to the interpreter, larger ones
leave the cache."""

MOST_SAMPLES = 12_288
"""Samples of the largest block: larger ones were no faster and leave less to share among threads."""


@dataclass(frozen=True, slots=True)
class Block:
    """Some samples of a round, in the form the compiled loops take.

    `previous` and `current` are (players, samples * classes), contiguous, float32 or float64; the block begins at
    their sample `start` and is as long as `labels`. `offset`, (samples, classes), is the server's part of the sum
    unless the server is a player. `index` is the number of the block in one pass: it seeds random draws.
    """

    index: int
    previous: Array
    current: Array
    start: int
    n_classes: int
    labels: Array
    offset: Floats | None

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    def change(self) -> Floats:
        """Return the changes of the players' embeddings, (players, samples, classes)."""
        change = np.subtract(self._part(self.current), self._part(self.previous), dtype=np.float64)
        return change.reshape(len(change), self.n_samples, self.n_classes)

    def base(self) -> Floats:
        """Return the summed embedding before the round, the server's own part included, (samples, classes)."""
        base: Floats = self._part(self.previous).sum(axis=0, dtype=np.float64).reshape(self.n_samples, self.n_classes)
        return base if self.offset is None else base + self.offset

    def _part(self, embeddings: Array) -> Array:
        return embeddings[:, self.start * self.n_classes : (self.start + self.n_samples) * self.n_classes]


def block_size(n_players: int, n_classes: int) -> int:
    """Return the number of samples in a block of about `BLOCK_ELEMENTS` embeddings."""
    return min(MOST_SAMPLES, max(16, BLOCK_ELEMENTS // (n_players * n_classes)))


def compensated_sum(terms: Iterable[Floats]) -> Floats:
    """Return the sum of at least one array, compensated (Kahan): its rounding error does not grow with their number.

    >>> (compensated_sum([np.array([1.0]), *[np.array([1e-16])] * 10_000]) - 1).round(14)
    array([1.e-12])
    """
    rest = iter(terms)
    total = next(rest)
    lost = np.zeros_like(total)
    for own in rest:
        term = own - lost
        longer = total + term
        lost = (longer - total) - term
        total = longer
    return total
