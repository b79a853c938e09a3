"""`Estimator`, what a method implements; `Plan` and `Allowance`, what it is asked for."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import numpy as np

from verfedsv.shapley.confidence import radius_of_sum
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.game import Game
from verfedsv.shapley.semivalues import SHAPLEY, Semivalue

Progress = Callable[[int, int], None]
"""Called with the number of steps done and the most there will be."""

ENUMERATION_LIMIT = 2**30
"""Coalitions times samples of a round up to which enumeration is preferred to sampling: about 0.4 s on one core."""


PER_LARGEST = float(radius_of_sum(np.zeros(1), np.ones(1), look=0)[0])
"""How much larger a bound is for each unit that a single draw may be from its expectation."""


class Allowance(NamedTuple):
    """The largest errors allowed for a mean over samples: certified ones add up, sampled ones average out.

    A single draw may be `largest` from its expectation; 0 leaves this to the sampler, which then needs the fewest draws
    for `sampled`. Enumeration may take up to `coalitions` coalitions times samples.
    """

    certified: float
    sampled: float
    largest: float
    coalitions: float

    @classmethod
    def of_round(cls, certified: float, sampled: float) -> Allowance:
        """Return what a round is allowed; half of `sampled` is for the largest draw."""
        return cls(certified, sampled / 2, sampled / 2 / PER_LARGEST, ENUMERATION_LIMIT)

    def times(self, factor: float) -> Allowance:
        """Return errors that are allowed to be so many times as large."""
        return self._replace(
            certified=self.certified * factor, sampled=self.sampled * factor, largest=self.largest * factor
        )

    def of_part(self, n_part: int, n_all: int, n_mean: int) -> Allowance:
        """Return what `n_part` of `n_all` samples are allowed, for means over `n_mean` samples."""
        part = n_part / n_mean
        sampled = self.sampled * part * math.sqrt(n_all / n_part)
        return Allowance(
            self.certified * part, sampled, self.largest * n_all / n_mean, self.coalitions * n_part / n_all
        )


AnyGame = TypeVar("AnyGame", bound=Game, contravariant=True)


class Estimator(ABC, Generic[AnyGame]):
    """A method for some kind of games, listed in `estimators.py`; it has no state.

    `parts` are the names that it may put into `Estimate.methods`. `samples`: it may draw at random. `adapts`: it works
    towards a tolerance.
    """

    parts: ClassVar[tuple[str, ...]]
    samples: ClassVar[bool] = False
    adapts: ClassVar[bool] = False

    def check(self, semivalue: Semivalue, n_players: int) -> None:  # most take any
        """Raise InputError if it cannot estimate this semivalue for that many players."""

    @abstractmethod
    def estimate(self, game: AnyGame, plan: Plan, call: int) -> Estimate:
        """Return the values of a game, means over its samples.

        One result may take many calls. `call` is the number of this one: it seeds draws, or its bound holds together
        with those of all other calls.
        """

    def is_closed_form(self, semivalue: Semivalue) -> bool:  # noqa: ARG002  # most are not
        """Return whether `estimate` returns the closed form."""
        return False

    def can_refine(self, semivalue: Semivalue) -> bool:  # noqa: ARG002  # Auto's
        """Return whether `refine` can lower its errors."""
        return False

    def refine(self, game: AnyGame, plan: Plan, call: int, allowed: Allowance) -> Estimate:
        """Return values with at most the allowed errors, if possible."""
        raise NotImplementedError


@dataclass(frozen=True)
class Plan:
    """How to value rounds. It can be pickled if `progress` is None.

    `first_round` is the index of the first of these rounds among all rounds; their `n_samples` come in `n_chunks`.
    `refined` are the rounds to value again, with the errors allowed for each. Methods that sample a round as a whole
    may stop once their errors are within `tolerance` times the largest value.
    """

    estimator: Estimator[Any]
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
        """Return the number of a call among all calls of the valuation."""
        return (self.first_round + round_index) * self.n_chunks + chunk_index
