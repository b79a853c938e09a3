"""Errors of several rounds together: some add up, those of sampling average out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from verfedsv.losses import Floats
from verfedsv.shapley.confidence import radius_of_sum


@dataclass(frozen=True, eq=False)
class ErrorSums:
    """The errors of a sum of values, (players,) each.

    `added` are errors that add up. Of what "auto" sampled, `variance` is the variance of the sum, and `largest` bounds
    how far any single draw can be from its expectation.
    """

    added: Floats
    variance: Floats
    largest: Floats

    @classmethod
    def none(cls, n_players: int) -> ErrorSums:
        """Return the errors of no rounds."""
        return cls(*np.zeros((3, n_players)))

    @classmethod
    def adding(cls, errors: Floats) -> ErrorSums:
        """Return errors that all add up."""
        return cls(errors.copy(), *np.zeros((2, len(errors))))

    @property
    def is_sampled(self) -> bool:
        """Whether any part comes from sampling."""
        return bool(self.largest.any())

    def __add__(self, other: ErrorSums) -> ErrorSums:
        return ErrorSums(
            self.added + other.added, self.variance + other.variance, np.maximum(self.largest, other.largest)
        )

    def bound(self, look: int) -> Floats:
        """Return the errors that hold with 99.9 % confidence for every `look` (0, 1, ...), a number for each bound."""
        if not self.is_sampled:
            return self.added
        result: Floats = self.added + radius_of_sum(self.variance, self.largest, look)
        return result
