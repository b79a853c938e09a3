"""The models of clients, and their learning rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from verfedsv.arguments import as_positive
from verfedsv.data.vertical import Matrix
from verfedsv.errors import InputError
from verfedsv.losses import Array, Floats

State = Mapping[str, Array]


class Model(Protocol):
    """Turns a client's features into embeddings, and learns from the gradients of the loss with respect to them."""

    def embed(self, features: Matrix) -> Floats:
        """Return the embeddings, (samples, classes)."""

    def learn(self, features: Matrix, gradient: Floats, rate: float) -> None:
        """Take one step; `gradient`, (samples, classes), is that of the mean loss by each embedding."""

    def state(self) -> State:
        """Return everything that `restore` needs to continue exactly from here."""

    def restore(self, state: State) -> None:
        """Continue from a state."""


@dataclass(frozen=True)
class Rate:
    """A learning rate: constant, or `size` / t in step t = 1, 2, ... ("inverse"), as in Proposition 1."""

    size: float
    decay: Literal["constant", "inverse"] = "constant"

    def __post_init__(self) -> None:
        as_positive("rate", self.size)
        if self.decay not in ("constant", "inverse"):
            raise InputError(f"decay must be 'constant' or 'inverse'; received {self.decay!r}")

    def at(self, step: int) -> float:
        """Return the rate of a step, 1, 2, ..."""
        return self.size / step if self.decay == "inverse" else self.size


class Linear:
    """A linear model without intercept, trained from zero by plain gradient descent, on dense or sparse features."""

    def __init__(self, n_features: int, n_classes: int) -> None:
        self.weights = np.zeros((n_features, n_classes))

    def embed(self, features: Matrix) -> Floats:
        result: Floats = features @ self.weights
        return result

    def learn(self, features: Matrix, gradient: Floats, rate: float) -> None:
        self.weights -= rate * (features.T @ gradient)

    def state(self) -> State:
        return {"weights": self.weights.copy()}

    def restore(self, state: State) -> None:
        self.weights = np.array(state["weights"])
