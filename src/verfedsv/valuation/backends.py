"""Backends: what values the samples and rounds of a chunk, in a thread, another process, a cluster or a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial

from verfedsv.shapley.blocks import block_size
from verfedsv.shapley.closed_form import third_order_of_factors
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.estimators import Allowances, estimate_game, estimate_rounds
from verfedsv.shapley.plan import Plan
from verfedsv.threads import ordered_map, split
from verfedsv.valuation.chunks import Chunk


class Backend(ABC):
    """Values chunks of the size that suits it. It can be sent to other processes."""

    @abstractmethod
    def chunk_size(self, n_clients: int, width: int) -> int:
        """Return the number of samples in a chunk."""

    @abstractmethod
    def value(self, chunk: Chunk, plan: Plan) -> Estimate:
        """Return the values of all rounds, (rounds, clients and server), summed over the samples of a chunk.

        If the plan refines rounds, only these are valued, and the others are zero.
        """

    def split(self, n_samples: int, n_clients: int, width: int) -> list[slice]:
        """Return the samples of each chunk."""
        return split(n_samples, self.chunk_size(n_clients, width))

    def value_rounds(
        self,
        chunk: Chunk,
        plan: Plan,
        allowances: Allowances,
        workers: int | Executor,
        step: Callable[[], None] = lambda: None,
    ) -> Estimate:
        """Return the values of all rounds, (rounds, clients and server), as means over the samples.

        The samples are split into chunks that are valued on an executor or on that many threads; `step` is called after
        each. Where the allowances ask for it, rounds are valued again with smaller errors.
        """
        parts = self.split(chunk.n_samples, chunk.n_clients, chunk.width)

        def sums(plan: Plan) -> Iterator[Estimate]:
            chunks = (chunk.part(samples, index) for index, samples in enumerate(parts))
            for estimate in ordered_map(partial(self.value, plan=plan), chunks, workers):
                yield estimate
                step()

        def ask(plan: Plan) -> Estimate:
            return Estimate.sum(sums(plan)).divided(chunk.n_samples)

        plan = replace(plan, n_samples=chunk.n_samples, n_chunks=len(parts))
        # Look 0 is kept for the sum of all rounds.
        return estimate_rounds(ask, plan, chunk.n_clients, allowances, first_look=plan.first_round + 1)[0]


class CompiledLoops(Backend):
    """The loops of `shapley`, compiled for the processor; a chunk takes one thread."""

    def chunk_size(self, n_clients: int, width: int) -> int:
        """Return the number of samples in a block of all players, whose embeddings of a round fit the cache."""
        return block_size(n_clients + 1, width)

    def value(self, chunk: Chunk, plan: Plan) -> Estimate:
        """Return the sums of the estimates of all rounds: all in one loop, or one after the other."""
        if not plan.refined and plan.estimator.is_closed_form(plan.semivalue):
            factored = chunk.factored
            found = None if factored is None else third_order_of_factors(factored, chunk.labels, chunk.loss)
            if found is not None:  # otherwise the loop below says what is wrong
                return found.with_players(chunk.n_clients + 1)
        rounds = {}
        for t, game in chunk.games(plan.refined or None):
            allowed = plan.refined.get(t)
            if allowed is not None:  # a game may have only some samples of its chunk, and their part of the allowance
                allowed = allowed.of_part(chunk.n_samples, plan.n_samples, game.n_samples)
            found = estimate_game(game, plan, plan.call(t, chunk.index), allowed)
            rounds[t] = found.divided(1 / game.n_samples)
        return Estimate.of_rounds(rounds, chunk.n_rounds, chunk.n_clients + 1)
