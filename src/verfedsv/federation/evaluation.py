"""Loss and accuracy of a model."""

from __future__ import annotations

from dataclasses import dataclass

from verfedsv.losses import Floats


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Loss and accuracy after a number of rounds; those on test samples are NaN if there are none.

    `embeddings` are those of all clients and training samples, (clients, samples, classes); `intercept` is the
    server's, (classes,), or None.
    """

    n_rounds: int
    time: float
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float
    embeddings: Floats
    intercept: Floats | None = None

    def metrics(self) -> dict[str, float | None]:
        """Return the numbers, None in place of NaN, without embeddings and intercept."""
        figures = {name: value for name, value in vars(self).items() if name not in ("embeddings", "intercept")}
        return {name: None if value != value else value for name, value in figures.items()}
