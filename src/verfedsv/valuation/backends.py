"""Backends: what values a chunk of samples over all rounds, in a thread, another process, a cluster or a GPU."""

from __future__ import annotations

from abc import ABC, abstractmethod

from verfedsv.shapley.blocks import split
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.estimators import estimate_game
from verfedsv.shapley.game import RoundGame, block_size
from verfedsv.shapley.plan import Plan
from verfedsv.valuation.chunks import Chunk


class Backend(ABC):
    """Values chunks of the size that suits it. It can be sent to other processes."""

    @abstractmethod
    def chunk_size(self, n_clients: int, n_classes: int) -> int:
        """Return the number of samples in a chunk."""

    @abstractmethod
    def value(self, chunk: Chunk, plan: Plan) -> Estimate:
        """Return the values of all rounds, (rounds, clients and server), summed over the samples of a chunk.

        If the plan refines rounds, only these are valued, and the others are zero.
        """

    def split(self, n_samples: int, n_clients: int, n_classes: int) -> list[slice]:
        """Return the chunks of all samples."""
        return split(n_samples, self.chunk_size(n_clients, n_classes))


class CompiledLoops(Backend):
    """The loops of `shapley`, compiled for the processor; a chunk takes one thread."""

    def chunk_size(self, n_clients: int, n_classes: int) -> int:
        """Return the number of samples in a block, so that the embeddings of a round fit the cache."""
        return block_size(n_clients, n_classes)

    def value(self, chunk: Chunk, plan: Plan) -> Estimate:
        """Return the sums of the estimates of all rounds, one after the other."""
        rounds = {}
        for block in chunk.blocks(plan.refined or None):
            t, game = block.index, RoundGame.of_block(block, chunk.loss)
            allowed = plan.refined.get(t)
            if allowed is not None:  # a block may be only a part of its chunk, whose part of what is allowed it has
                allowed = allowed.of_part(chunk.n_samples, plan.n_samples, game.n_samples)
            found = estimate_game(game, plan, plan.call(t, chunk.index), allowed)
            rounds[t] = found.divided(1 / game.n_samples)
        return Estimate.of_rounds(rounds, chunk.n_rounds, chunk.n_clients + 1)
