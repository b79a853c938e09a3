"""Rounds to value, and their values by the definition: slow, short, and independent of what is tested."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from math import comb

import numpy as np
from scipy.special import logsumexp

from verfedsv import CubicForm, Loss

LOSSES = ("logistic", "softmax", "squared")


@dataclass
class Game:
    """The arguments of a round, as a user passes them."""

    previous: np.ndarray
    current: np.ndarray
    labels: np.ndarray
    loss: str
    offset: np.ndarray | None = None

    @property
    def arguments(self) -> tuple:
        return self.previous, self.current, self.labels, self.loss

    @property
    def n_clients(self) -> int:
        return len(self.previous)


def random_game(loss: str, n_clients=4, n_samples=30, step=0.5, seed=0, dtype=np.float64, offset=False) -> Game:
    """Return a round with normally distributed embeddings and changes of standard deviation `step`."""
    rng = np.random.default_rng(seed)
    shape = (n_clients, n_samples, 3) if loss == "softmax" else (n_clients, n_samples)
    previous = rng.normal(size=shape)
    current = previous + step * rng.normal(size=shape)
    if loss == "squared":
        labels = rng.normal(size=n_samples)
    else:
        labels = rng.integers(0, 3 if loss == "softmax" else 2, n_samples)
    own = rng.normal(size=shape[1:]) if offset else None
    return Game(previous.astype(dtype), current.astype(dtype), labels, loss, own)


def mean_loss(loss: str, x: np.ndarray, labels: np.ndarray) -> float:
    """Return the mean loss of summed embeddings, by scipy and the textbook."""
    if loss == "logistic":
        sign = np.where(labels > 0, 1, -1)
        return float(np.mean(np.logaddexp(0, -sign * x)))
    if loss == "softmax":
        return float(np.mean(logsumexp(x, axis=1) - x[np.arange(len(x)), labels]))
    residual = (x - labels).reshape(len(x), -1)
    return float(np.mean(0.5 * (residual**2).sum(axis=1)))


def utility(game: Game, coalition: frozenset[int]) -> float:
    """Return U(S) of equation 1 of the paper."""
    previous, current = game.previous.astype(np.float64), game.current.astype(np.float64)
    offset = 0 if game.offset is None else game.offset
    mixed = sum(current[m] if m in coalition else previous[m] for m in range(game.n_clients))
    before = mean_loss(game.loss, previous.sum(axis=0) + offset, game.labels)
    return before - mean_loss(game.loss, mixed + offset, game.labels)


def values_by_definition(game: Game, weight=None) -> np.ndarray:
    """Return the Shapley values by definition 2 of the paper, or those of another `weight(size, n_others)`."""
    n = game.n_clients
    if weight is None:

        def weight(size, n_others):
            return 1 / ((n_others + 1) * comb(n_others, size))

    known = {}
    values = np.zeros(n)
    for m in range(n):
        others = [k for k in range(n) if k != m]
        for size in range(n):
            for members in combinations(others, size):
                pair = frozenset(members) | {m}, frozenset(members)
                for coalition in pair:
                    if coalition not in known:
                        known[coalition] = utility(game, coalition)
                values[m] += weight(size, n - 1) * (known[pair[0]] - known[pair[1]])
    return values


class LogCosh(Loss):
    """log(cosh(x - y)): between squared and absolute error."""

    name = "log-cosh"
    lipschitz, smoothness, gradient_range = 1.0, 1.0, 2.0
    third_derivative, fifth_derivative = 0.77, 4.1

    def encode(self, labels, n_classes):  # noqa: ARG002
        return np.asarray(labels, dtype=float)

    def value(self, x, labels):
        r = np.abs(x[..., 0] - labels)
        return r + np.log1p(np.exp(-2 * r)) - np.log(2)

    def gradient(self, x, labels):
        return np.tanh(x - labels[:, None])

    def cubic_form(self, x, labels):
        t = np.tanh(x - labels[:, None])
        return CubicForm(-2 * t * (1 - t**2), np.zeros(x.shape))
