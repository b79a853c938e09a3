"""Which samples each step of a training uses, and when: functions of the seed, so that it can resume at any step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from verfedsv.arguments import as_positive, as_whole
from verfedsv.arrays import Array
from verfedsv.errors import InputError
from verfedsv.federation.roster import Roster


@dataclass(frozen=True)
class SynchronousSchedule:
    """The number of rounds, and the batch size, which in the paper is at most the smallest tau of all clients.

    Without a `roster`, all clients take part in all rounds.
    """

    batch_size: int
    n_rounds: int
    seed: int = 0
    roster: Roster | None = None

    def __post_init__(self) -> None:
        as_whole("batch_size", self.batch_size, at_least=1)
        as_whole("n_rounds", self.n_rounds, at_least=1)
        as_whole("seed", self.seed, at_least=0)

    @classmethod
    def of_epochs(cls, n_epochs: float, batch_size: int, n_samples: int, seed: int = 0) -> SynchronousSchedule:
        """Return the schedule of a number of epochs."""
        n_batches = -(-as_whole("n_samples", n_samples, at_least=1) // as_whole("batch_size", batch_size, at_least=1))
        n_rounds = round(as_positive("n_epochs", n_epochs) * n_batches)
        if n_rounds < 1:
            raise InputError(
                f"epochs = {n_epochs:g} is less than one round of {batch_size:,} out of {n_samples:,} samples; train "
                "for more epochs, or set rounds"
            )
        return cls(batch_size, n_rounds, seed)


@dataclass(frozen=True)
class AsynchronousSchedule:
    """For each client the seconds between uploads and the batch size (tau); the length and number of rounds.

    Without a `roster`, all clients take part in all rounds.
    """

    periods: Sequence[float]
    batch_sizes: Sequence[int]
    stamp_every: float
    n_rounds: int
    seed: int = 0
    roster: Roster | None = None

    def __post_init__(self) -> None:
        periods, sizes = _as_list("periods", self.periods), _as_list("batch_sizes", self.batch_sizes)
        if len(periods) != len(sizes):
            raise InputError(f"periods has {len(periods)} clients and batch_sizes {len(sizes)}")
        for m, (period, size) in enumerate(zip(periods, sizes, strict=True)):
            as_positive(f"periods[{m}]", period)
            as_whole(f"batch_sizes[{m}]", size, at_least=1)
        as_whole("seed", self.seed, at_least=0)
        end = as_positive("stamp_every", self.stamp_every) * as_whole("n_rounds", self.n_rounds, at_least=1)
        if min(periods) > end + 1e-9:
            raise InputError(
                f"no client uploads before the end of the last round: the shortest period is {min(periods)} seconds, "
                f"and {self.n_rounds} rounds of {self.stamp_every} seconds end after {end}"
            )
        object.__setattr__(self, "periods", tuple(periods))
        object.__setattr__(self, "batch_sizes", tuple(sizes))


def _as_list(name: str, values: Any) -> list[Any]:
    try:
        result = list(values)
    except TypeError:
        result = []
    if not result:
        raise InputError(f"{name} must hold a number for each client; received {values!r}")
    return result


def batch_of_round(round_index: int, n_samples: int, size: int, seed: int) -> Array:
    """Return the batch of a synchronous round, 0, 1, ...: each epoch goes through all samples once, shuffled.

    The last batch of an epoch may be shorter.
    """
    epoch, index = divmod(round_index, -(-n_samples // size))
    return np.sort(_order(epoch, n_samples, seed)[index * size : (index + 1) * size])


@lru_cache(maxsize=2)
def _order(epoch: int, n_samples: int, seed: int) -> Array:
    return np.random.default_rng([seed, epoch]).permutation(n_samples)


def batch_of_client(client: int, step: int, n_samples: int, size: int, seed: int) -> Array:
    """Return the batch of a step, 0, 1, ..., of an asynchronous client: random samples, none twice."""
    if size >= n_samples:
        return np.arange(n_samples)
    rng = np.random.default_rng([seed, client, step])
    return np.sort(rng.choice(n_samples, size, replace=False, shuffle=False))
