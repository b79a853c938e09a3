"""Small vertical trainings of linear models whose every embedding is known, and their values by the definition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.special import softmax

from tests.games import Game, values_by_definition
from verfedsv import Recorder


@dataclass
class Training:
    """A synchronous training: `embeddings` of all samples in all rounds, (rounds, clients, samples, classes)."""

    labels: np.ndarray
    batches: list[np.ndarray]
    embeddings: np.ndarray
    loss: str
    intercepts: np.ndarray | None = None

    @property
    def clients(self) -> list[str]:
        return [f"client {m + 1}" for m in range(self.embeddings.shape[1])]

    def uploads(self, client: int) -> list[np.ndarray]:
        """Return what a client uploads in each round, (samples of the batch, classes)."""
        return [self.embeddings[t, client, batch] for t, batch in enumerate(self.batches)]

    def record(self, path=None, first=0, last=None, recorder=None, **options) -> Recorder:
        """Record rounds of the training, in memory if no path is given; the recorder stays open."""
        recorder = recorder or Recorder(path, self.labels, self.clients, self.loss, **options)
        for t in range(first, len(self.batches) if last is None else last):
            batch = self.batches[t]
            uploads = {name: self.embeddings[t, m, batch] for m, name in enumerate(self.clients)}
            own = None if self.intercepts is None else np.tile(self.intercepts[t], (len(batch), 1))
            recorder.log(batch, uploads, own)
        return recorder


def train(
    loss="logistic", n_clients=3, n_samples=300, n_features=5, batch=50, n_epochs=20, rate=0.5, seed=0, intercept=False
) -> Training:
    """Train a linear model for each client by synchronous SGD from zero."""
    rng = np.random.default_rng(seed)
    n_classes = 3 if loss == "softmax" else 1
    data = rng.normal(size=(n_clients, n_samples, n_features)) / np.sqrt(n_features)
    true = rng.normal(size=(n_clients, n_features, n_classes)) * np.linspace(2, 0.5, n_clients)[:, None, None]
    score = np.einsum("mnf,mfc->nc", data, true) + 0.5 * rng.normal(size=(n_samples, n_classes))
    labels = score.argmax(axis=1) if loss == "softmax" else (score[:, 0] > 0).astype(int)
    labels = score[:, 0] if loss == "squared" else labels
    weights, own = np.zeros_like(true), np.zeros(n_classes)
    batches, embeddings, intercepts = [], [], []
    for _ in range(n_epochs):
        order = rng.permutation(n_samples)
        for start in range(0, n_samples, batch):
            chosen = order[start : start + batch]
            h = np.einsum("mnf,mfc->mnc", data, weights)
            batches.append(chosen)
            embeddings.append(h)
            intercepts.append(own)
            slope = _slope(loss, h.sum(axis=0)[chosen] + own, labels[chosen])
            weights = weights - rate * np.einsum("mnf,nc->mfc", data[:, chosen], slope) / len(chosen)
            own = own - rate * slope.mean(axis=0) if intercept else own
    return Training(labels, batches, np.array(embeddings), loss, np.array(intercepts) if intercept else None)


def _slope(loss: str, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    if loss == "softmax":
        return softmax(x, axis=1) - np.eye(x.shape[1])[labels]
    if loss == "squared":
        return x - labels[:, None]
    return 1 / (1 + np.exp(-x)) - labels[:, None]


def values_of_rounds(embeddings: np.ndarray, labels: np.ndarray, loss: str, offsets=None, weight=None) -> np.ndarray:
    """Return the Shapley values of all rounds by the definition, (rounds, players), from zero at time 0.

    `embeddings` are (rounds, clients, samples, classes). With `offsets` of the server, (rounds, samples, classes),
    it is the last player. `weight(size, n_others)` is that of another semivalue.
    """
    if offsets is not None:
        embeddings = np.concatenate([embeddings, offsets[:, np.newaxis]], axis=1)
    before = np.zeros_like(embeddings[0])
    result = []
    for after in embeddings:
        arrays = [before, after] if loss == "softmax" else [before[..., 0], after[..., 0]]
        result.append(values_by_definition(Game(*arrays, labels, loss), weight))
        before = after
    return np.array(result)
