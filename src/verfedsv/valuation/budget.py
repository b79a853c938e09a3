"""The error that each round of a training is allowed: `Budget` under a sum, `HeadBudget` under another head."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from verfedsv.arrays import Floats
from verfedsv.shapley.plan import PER_LARGEST, Allowance


@dataclass
class Budget:
    """Decides for method "auto" which rounds need more than the closed form.

    With P the most that the clients had lowered the loss so far and p what round t added to it, the round is allowed an
    error of tolerance / (3 M) (p + P / (16 t)) for M clients: most in the rounds that achieve most, and a little in
    every round. The errors of up to a million rounds then add up to at most the tolerance times P / M, and the largest
    value is at least that unless the loss rose again. Errors of sampling add up by their squares: each round is allowed
    the geometric mean of its own error and that of all rounds. The budget of a round depends on earlier rounds only, so
    that valuing a training while it grows gives the same result as valuing it at the end.
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
class HeadBudget:
    """Decides the same under a head, where the values of every round are enumerated or sampled.

    With P the largest total value of a client so far and p what round t added to it, the round is allowed an error of
    sampling of tolerance sqrt(P (p + P / (16 t)) / 4), as its budget depends on earlier rounds only. The squares of up
    to a million rounds then add up to less than half of the square of the tolerance times P. If it `sees_all` rounds at
    once, as where embeddings are completed, every round is allowed the same instead, which takes a quarter of the
    draws. A single draw may take up a quarter of the whole error.
    """

    tolerance: float
    sees_all: bool = False
    n_rounds: int = 0
    totals: Floats = field(default_factory=lambda: np.zeros(1))
    peak: float = 0.0
    n_attempts = 1

    def needed(self, values: Floats, errors: Floats) -> dict[int, Allowance]:
        """Return the next rounds whose errors are too large, and the errors that these are allowed."""
        allowed = [self.allow(row) for row in values]
        if self.sees_all:
            allowed = [self._allowance(self.peak * math.sqrt(0.5 / len(values)))] * len(values)
        return {t: allowance for t, allowance in enumerate(allowed) if errors[t].max() > allowance.certified}

    def allow(self, values: Floats) -> Allowance:
        """Return the errors that the next round may have, given the values of the clients in it."""
        self.n_rounds += 1
        self.totals = self.totals + values.astype(np.float32)  # rounded, as in `Budget`
        before, self.peak = self.peak, max(self.peak, float(np.abs(self.totals).max()))
        part = self.peak - before + self.peak / (16 * self.n_rounds)
        return self._allowance(math.sqrt(self.peak * part / 4))

    def _allowance(self, size: float) -> Allowance:
        """Return an allowance of sampling errors of the tolerance times a size."""
        sampled = self.tolerance * size
        return Allowance(sampled, sampled, self.tolerance * self.peak / 4 / PER_LARGEST, math.inf)
