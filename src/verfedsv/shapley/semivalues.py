"""Semivalues: weighted means of what a client adds to the coalitions of the others.

All of them draw a probability t from a distribution on [0, 1], with which each other client is in the coalition. The
Shapley value draws t uniformly, which makes every size of coalition equally likely.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import numpy as np

from verfedsv.arguments import as_positive
from verfedsv.arrays import Floats
from verfedsv.errors import InputError


class Semivalue(ABC):
    """A distribution of the probability t with which each other client is in the coalition.

    `str` is its name in results; `get_semivalue` reads the names of those defined here.
    """

    @abstractmethod
    def size_weights(self, n_others: int) -> Floats:
        """Return the weight of a single coalition of each size 0 to `n_others`; over all coalitions they sum to 1."""

    @abstractmethod
    def draw(self, rng: np.random.Generator, n_draws: int) -> Floats:
        """Return `n_draws` draws of t."""


@dataclass(frozen=True)
class Beta(Semivalue):
    """Beta(alpha, beta) Shapley (Kwon and Zou, 2022): t follows a Beta(beta, alpha) distribution.

    Beta(1, 1) is the Shapley value; a large alpha favours small coalitions, a large beta large ones.

    >>> Beta(1, 1).size_weights(2).round(4)
    array([0.3333, 0.1667, 0.3333])
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        as_positive("the alpha of Beta", self.alpha)
        as_positive("the beta of Beta", self.beta)

    def size_weights(self, n_others: int) -> Floats:
        return _beta_weights(float(self.alpha), float(self.beta), n_others)

    def draw(self, rng: np.random.Generator, n_draws: int) -> Floats:
        return rng.beta(self.beta, self.alpha, n_draws)

    def __str__(self) -> str:
        # All digits, as settings and files identify a semivalue by its name.
        alpha, beta = (repr(float(shape)).removesuffix(".0") for shape in (self.alpha, self.beta))
        return "shapley" if self.alpha == self.beta == 1 else f"beta({alpha}, {beta})"


@cache
def _beta_weights(alpha: float, beta: float, n_others: int) -> Floats:
    # In fractions, rounded once: by logarithms of the beta function, the weights of Beta(1000, 3) were off by 2e-12.
    a, b, weight = Fraction(alpha), Fraction(beta), Fraction(1)
    for i in range(n_others):
        weight *= (a + i) / (a + b + i)
    weights = [weight]
    for size in range(n_others):
        weights.append(weights[-1] * (b + size) / (a + n_others - size - 1))
    result = np.array([float(weight) for weight in weights])
    result.flags.writeable = False
    return result


@dataclass(frozen=True)
class Constant(Semivalue):
    """A fixed t: 1/2 is the Banzhaf value, 1 is leave-one-out."""

    probability: float
    name: str

    def size_weights(self, n_others: int) -> Floats:
        sizes = np.arange(n_others + 1)
        return np.asarray(self.probability**sizes * (1 - self.probability) ** (n_others - sizes), dtype=np.float64)

    def draw(self, rng: np.random.Generator, n_draws: int) -> Floats:  # noqa: ARG002  # nothing is random here
        return np.full(n_draws, self.probability)

    def __str__(self) -> str:
        return self.name


SHAPLEY = Beta(1, 1)
BANZHAF = Constant(0.5, "banzhaf")
LEAVE_ONE_OUT = Constant(1.0, "leave-one-out")

SEMIVALUES: dict[str, Semivalue] = {"shapley": SHAPLEY, "banzhaf": BANZHAF, "leave-one-out": LEAVE_ONE_OUT}


def get_semivalue(semivalue: str | Semivalue) -> Semivalue:
    """Return the semivalue with that name, as `str` writes it, or `semivalue` itself if it is one.

    >>> get_semivalue("beta(2, 3)")
    Beta(alpha=2.0, beta=3.0)
    """
    if isinstance(semivalue, Semivalue):
        return semivalue
    written = re.fullmatch(r"beta\(([^,()]+),([^,()]+)\)", semivalue) if isinstance(semivalue, str) else None
    try:
        shapes = [float(shape) for shape in written.groups()] if written else []
        named = None if shapes else SEMIVALUES[semivalue]
    except (KeyError, TypeError, ValueError):
        raise InputError(
            f"unknown semivalue {semivalue!r}; allowed are {', '.join(map(repr, SEMIVALUES))}, 'beta(a, b)' "
            "and verfedsv.Beta(a, b)"
        ) from None
    return named or Beta(*shapes)
