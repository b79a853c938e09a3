"""How well a model does on training and test samples: its loss, and what people read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from verfedsv.data.targets import LabelScale
from verfedsv.losses import Array, Floats, Loss


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

    `embeddings` are those of all clients and training samples, (clients, samples, classes); `intercept` is the
    server's, (classes,), or None.
    """

    n_rounds: int
    time: float
    train: Mapping[str, float]
    test: Mapping[str, float]
    embeddings: Floats
    intercept: Floats | None = None

    @property
    def train_loss(self) -> float:
        return self.train["loss"]

    @property
    def test_loss(self) -> float:
        return self.test["loss"]

    def metrics(self) -> dict[str, float | None]:
        """Return the numbers, None in place of NaN, without embeddings and intercept."""
        figures: dict[str, float] = {"n_rounds": self.n_rounds, "time": self.time}
        figures |= {f"train_{name}": value for name, value in self.train.items()}
        figures |= {f"test_{name}": value for name, value in self.test.items()}
        return {name: None if value != value else value for name, value in figures.items()}


def measures_of(loss: str) -> tuple[str, ...]:
    """Return the names of what is measured under a loss."""
    return ("loss", "r2", "rmse") if loss == "squared" else ("loss", "accuracy")


def measure(loss: Loss, scores: Floats, labels: Array, targets: Array, scale: LabelScale) -> dict[str, float]:
    """Return the measures of scores, (samples, classes), NaN without samples.

    `labels` are those that the loss takes, `targets` the same encoded, and `scale` the units of amounts.
    """
    names = measures_of(loss.name)
    if len(labels) == 0:
        return dict.fromkeys(names, np.nan)
    found = {"loss": float(loss.value(scores, targets).mean())}
    if "accuracy" in names:
        guess = scores.argmax(axis=1) if scores.shape[1] > 1 else scores[:, 0] > 0
        return found | {"accuracy": float(np.mean(guess == labels))}
    squares = float(np.square(scores - targets).sum())
    variation = float(np.square(targets - targets.mean(axis=0)).sum())
    found["r2"] = 1 - squares / variation if variation else np.nan
    return found | {"rmse": scale.deviation * float(np.sqrt(squares / targets.size))}
