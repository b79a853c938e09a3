"""Shares while a training runs."""

from __future__ import annotations

import numpy as np

from verfedsv.federation import Evaluation, Training
from verfedsv.losses import Floats
from verfedsv.shapley import shapley_values


class LiveShares:
    """What clients have contributed so far: their values from one evaluation to the next, over all samples, summed."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._values: Floats = np.zeros(len(training.server.clients))
        self._last: Evaluation | None = None

    def restore(self, values: Floats) -> None:
        """Continue from the values of a checkpoint that the training has just restored."""
        if self._training.server.n_rounds:
            self._values, self._last = np.array(values), self._training.evaluate()

    def after(self, evaluation: Evaluation) -> Floats:
        """Return the shares after one more evaluation, (clients,); NaN if nothing has changed yet."""
        self._values, self._last = self._with(evaluation), evaluation
        total = self._values.sum()
        return self._values / total if total else np.full(len(self._values), np.nan)

    def values(self) -> Floats:
        """Return the values up to the current round, (clients,), evaluating it first if necessary.

        The shares that follow do not depend on it: checkpoints are written when time allows.
        """
        n_rounds = self._training.server.n_rounds
        if n_rounds and (self._last is None or self._last.n_rounds != n_rounds):
            return self._with(self._training.evaluate())
        return self._values.copy()

    def _with(self, evaluation: Evaluation) -> Floats:
        """Return the values with the game from the last evaluation to this one, the first from embeddings of zero."""
        server, current, own = self._training.server, evaluation.embeddings, evaluation.intercept
        previous = np.zeros_like(current) if self._last is None else self._last.embeddings
        labels = server.labels[: server.n_train]
        offset = None if own is None else np.tile(own, (len(labels), 1))
        game = shapley_values(previous, current, labels, server.loss, "closed-form", offset=offset)
        result: Floats = self._values + game.values
        return result
