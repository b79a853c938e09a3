"""What the server learns from the labels: which loss, and amounts in which units."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from verfedsv.errors import InputError

LabelArray = NDArray[np.intp] | NDArray[np.float64]
"""Labels: numbers of classes, or amounts."""

LossName = Literal["logistic", "softmax", "squared"]
AskedLoss = Literal["auto", "logistic", "softmax", "squared"]
"""A loss that a user asks for; "auto" is the usual one for the labels."""


@dataclass(frozen=True)
class LabelScale:
    """The units of amounts at the server: its 0 is `mean`, its 1 is `mean` + `deviation`."""

    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def of(cls, amounts: LabelArray) -> LabelScale:
        """Return mean and standard deviation; raise InputError if all amounts are equal.

        >>> LabelScale.of(np.array([1.0, 3.0])).restored(np.array([0.0, 2.0]))
        array([2., 4.])
        """
        mean = float(amounts.mean())
        mean += float((amounts - mean).mean())  # corrected for rounding
        deviation = float(np.sqrt(np.square(amounts - mean).mean()))
        if deviation <= 1e-12 * float(np.abs(amounts).max()):  # constant up to rounding
            raise InputError(f"all {len(amounts):,} labels to train on are {mean:g}; amounts to be learnt must differ")
        return cls(mean, deviation)

    def standardised(self, amounts: LabelArray) -> NDArray[np.float64]:
        """Return amounts in the units of the server."""
        return np.asarray((amounts - self.mean) / self.deviation, np.float64)

    def restored(self, scores: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return scores of the server in the units of the labels."""
        return scores * self.deviation + self.mean


def choose_loss(asked: AskedLoss, n_classes: int) -> LossName:
    """Return the loss for labels of so many classes, 1 for amounts; raise InputError if another was asked for.

    >>> choose_loss("auto", 1), choose_loss("auto", 2), choose_loss("softmax", 2)
    ('squared', 'logistic', 'softmax')
    """
    usual: LossName = "squared" if n_classes == 1 else "logistic" if n_classes == 2 else "softmax"
    if asked in ("auto", usual) or (asked == "softmax" and n_classes == 2):
        return usual if asked == "auto" else asked
    takes = {"squared": "amounts", "logistic": "two classes", "softmax": "two or more classes"}[asked]
    found = "amounts" if n_classes == 1 else f"{n_classes:,} classes"
    raise InputError(
        f"loss {asked!r} takes {takes}, and the labels are {found}: set loss to {usual!r}, or leave it out"
    )
