"""Values of all rounds on one chunk of samples, as sums over its samples: what runs in a thread, process or cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from verfedsv.losses import Floats
from verfedsv.shapley import Method
from verfedsv.shapley.auto import refine
from verfedsv.shapley.closed_form import ThirdOrder, third_order
from verfedsv.shapley.exact import exact, rounding_errors
from verfedsv.shapley.game import Block, RoundGame
from verfedsv.shapley.permutation import permutation
from verfedsv.shapley.result import ShapleyResult
from verfedsv.shapley.semivalues import SHAPLEY
from verfedsv.shapley.values import symmetric
from verfedsv.valuation.chunks import Chunk


@dataclass(frozen=True)
class Plan:
    """What to compute: the method, and for "auto" the rounds to refine with the error that each is allowed.

    `first_round` is the number of the first round of the chunks; `n_chunks` how many there are. Both number the calls
    of sampling methods, each of which takes its part of the failure probability.
    """

    method: Method
    n_permutations: int
    seed: int
    first_round: int
    n_chunks: int
    refined: Mapping[int, float] = field(default_factory=dict)

    def attempt(self, chunk: Chunk, round_number: int) -> int:
        """Return the number of this call among all of the valuation."""
        return (self.first_round + round_number) * self.n_chunks + chunk.number


@dataclass(eq=False)
class RoundSums:
    """Sums over samples, of each round: `values` and `errors` (rounds, clients), `utility` (rounds,).

    `methods` are those that took part.
    """

    values: Floats
    errors: Floats
    utility: Floats
    methods: set[str]

    @classmethod
    def zeros(cls, n_rounds: int, n_clients: int) -> RoundSums:
        """Return sums of nothing."""
        return cls(np.zeros((n_rounds, n_clients)), np.zeros((n_rounds, n_clients)), np.zeros(n_rounds), set())

    def add(self, other: RoundSums) -> None:
        """Add the sums over other samples."""
        self.values += other.values
        self.errors += other.errors
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
        values, errors, method = closed.values, closed.errors, "closed-form"
        if (plan.method in ("exact", "permutation") or plan.refined) and np.isfinite(closed.utility):
            values, errors, method = _value_block(block, chunk, plan, closed)
        sums.values[t], sums.errors[t], sums.utility[t] = values, errors, closed.utility
        sums.methods.add(method)
    return sums


def _value_block(block: Block, chunk: Chunk, plan: Plan, closed: ThirdOrder) -> tuple[Floats, Floats, str]:
    """Return values and errors by any other method, and which it was, as sums over the samples of a block.

    `closed` is what the closed form has for it.
    """
    shape = chunk.n_clients, block.n_samples, chunk.n_classes
    game = RoundGame(
        block.previous.reshape(shape), block.current.reshape(shape), block.labels, chunk.loss, block.offset, n_threads=1
    )
    n_samples, attempt = game.n_samples, plan.attempt(chunk, block.number)
    if plan.method == "exact":
        values, n_evaluations = exact(game, SHAPLEY)
        result = ShapleyResult(values, rounding_errors(game), "certified", "exact", "shapley", n_evaluations)
    elif plan.method == "permutation":
        drawn = permutation(
            game, SHAPLEY, n_permutations=plan.n_permutations, antithetic=False, seed=plan.seed, attempt=attempt
        )
        result = ShapleyResult(error_kind="confidence", method="permutation", semivalue="shapley", **drawn._asdict())
    else:
        # An error of a mean over the whole chunk, of which the block may be only a part.
        allowed = plan.refined[block.number] * chunk.n_samples / n_samples
        refined = refine(game, closed.utility / n_samples, allowed, plan.n_permutations, plan.seed, attempt)
        if refined is None:
            return closed.values, closed.errors, "closed-form"
        result = ShapleyResult(semivalue="shapley", **refined._asdict())
    result = symmetric(game, result)
    return result.values * n_samples, result.errors * n_samples, result.method
