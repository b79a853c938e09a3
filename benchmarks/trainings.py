"""Synchronous trainings of linear models on real data, of which every embedding can be had."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.special import expit, softmax

from verfedsv import Recorder, Valuation, data
from verfedsv.data.catalogue import CATALOGUE, locate

Array = NDArray[Any]

SETTINGS = {
    "adult": (2837, 0.2, 20),
    "web": (6173, 0.2, 45),
    "covtype": (2000, 0.8, 10),
    "covtype full": (5811, 0.8, 5),
}
"""Batch size and learning rate as in table 3 of the paper (but for Covtype at full size, where the batch is larger so
that 500 rounds see every sample five times), and the number of epochs, which the paper does not give."""


def has(name: str) -> bool:
    """Return whether the data set is there: Adult always, others in $VERFEDSV_DATA or the user's cache."""
    return locate(CATALOGUE[name.split()[0]]) is not None


@cache
def load(name: str) -> tuple[csr_array[Any], Array]:
    """Return the features of all samples and the labels, 0 to C - 1; of "covtype", as many rows as the authors took."""
    samples = data.load(name.split()[0])
    if name != "covtype":
        return samples.features, samples.labels
    chosen = np.sort(np.random.default_rng(0).permutation(len(samples.labels))[:100_000])
    return csr_array(samples.features[chosen]), samples.labels[chosen]


def deviation(result: Valuation, true: Array) -> float:
    """Return the paper's metric: the mean over clients of the relative difference of shares."""
    shares = true / true.sum()
    return float(np.mean(np.abs(result.shares - shares) / shares))


@dataclass(frozen=True)
class Training:
    """A training: for each round the batch, for each client its features and its weights in each round.

    `data` are (samples, features of the client), `weights` (rounds, features of the client, classes).
    """

    labels: Array
    batches: list[Array]
    data: list[csr_array[Any]]
    weights: list[Array]

    @property
    def loss(self) -> str:
        return "logistic" if self.weights[0].shape[2] == 1 else "softmax"

    @property
    def clients(self) -> list[str]:
        return [f"client {m + 1}" for m in range(len(self.data))]

    def embeddings(self, round_number: int) -> Array:
        """Return those of all clients and samples, (clients, samples, classes)."""
        return np.stack([x @ w[round_number] for x, w in zip(self.data, self.weights, strict=True)])

    def uploads(self, client: int, dtype: type = np.float64) -> list[Array]:
        """Return what a client uploads in each round, (samples of the batch, classes)."""
        x, w = self.data[client], self.weights[client]
        return [(x[batch] @ w[t]).astype(dtype) for t, batch in enumerate(self.batches)]

    def record(
        self,
        path: Path | None,
        dtype: type = np.float64,
        recorder: Recorder | None = None,
        first: int = 0,
        last: int | None = None,
    ) -> Recorder:
        """Record rounds `first` to `last` of the training."""
        recorder = recorder or Recorder(path, self.labels, self.clients, self.loss)
        for t in range(first, len(self.batches) if last is None else last):
            batch = self.batches[t]
            uploads = {
                name: (x[batch] @ w[t]).astype(dtype)
                for name, x, w in zip(self.clients, self.data, self.weights, strict=True)
            }
            recorder.log(batch, uploads)
        return recorder


@cache
def train(name: str, n_clients: int, n_rounds: int | None = None) -> Training:
    """Train by SGD from zero, without an intercept, the features split into contiguous blocks of the same size."""
    features, labels = load(name)
    size, rate, n_epochs = SETTINGS[name]
    n_samples, n_features = features.shape
    n_classes = 1 if labels.max() == 1 else int(labels.max()) + 1
    rng = np.random.default_rng(0)
    weights = np.zeros((n_features, n_classes))
    batches, history = [], []
    while len(batches) < (n_rounds or n_epochs * -(-n_samples // size)):
        order = rng.permutation(n_samples)
        for start in range(0, n_samples, size):
            batch = np.sort(order[start : start + size])
            x, y = features[batch], labels[batch]
            batches.append(batch)
            history.append(weights)
            slope = expit(x @ weights) - y[:, np.newaxis] if n_classes == 1 else softmax(x @ weights, axis=1)
            if n_classes > 1:
                slope[np.arange(len(batch)), y] -= 1
            weights = weights - rate * (x.T @ slope) / len(batch)
    batches, history = batches[:n_rounds], history[:n_rounds]
    edges = np.linspace(0, n_features, n_clients + 1).astype(int)
    by_column = features.tocsc()
    data = [csr_array(by_column[:, a:b]) for a, b in pairwise(edges)]
    return Training(labels, batches, data, [np.stack([w[a:b] for w in history]) for a, b in pairwise(edges)])
