"""Which samples a batch holds: a function of the seed and of its number, so that a training can go on anywhere."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from verfedsv.federation.batches import freeze
from verfedsv.losses import Array


def batch_of_round(round_number: int, n_samples: int, size: int, seed: int) -> Array:
    """Return the batch of a synchronous round (0, 1, ...): every epoch goes once through all samples, shuffled.

    The last batch of an epoch may be shorter.
    """
    epoch, number = divmod(round_number, -(-n_samples // size))
    return freeze(np.sort(_order(epoch, n_samples, seed)[number * size : (number + 1) * size]))


@lru_cache(maxsize=2)
def _order(epoch: int, n_samples: int, seed: int) -> Array:
    return np.random.default_rng([seed, epoch]).permutation(n_samples)


def batch_of_client(client: int, step: int, n_samples: int, size: int, seed: int) -> Array:
    """Return the batch of a step (0, 1, ...) of an asynchronous client: any samples, none twice."""
    if size >= n_samples:
        return freeze(np.arange(n_samples))
    rng = np.random.default_rng([seed, client, step])
    return freeze(np.sort(rng.choice(n_samples, size, replace=False, shuffle=False)))
