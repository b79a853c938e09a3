"""How the server combines the embeddings of all clients."""

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
        """The intercept, (classes,), or None if there is none."""
        return None if self._rate is None else self._intercept.copy()

    def scores(self, embeddings: Sequence[Floats]) -> Floats:
        """Return the scores that the loss takes, (samples, classes), from each client's embeddings, of that shape."""
        total = np.array(embeddings[0], dtype=np.float64)
        for of_client in embeddings[1:]:
            total += of_client
        total += self._intercept
        return total

    def learn(self, gradients: Floats) -> Floats:
        """Take a step from gradients by the scores; return those by the embeddings, the same for all clients."""
        if self._rate is not None:
            self._n_steps += 1
            self._intercept -= self._rate.at(self._n_steps) * gradients.mean(axis=0)
        return gradients

    def state(self) -> State:
        return {"intercept": self._intercept.copy(), "n_steps": np.array(self._n_steps)}

    def restore(self, state: State) -> None:
        self._intercept, self._n_steps = np.array(state["intercept"]), int(state["n_steps"])
