"""How well a model does."""

from __future__ import annotations

from dataclasses import dataclass

from verfedsv.losses import Floats


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How well the model does after a number of rounds; the test figures are NaN if there is nothing to test on.

    `embeddings` are those of all clients and training samples, (clients, samples, classes); `intercept` is the server's
    own part, (classes,), or None if it has none.
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
        """Return the figures without the embeddings; None for what there is not."""
        figures = {name: value for name, value in vars(self).items() if name not in ("embeddings", "intercept")}
        return {name: None if value != value else value for name, value in figures.items()}
