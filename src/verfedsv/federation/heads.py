"""What the server makes of the embeddings of all clients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from verfedsv.federation.models import Rate, State
from verfedsv.losses import Floats


class SumHead:
    """The paper's head: the sum of all embeddings and, with a `rate`, an intercept that the server learns."""

    def __init__(self, n_classes: int, rate: Rate | None) -> None:
        self._rate, self._intercept, self._n_steps = rate, np.zeros(n_classes), 0

    @property
    def offset(self) -> Floats | None:
        """What the head adds of its own, (classes,), or None if it adds nothing."""
        return None if self._rate is None else self._intercept.copy()

    def scores(self, embeddings: Sequence[Floats]) -> Floats:
        """Return what the loss is of, (samples, classes), from the embeddings of each client, (samples, classes)."""
        total = np.array(embeddings[0], dtype=np.float64)
        for of_client in embeddings[1:]:
            total += of_client
        total += self._intercept
        return total

    def learn(self, gradients: Floats) -> Floats:
        """Take a step from gradients by the scores; return those by any client's embeddings, which are the same."""
        if self._rate is not None:
            self._n_steps += 1
            self._intercept -= self._rate.at(self._n_steps) * gradients.mean(axis=0)
        return gradients

    def state(self) -> State:
        return {"intercept": self._intercept.copy(), "n_steps": np.array(self._n_steps)}

    def restore(self, state: State) -> None:
        self._intercept, self._n_steps = np.array(state["intercept"]), int(state["n_steps"])
