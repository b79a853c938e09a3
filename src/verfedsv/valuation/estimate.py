"""Values of all rounds on one chunk of samples, as sums over its samples: what runs in a thread, process or cluster."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from verfedsv.losses import Floats
from verfedsv.shapley import Method
from verfedsv.shapley.auto import split_samples
from verfedsv.shapley.closed_form import ThirdOrder, balance, sample_errors, sum_third_order, third_order
from verfedsv.shapley.confidence import radius_of_sum
from verfedsv.shapley.exact import exact, rounding_errors
from verfedsv.shapley.game import Block, RoundGame
from verfedsv.shapley.permutation import permutation
from verfedsv.shapley.semivalues import SHAPLEY
from verfedsv.shapley.stratified import draw_enough
from verfedsv.valuation.chunks import Chunk
from verfedsv.valuation.error_sums import ErrorSums

ENUMERATION_LIMIT = 2**28
"""Coalitions times samples of a round up to which enumeration is preferred to sampling: some 0.3 s on two cores."""


class Allowance(NamedTuple):
    """Errors that a mean over samples may have: certified ones add up, sampled ones average out.

    A single draw may be `largest` from its expectation.
    """

    certified: float
    sampled: float
    largest: float

    @classmethod
    def of_round(cls, certified: float, sampled: float) -> Allowance:
        """Return what a round may have; half of `sampled` is for the variance, and half for the largest draw."""
        return cls(certified, sampled / 2, sampled / 2 / float(radius_of_sum(np.zeros(1), np.ones(1), look=0)[0]))

    def of_part(self, n_part: int, n_all: int, n_mean: int) -> Allowance:
        """Return what a part of all samples may have, as errors of means over `n_mean` samples."""
        part = n_part / n_mean
        return Allowance(
            self.certified * part, self.sampled * part * math.sqrt(n_all / n_part), self.largest * n_all / n_mean
        )


@dataclass(frozen=True)
class Plan:
    """What to compute: the method, and for "auto" the rounds to refine with the error that each is allowed.

    `first_round` is the number of the first round of the chunks; `n_chunks` how many there are, of `n_samples` in all.
    Round and chunk number the calls of sampling methods: each has its own draws, and in "permutation" takes its part of
    the failure probability.
    """

    method: Method
    n_permutations: int
    seed: int
    first_round: int
    n_chunks: int
    n_samples: int
    refined: Mapping[int, Allowance] = field(default_factory=dict)

    def attempt(self, chunk: Chunk, round_number: int) -> int:
        """Return the number of this call among all of the valuation."""
        return (self.first_round + round_number) * self.n_chunks + chunk.number


class _OfBlock(NamedTuple):
    """What one block of samples adds to a round, and the method that found it.

    As sums over samples, or means; of what was sampled, `variance` and `largest` are not in the errors.
    """

    method: str
    values: Floats
    errors: Floats
    variance: Floats | float = 0.0
    largest: Floats | float = 0.0

    def times(self, factor: float) -> _OfBlock:
        """Return these quantities of values that are `factor` times as large."""
        return self._replace(
            values=self.values * factor,
            errors=self.errors * factor,
            variance=self.variance * factor**2,
            largest=self.largest * factor,
        )

    def symmetric(self, groups: Iterable[list[int]]) -> _OfBlock:
        """Return the mean of the values of clients that are identical in the place of each, with their worst errors."""
        values, errors = self.values.copy(), self.errors.copy()
        variance, largest = (np.zeros_like(values) + bound for bound in (self.variance, self.largest))
        for group in groups:
            values[group] = values[group].mean()
            for bound in (errors, variance, largest):
                bound[group] = bound[group].max()
        return _OfBlock(self.method, values, errors, variance, largest)


@dataclass(eq=False)
class RoundSums:
    """Sums over samples, of each round: `values` and `errors` (rounds, players), `utility` (rounds,).

    The last player is the server. Of what "auto" sampled, `variance` and the `largest` bound on a single draw (rounds,
    players) are not yet in the errors. `methods` are those that took part.
    """

    values: Floats
    errors: Floats
    variance: Floats
    largest: Floats
    utility: Floats
    methods: set[str]

    @classmethod
    def zeros(cls, n_rounds: int, n_clients: int) -> RoundSums:
        """Return sums of nothing, for that many clients and the server."""
        values, errors, variance, largest = np.zeros((4, n_rounds, n_clients + 1))
        return cls(values, errors, variance, largest, np.zeros(n_rounds), set())

    def put(self, round_number: int, block: _OfBlock, utility: float) -> None:
        """Take what the only block of a round has; the server keeps zeros if it is not in the block."""
        t, n_players = round_number, len(block.values)
        for sums, of_block in zip((self.values, self.errors, self.variance, self.largest), block[1:], strict=True):
            sums[t, :n_players] = of_block
        self.utility[t] = utility
        self.methods.add(block.method)

    def error_sums(self, round_number: int, n_samples: int) -> ErrorSums:
        """Return the errors of the means over that many samples in a round."""
        t = round_number
        return ErrorSums(self.errors[t] / n_samples, self.variance[t] / n_samples**2, self.largest[t] / n_samples)

    def add(self, other: RoundSums) -> None:
        """Add the sums over other samples."""
        self.values += other.values
        self.errors += other.errors
        self.variance += other.variance
        np.maximum(self.largest, other.largest, out=self.largest)
        self.utility += other.utility
        self.methods |= other.methods


def value_chunk(chunk: Chunk, plan: Plan) -> RoundSums:
    """Return the values of all rounds summed over the samples of a chunk; those to refine only, if there are any.

    The errors of the closed form are those of the sums as they are: not yet balanced.
    """
    sums = RoundSums.zeros(chunk.n_rounds, chunk.n_clients)
    for block in chunk.blocks(plan.refined or None):
        t = block.number
        # Whatever the method: it also finds embeddings that are too large, and the utility of all clients.
        closed = third_order(block, chunk.loss)
        result = _OfBlock("closed-form", closed.values, closed.errors)
        if (plan.method in ("exact", "permutation") or plan.refined) and np.isfinite(closed.utility):
            result = _value_block(block, chunk, plan, closed)
        sums.put(t, result, closed.utility)
    return sums


def _value_block(block: Block, chunk: Chunk, plan: Plan, closed: ThirdOrder) -> _OfBlock:
    """Return the sums over a block by any other method; `closed` is what the closed form has for it."""
    shape = len(block.previous), block.n_samples, chunk.n_classes
    game = RoundGame(
        block.previous.reshape(shape), block.current.reshape(shape), block.labels, chunk.loss, block.offset, n_threads=1
    )
    attempt = plan.attempt(chunk, block.number)
    if plan.method == "exact":
        values, _ = exact(game, SHAPLEY)
        result = _OfBlock("exact", values, rounding_errors(game))
    elif plan.method == "permutation":
        drawn = permutation(
            game, SHAPLEY, n_permutations=plan.n_permutations, antithetic=False, seed=plan.seed, attempt=attempt
        )
        result = _OfBlock("permutation", drawn.values, drawn.errors)
    else:
        # A block may be only a part of its chunk, which has its part of what all samples are allowed.
        allowed = plan.refined[block.number].of_part(chunk.n_samples, plan.n_samples, game.n_samples)
        refined = _refine(game, closed.utility / game.n_samples, allowed, plan, attempt)
        if refined is None:
            return _OfBlock("closed-form", closed.values, closed.errors)
        result = refined
    return result.symmetric(game.identical_clients()).times(game.n_samples)


def _refine(game: RoundGame, utility: float, allowed: Allowance, plan: Plan, attempt: int) -> _OfBlock | None:
    """Return values with the errors that are allowed, if these can be had, using the closed form where it is sure.

    None if no sample is to blame: what is too large is rounding, which nothing here makes smaller.
    """
    easy, hard = split_samples(sample_errors(game), allowed.certified / 2)
    if len(hard) == 0:
        return None
    closed = sum_third_order(game, easy)
    variance = largest = np.zeros(game.n_players)
    if 2**game.n_players * plan.n_samples <= ENUMERATION_LIMIT:
        rest, _ = exact(game, SHAPLEY, samples=hard)
        method = "closed-form+exact"
    else:
        rest, variance, largest = draw_enough(
            game,
            hard,
            error=allowed.sampled,
            largest=allowed.largest,
            max_permutations=plan.n_permutations,
            seed=plan.seed,
            attempt=attempt,
        )
        method = "closed-form+sampling"
    # Each permutation adds up to the utility, and so does enumeration: only the easy samples leave a gap.
    values, errors, _ = balance(closed.values + rest, closed.errors + rounding_errors(game), utility)
    return _OfBlock(method, values, errors, variance, largest)
