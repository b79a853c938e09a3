"""Backends: what values the samples and rounds of a chunk, in a thread, another process, a cluster or a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import ClassVar

from verfedsv.shapley.blocks import block_size
from verfedsv.shapley.closed_form import as_estimate, third_order_of_factors
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.estimators import Allowances, estimate_game, estimate_rounds
from verfedsv.shapley.factor_sums import Sums
from verfedsv.shapley.plan import Plan
from verfedsv.threads import ordered_map, split
from verfedsv.valuation.chunks import Chunk

TOGETHER = 16
"""How many chunks are summed before their sum is added to that of others: what one task of a cluster values."""


class Backend(ABC):
    """Values chunks of the size that suits it. It can be sent to other processes."""

    on_gpu: ClassVar[bool] = False

    @abstractmethod
    def chunk_size(self, n_clients: int, width: int) -> int:
        """Return the number of samples in a chunk."""

    @abstractmethod
    def value(self, chunk: Chunk, plan: Plan) -> Estimate:
        """Return the values of all rounds, (rounds, clients and server), summed over the samples of a chunk.

        If the plan refines rounds, only these are valued, and the others are zero.
        """

    def value_at_once(self, chunk: Chunk, plan: Plan) -> Estimate | None:  # noqa: ARG002  # a GPU's
        """Return what `value` does, of a chunk of any size, or None: then its parts are valued by `value`."""
        return None

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
            at_once = self.value_at_once(chunk, plan)
            if at_once is not None:
                yield at_once
                return
            chunks = (chunk.part(samples, index) for index, samples in enumerate(parts))
            estimates = ordered_map(partial(self.value, plan=plan), chunks, workers)
            for batch in batches(len(parts)):
                yield Estimate.sum(_counted(islice(estimates, len(batch)), step))

        return value_sums(sums, plan, chunk.n_samples, chunk.n_clients, len(parts), allowances)


def batches(n_chunks: int) -> list[range]:
    """Return the indices of chunks that are summed first, so that sums do not depend on where chunks are valued."""
    return [range(each.start, each.stop) for each in split(n_chunks, TOGETHER)]


def value_sums(
    sums: Callable[[Plan], Iterable[Estimate]],
    plan: Plan,
    n_samples: int,
    n_clients: int,
    n_chunks: int,
    allowances: Allowances,
) -> Estimate:
    """Return the values of all rounds, as means over samples, from the sums over batches of chunks."""

    def ask(plan: Plan) -> Estimate:
        return Estimate.sum(sums(plan)).divided(n_samples)

    plan = replace(plan, n_samples=n_samples, n_chunks=n_chunks)
    # Look 0 is kept for the sum of all rounds.
    return estimate_rounds(ask, plan, n_clients, allowances, first_look=plan.first_round + 1)[0]


def _counted(estimates: Iterable[Estimate], step: Callable[[], None]) -> Iterator[Estimate]:
    for estimate in estimates:
        yield estimate
        step()


class CompiledLoops(Backend):
    """The loops of `shapley`, compiled for the processor; a chunk takes one thread."""

    def chunk_size(self, n_clients: int, width: int) -> int:
        """Return the number of samples in a block of all players, whose embeddings of a round fit the cache."""
        return block_size(n_clients + 1, width)

    def value(self, chunk: Chunk, plan: Plan) -> Estimate:
        """Return the sums of the estimates of all rounds: all in one loop, or one after the other."""
        if not plan.refined and plan.estimator.is_closed_form(plan.semivalue):
            factored = chunk.factored()
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


class Gpu(CompiledLoops):
    """The closed form of completed rounds on a GPU; all else as the compiled loops do it."""

    on_gpu = True

    def value_at_once(self, chunk: Chunk, plan: Plan) -> Estimate | None:
        """Return the closed form of all samples, in parts that fit the GPU's memory."""
        if plan.refined or not plan.estimator.is_closed_form(plan.semivalue):
            return None
        if chunk.weights is None or chunk.head is not None:
            return None
        from verfedsv.shapley.gpu import closed_form as gpu

        n_players, n_ranks = len(chunk.table), chunk.weights.values.shape[2]
        if not gpu.can_value(chunk.loss, n_players, chunk.width):
            return None

        def sums(part: slice) -> Sums:
            own = chunk if chunk.n_samples == part.stop - part.start else chunk.part(part, 0)
            factored = own.factored(gpu.stack)
            assert factored is not None  # noqa: S101  # as the chunk has weights and no head
            return gpu.sum_rounds(factored, own.labels, chunk.loss)

        parts = split(chunk.n_samples, gpu.most_samples(n_ranks, n_players, chunk.width))
        found = as_estimate(map(sums, parts), chunk.weights.moved, chunk.n_samples)
        return None if found is None else found.with_players(chunk.n_clients + 1)
