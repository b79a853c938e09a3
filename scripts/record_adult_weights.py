"""Train a linear model on Adult and record its weights: the source of src/verfedsv/data/files/adult_weights.csv.

Plain SGD on the logistic loss with the paper's settings for Adult (learning rate 0.2, batches of 2837, 20 epochs, no
intercept). For a linear model, synchronous vertical training computes the same, however the features are split.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from verfedsv.data.adult import N_FEATURES, load_adult

BATCH, RATE, EPOCHS, ROUND = 2837, 0.2, 20, 40


def train() -> NDArray[np.float64]:
    """Return the weights before round 41, after it, and after the last round, (features, 3)."""
    features, labels = load_adult()
    rng = np.random.default_rng(0)
    weights = np.zeros(N_FEATURES)
    history = [weights]
    for _ in range(EPOCHS):
        order = rng.permutation(len(labels))
        for start in range(0, len(order), BATCH):
            batch = order[start : start + BATCH]
            x, y = features[batch], labels[batch]
            slope = -y / (1 + np.exp(y * (x @ weights)))
            weights = weights - RATE * (x.T @ slope) / len(batch)
            history.append(weights)
    return np.stack([history[ROUND], history[ROUND + 1], history[-1]], axis=1)


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "src/verfedsv/data/files/adult_weights.csv")
    np.savetxt(path, train(), delimiter=",", fmt="%.17g", header="before,after,trained", comments="")
