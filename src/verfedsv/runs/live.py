"""Shares while a training runs."""

from __future__ import annotations

import numpy as np

from verfedsv.arrays import Floats
from verfedsv.federation import Evaluation, Training
from verfedsv.shapley import shapley_values

_SAMPLES, _TOLERANCE = 1000, 0.01
"""Under a network, values are of so many samples, and as accurate: each sample takes many evaluations of it."""


class LiveShares:
    """What clients have contributed so far: their values from one evaluation to the next, over all samples, summed."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self._first = {name: array.copy() for name, array in training.server.head.parameters().items()}
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
        return self._values + (self._of_head(evaluation) if evaluation.parameters else self._of_sum(evaluation))

    def _of_head(self, evaluation: Evaluation) -> Floats:
        server, last = self._training.server, self._last
        some = np.unique(np.linspace(0, server.n_train - 1, _SAMPLES).astype(np.intp))
        current = [own[some] for own in evaluation.of_clients]
        previous = [np.zeros_like(own) for own in current] if last is None else [own[some] for own in last.of_clients]
        game = shapley_values(
            previous,
            current,
            server.labels[some],
            server.loss,
            tolerance=_TOLERANCE,
            head=server.head.recorded()["head"],
            previous_head=self._first if last is None else last.parameters,
        )
        return game.values

    def _of_sum(self, evaluation: Evaluation) -> Floats:
        server, current, own = self._training.server, evaluation.embeddings, evaluation.intercept
        previous = np.zeros_like(current) if self._last is None else self._last.embeddings
        labels = server.labels[: server.n_train]
        offset = None if own is None else np.tile(own, (len(labels), 1))
        game = shapley_values(previous, current, labels, server.loss, "closed-form", offset=offset)
        return game.values
