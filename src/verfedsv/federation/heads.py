"""How the server combines the embeddings of all clients. `torch_heads` has heads that are networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.errors import InputError, how_to_install
from verfedsv.federation.models import Rate, State
from verfedsv.federation.optimizers import BuildOptimizer, PlainDescent

Slope = Callable[[Floats], Floats]
"""Returns the gradient of each sample's loss by its scores, (samples, classes), from the scores."""


class Head(Protocol):
    """Turns embeddings, by client, (samples, width) each, into scores, (samples, classes), and learns.

    A client without embeddings, because it has not joined yet, counts with zeros.
    """

    @property
    def offset(self) -> Floats | None:
        """The intercept, (classes,), or None if there is none."""

    @property
    def n_numbers(self) -> int:
        """How many numbers per sample it computes with, at most, beside the embeddings."""

    def width_of(self, client: str) -> int:
        """Return how many numbers per sample it takes of a client; raise InputError if it takes none."""

    def scores(self, embeddings: Mapping[str, Floats]) -> Floats:
        """Return the scores that the loss takes."""

    def learn(self, embeddings: Mapping[str, Floats], slope: Slope) -> Mapping[str, Floats]:
        """Take a step; return the gradients of each sample's loss by the embeddings, by client, before the step."""

    def parameters(self) -> Mapping[str, Array]:
        """Return what is recorded of the head at the end of each round besides the offset, by name."""

    def recorded(self) -> dict[str, Any]:
        """Return what a recorder has to know of the head, as arguments."""

    def describe(self) -> dict[str, Any] | None:
        """Return what `read_head` needs to know besides the state, as plain data; None for a sum."""

    def state(self) -> State:
        """Return everything that `restore` needs to continue exactly from here."""

    def restore(self, state: State) -> None:
        """Continue from a state."""


class SumHead:
    """The paper's head: the sum of all embeddings and, with a `rate`, an intercept that the server learns."""

    def __init__(self, n_classes: int, rate: Rate | None, optimizer: BuildOptimizer = PlainDescent) -> None:
        self._rate, self._intercept, self._n_steps = rate, np.zeros(n_classes), 0
        self._optimizer = optimizer({"intercept": self._intercept})

    @property
    def offset(self) -> Floats | None:
        return None if self._rate is None else self._intercept.copy()

    @property
    def n_numbers(self) -> int:
        return len(self._intercept)

    def width_of(self, client: str) -> int:  # noqa: ARG002  # the same for all
        return len(self._intercept)

    def scores(self, embeddings: Mapping[str, Floats]) -> Floats:
        first, *others = embeddings.values()
        total = np.array(first, dtype=np.float64)
        for of_client in others:
            total += of_client
        total += self._intercept
        return total

    def learn(self, embeddings: Mapping[str, Floats], slope: Slope) -> Mapping[str, Floats]:
        """Take a step; the gradients are those by the scores, one array for all clients."""
        gradients = slope(self.scores(embeddings))
        if self._rate is not None:
            self._n_steps += 1
            own = {"intercept": self._intercept}
            self._optimizer.step(own, {"intercept": gradients.mean(axis=0)}, self._rate.at(self._n_steps))
        gradients.flags.writeable = False
        return dict.fromkeys(embeddings, gradients)

    def parameters(self) -> Mapping[str, Array]:
        return {}

    def recorded(self) -> dict[str, Any]:
        return {}

    def describe(self) -> None:
        return None

    def state(self) -> State:
        own = {"intercept": self._intercept.copy(), "n_steps": np.array(self._n_steps)}
        return {**own, **self._optimizer.state()}

    def restore(self, state: State) -> None:
        self._intercept, self._n_steps = np.array(state["intercept"]), int(state["n_steps"])
        self._optimizer.restore(state)


def read_head(about: Any, state: State) -> Head:
    """Return a head for predictions from what `describe` and `state` returned; raise InputError if they do not fit."""
    if about is None:
        head = SumHead(state["intercept"].size, None)
        head.restore(state)
        return head
    try:
        from verfedsv.federation.torch_heads import TorchHead
    except ImportError:
        raise InputError(f"its head needs PyTorch: {how_to_install('torch')}") from None

    return TorchHead.read(about, state)
