"""How well a model does on training and test samples: its loss, and what people read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.data.targets import LabelScale
from verfedsv.losses import Loss


class Measure(NamedTuple):
    """What is measured: its name in sentences, and how to read it."""

    title: str
    meaning: str
    is_fraction: bool = False


MEASURES = {
    "loss": Measure("loss", "lower is better"),
    "accuracy": Measure("accuracy", "the fraction of the samples that the model gets right", is_fraction=True),
    "r2": Measure(
        "R²",
        "the fraction of the variance of the labels that the model explains, at most 1; below 0, their mean "
        "would be a better prediction",
    ),
    "rmse": Measure("RMSE", "the root of the mean squared error, in the units of the labels; lower is better"),
}
PARTS = {"train": "training samples", "test": "test samples"}
"""The samples that are measured apart, and what they are called."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """The measures of a model after a number of rounds, by name; those on test samples are NaN if there are none.

    `of_clients` has each client's embeddings of all training samples, (samples, width). `intercept` is the server's,
    (classes,), or None, and `parameters` are those of its head, by name.
    """

    n_rounds: int
    time: float
    train: Mapping[str, float]
    test: Mapping[str, float]
    of_clients: Sequence[Floats]
    intercept: Floats | None = None
    parameters: Mapping[str, Array] = field(default_factory=dict)

    @cached_property
    def embeddings(self) -> Floats:
        """The embeddings of all clients under a sum, (clients, samples, classes)."""
        return np.stack(self.of_clients)

    @property
    def train_loss(self) -> float:
        return self.train["loss"]

    @property
    def test_loss(self) -> float:
        return self.test["loss"]

    def metrics(self) -> dict[str, float | None]:
        """Return the numbers, None in place of NaN, without embeddings and parameters."""
        figures: dict[str, float] = {"n_rounds": self.n_rounds, "time": self.time}
        figures |= {f"train_{name}": value for name, value in self.train.items()}
        figures |= {f"test_{name}": value for name, value in self.test.items()}
        return {name: None if value != value else value for name, value in figures.items()}


def measures_of(loss: str) -> tuple[str, ...]:
    """Return the names of what is measured under a loss."""
    return ("loss", "r2", "rmse") if loss == "squared" else ("loss", "accuracy")


class Tally:
    """Measures scores part by part; `targets` are those of all samples, encoded, and `scale` the units of amounts."""

    def __init__(self, loss: Loss, targets: Array, scale: LabelScale) -> None:
        self._loss, self._targets, self._scale = loss, targets, scale
        self._total = self._squares = 0.0
        self._n_right = 0

    def add(self, scores: Floats, labels: Array, targets: Array) -> None:
        """Count some samples: their scores, (samples, classes), the labels that the loss takes, and these encoded."""
        if len(labels) == 0:
            return
        self._total += float(self._loss.value(scores, targets).sum())
        if "accuracy" in measures_of(self._loss.name):
            guess = scores.argmax(axis=1) if scores.shape[1] > 1 else scores[:, 0] > 0
            self._n_right += int(np.count_nonzero(guess == labels))
        else:
            self._squares += float(np.square(scores - targets).sum())

    def measures(self) -> dict[str, float]:
        """Return the measures of all samples, NaN if there are none."""
        names, targets, n_samples = measures_of(self._loss.name), self._targets, len(self._targets)
        if n_samples == 0:
            return dict.fromkeys(names, np.nan)
        found = {"loss": self._total / n_samples}
        if "accuracy" in names:
            return found | {"accuracy": self._n_right / n_samples}
        variation = float(np.square(targets - targets.mean(axis=0)).sum())
        found["r2"] = 1 - self._squares / variation if variation else np.nan
        return found | {"rmse": self._scale.deviation * float(np.sqrt(self._squares / targets.size))}
