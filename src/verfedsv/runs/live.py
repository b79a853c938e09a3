"""Shares while a training runs."""

from __future__ import annotations

import numpy as np

from verfedsv.federation import Evaluation, Federation, Moment
from verfedsv.losses import Floats
from verfedsv.shapley import shapley_values


class LiveShares:
    """What clients contributed so far: the sum of the games from one evaluation to the next, from all embeddings."""

    def __init__(self, federation: Federation) -> None:
        self._federation = federation
        self._values: Floats = np.zeros(len(federation.clients))
        self._last: Evaluation | None = None

    def take_up(self, values: Floats, n_rounds: int) -> None:
        """Go on from the values after that many rounds, the state of which the federation has now."""
        self._values, self._last = np.array(values), self._federation.evaluate(n_rounds, 0.0)

    def after(self, evaluation: Evaluation) -> Floats:
        """Return the shares after one more evaluation, (clients,); NaN if nothing has changed yet."""
        self._add(evaluation)
        total = self._values.sum()
        return self._values / total if total else np.full(len(self._values), np.nan)

    def values_at(self, moment: Moment) -> Floats:
        """Return the values until a moment, (clients,), which is now; evaluates if that was not done at it."""
        if self._last is None or self._last.n_rounds != moment.n_rounds:
            self._add(self._federation.evaluate(*moment))
        return self._values.copy()

    def _add(self, evaluation: Evaluation) -> None:
        """Add the game from the last evaluation to this one; the first begins with embeddings of zero."""
        current = evaluation.embeddings
        previous = np.zeros_like(current) if self._last is None else self._last.embeddings
        labels, loss = self._federation.labels[: self._federation.n_train], self._federation.server.loss
        own = evaluation.intercept
        offset = None if own is None else np.tile(own, (len(labels), 1))
        self._values += shapley_values(previous, current, labels, loss, "closed-form", offset=offset).values
        self._last = evaluation
