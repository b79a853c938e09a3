"""Chunks of samples through an executor, and the rounds they sum up to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol

import numpy as np

from verfedsv.errors import InputError
from verfedsv.losses import Floats
from verfedsv.shapley.blocks import ordered_map, split
from verfedsv.shapley.closed_form import balance
from verfedsv.shapley.game import LARGEST_EMBEDDING, block_size
from verfedsv.valuation.chunks import Chunk
from verfedsv.valuation.error_sums import ErrorSums
from verfedsv.valuation.estimate import Allowance, Plan, RoundSums, value_chunk


def chunk_size(n_clients: int, n_classes: int) -> int:
    """Return the number of samples in a chunk: that of a block, so that the embeddings of a round fit the cache."""
    return block_size(n_clients, n_classes)


class Source(Protocol):
    """Where chunks come from: a training whose embeddings are at hand, or some rounds of it."""

    @property
    def n_samples(self) -> int: ...
    @property
    def n_rounds(self) -> int: ...
    @property
    def n_clients(self) -> int: ...
    @property
    def n_classes(self) -> int: ...

    def chunk(self, part: slice, index: int) -> Chunk:
        """Return some samples of all rounds; `index` counts the chunks from 0 on."""


@dataclass(eq=False)
class Rounds:
    """Values of rounds and their errors, (rounds, players) each, the server being the last player.

    `decrease` is how much the loss fell in each round, (rounds,); `methods` are those that took part.
    """

    values: Floats
    errors: Floats
    decrease: Floats
    methods: set[str]

    @classmethod
    def none(cls, n_players: int) -> Rounds:
        """Return no rounds."""
        values, errors = np.zeros((2, 0, n_players))
        return cls(values, errors, np.zeros(0), set())

    @classmethod
    def joined(cls, parts: Sequence[Rounds]) -> Rounds:
        """Return the rounds of several parts, one after the other."""
        values = np.concatenate([part.values for part in parts])
        errors = np.concatenate([part.errors for part in parts])
        decrease = np.concatenate([part.decrease for part in parts])
        return cls(values, errors, decrease, set[str]().union(*(part.methods for part in parts)))


@dataclass
class Budget:
    """Decides for method "auto" which rounds need more than the closed form.

    With P the most that the clients had lowered the loss so far and p what round t added to it, the round may have an
    error of tolerance / (3 M) (p + P / (16 t)) for M clients: where most is achieved, most may be missed, and a little
    anywhere.
    The errors of up to a million rounds then add up to at most the tolerance times P / M, which the largest value is
    not below unless the loss rose again. Errors of sampling add up by their squares, and may be the geometric mean of
    that and of what all rounds may have. It depends on earlier rounds only, so valuing a training as it goes gives what
    valuing it at once gives.
    """

    tolerance: float
    n_rounds: int = 0
    total: float = 0.0
    peak: float = 0.0

    def allow(self, values: Floats) -> Allowance:
        """Return the errors that the next round may have, given the values of the clients in it."""
        # In single precision: the last bits, which depend on how the values were computed, must not decide.
        utility = float(np.float32(values.sum()))
        self.n_rounds += 1
        self.total += utility
        before, self.peak = self.peak, max(self.peak, abs(self.total))
        part = self.peak - before + self.peak / (16 * self.n_rounds)
        scale = self.tolerance / (3 * len(values))
        return Allowance.of_round(scale * part, scale * math.sqrt(self.peak * part / 2))


@dataclass
class Stream:
    """Values chunks of samples on an executor, or on that many threads; `step` is called after each chunk.

    `error_sums` are the errors of all rounds so far together.
    """

    workers: int | Executor
    plan: Plan
    budget: Budget
    error_sums: ErrorSums
    step: Callable[[], None] = field(default=lambda: None)

    def value(self, source: Source) -> Rounds:
        """Return the values of the next rounds."""
        n_rounds, n_clients, n_samples = source.n_rounds, source.n_clients, source.n_samples
        parts = split(n_samples, chunk_size(n_clients, source.n_classes))

        def chunks() -> Iterator[Chunk]:
            return (source.chunk(part, index) for index, part in enumerate(parts))

        sums = self._sum(chunks(), self.plan, n_rounds, n_clients)
        values, errors, decrease = sums.values / n_samples, sums.errors / n_samples, sums.utility / n_samples
        if self.plan.method in ("auto", "closed-form"):
            for t in range(n_rounds):
                values[t], errors[t], _ = balance(values[t], errors[t], float(decrease[t]))
        of_rounds = [ErrorSums.adding(row) for row in errors]
        methods = sums.methods
        if self.plan.method == "auto":
            # The tolerance is one of the clients' values: the server's may be larger, and so may its error.
            paid = slice(n_clients)
            allowed = [self.budget.allow(row[paid]) for row in values]
            refined = {t: error for t, error in enumerate(allowed) if errors[t, paid].max() > error.certified}
            if refined:
                again = self._sum(chunks(), replace(self.plan, refined=refined), n_rounds, n_clients)
                for t in refined:
                    found = again.error_sums(t, n_samples)
                    # Look 0 is kept for the sum of all rounds.
                    bound = found.bound(look=self.plan.first_round + t + 1)
                    if bound[paid].max() < errors[t, paid].max():
                        values[t], errors[t], of_rounds[t] = again.values[t] / n_samples, bound, found
                methods = methods | again.methods
        self.plan = replace(self.plan, first_round=self.plan.first_round + n_rounds)
        self.error_sums = sum(of_rounds, self.error_sums)
        return Rounds(values, errors, decrease, methods)

    def _sum(self, chunks: Iterable[Chunk], plan: Plan, n_rounds: int, n_clients: int) -> RoundSums:
        sums = RoundSums.zeros(n_rounds, n_clients)
        for part in ordered_map(partial(value_chunk, plan=plan), chunks, self.workers):
            sums.add(part)
            self.step()
        if not np.isfinite(sums.utility).all():
            raise InputError(f"embeddings of a sample must sum to less than {LARGEST_EMBEDDING:g}; these are larger")
        return sums
