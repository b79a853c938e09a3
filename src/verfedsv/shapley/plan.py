"""What estimators share: the plan of a valuation, the errors that it allows, and what an estimator is."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, NamedTuple

import numpy as np

from verfedsv.shapley.confidence import radius_of_sum
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.semivalues import SHAPLEY, Semivalue

Progress = Callable[[int, int], None]
"""Called with the steps done and the steps in all, at most; work may end before."""

ENUMERATION_LIMIT = 2**30
"""Coalitions times samples of a round up to which enumeration is preferred to sampling: about 0.4 s on one core."""


class Allowance(NamedTuple):
    """Errors that a mean over samples may have: certified ones add up, sampled ones average out.

    A single draw may be `largest` from its expectation; if that is 0, as far as takes the fewest draws to keep
    `sampled`. Up to `coalitions` times samples may be enumerated.
    """

    certified: float
    sampled: float
    largest: float
    coalitions: float

    @classmethod
    def of_round(cls, certified: float, sampled: float) -> Allowance:
        """Return what a round of several may have; half of `sampled` is for the largest draw."""
        per_largest = float(radius_of_sum(np.zeros(1), np.ones(1), look=0)[0])
        return cls(certified, sampled / 2, sampled / 2 / per_largest, ENUMERATION_LIMIT)

    def of_part(self, n_part: int, n_all: int, n_mean: int) -> Allowance:
        """Return what a part of all samples may have, as errors of means over `n_mean` samples."""
        part = n_part / n_mean
        sampled = self.sampled * part * math.sqrt(n_all / n_part)
        return Allowance(
            self.certified * part, sampled, self.largest * n_all / n_mean, self.coalitions * n_part / n_all
        )


class Estimator(ABC):
    """A way to the values of a game: one object for each method, listed in `estimators.py`, without state.

    `parts` are the names that it may put into `Estimate.methods`. It `samples` if it may draw at random, and `adapts`
    if it works towards a tolerance.
    """

    parts: ClassVar[tuple[str, ...]]
    samples: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def check(self, semivalue: Semivalue, n_players: int) -> None:  # noqa: B027  # most take any
        """Raise InputError if this semivalue cannot be estimated for that number of players."""

    @abstractmethod
    def estimate(self, game: RoundGame, plan: Plan, call: int) -> Estimate:
        """Return the values of a game, means over its samples.

        `call` numbers the calls that one result is made of: draws are seeded by it, or bounds hold for all of them.
        """

    def can_refine(self, semivalue: Semivalue) -> bool:  # noqa: ARG002  # Auto's
        """Return whether it can be asked again for smaller errors."""
        return False

    def refine(self, game: RoundGame, plan: Plan, call: int, allowed: Allowance) -> Estimate:
        """Return values with the errors that are allowed, if these can be had."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plan:
    """How to value rounds. It can be sent to other processes, unless there is a `progress`.

    `first_round` is the index of the first of these rounds among all rounds; their `n_samples` come in `n_chunks`.
    `refined` are the rounds to value again, with the errors that each is allowed. `tolerance` is for methods that
    sample a round as a whole, and may stop once their errors are within that fraction of the largest value.
    """

    estimator: Estimator
    n_samples: int
    n_permutations: int
    semivalue: Semivalue = SHAPLEY
    seed: int = 0
    antithetic: bool = False
    standard_error: float | None = None
    tolerance: float | None = None
    first_round: int = 0
    n_chunks: int = 1
    refined: Mapping[int, Allowance] = field(default_factory=dict)
    progress: Progress | None = None

    def call(self, round_index: int, chunk_index: int) -> int:
        """Return the number of a call among all of the valuation."""
        return (self.first_round + round_index) * self.n_chunks + chunk_index
