"""Chunks of samples through an executor, and the rounds they sum up to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from verfedsv.losses import Floats
from verfedsv.shapley.blocks import ordered_map
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.estimators import estimate_rounds
from verfedsv.shapley.plan import Allowance, Plan
from verfedsv.valuation.backends import Backend

if TYPE_CHECKING:
    from verfedsv.valuation.replay import RoundSegment


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
    n_attempts = 1

    def needed(self, values: Floats, errors: Floats) -> dict[int, Allowance]:
        """Return the next rounds whose errors are too large, and the errors that these are allowed."""
        allowed = [self.allow(row) for row in values]
        return {t: allowance for t, allowance in enumerate(allowed) if errors[t].max() > allowance.certified}

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
class ChunkStream:
    """Values chunks on an executor, or on that many threads; `step` is called after each chunk."""

    backend: Backend
    workers: int | Executor
    plan: Plan
    budget: Budget
    step: Callable[[], None] = field(default=lambda: None)

    def value(self, segment: RoundSegment) -> Estimate:
        """Return the values of the next rounds, (rounds, clients and server)."""
        parts = self.backend.split(segment.n_samples, segment.n_clients, segment.n_classes)
        plan = replace(self.plan, n_samples=segment.n_samples, n_chunks=len(parts))

        def sums(plan: Plan) -> Iterator[Estimate]:
            chunks = (segment.chunk(part, index) for index, part in enumerate(parts))
            for estimate in ordered_map(partial(self.backend.value, plan=plan), chunks, self.workers):
                yield estimate
                self.step()

        def ask(plan: Plan) -> Estimate:
            return Estimate.sum(sums(plan)).divided(segment.n_samples)

        # Look 0 is kept for the sum of all rounds.
        found, _ = estimate_rounds(ask, plan, segment.n_clients, self.budget, first_look=plan.first_round + 1)
        self.plan = replace(self.plan, first_round=self.plan.first_round + segment.n_rounds)
        return found
