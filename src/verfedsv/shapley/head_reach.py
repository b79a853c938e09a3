"""What a player can add to any coalition of the others, by sample: proven where the layers of a head are known.

Needs torch. Draws and permutations get bounds from it that rest on no assumption.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn import functional as F  # noqa: N812  # its usual name

from verfedsv.arrays import Array, Floats
from verfedsv.head_ranges import Interval, Ranges, has_ranges, ranges_of_scores
from verfedsv.heads import one_thread
from verfedsv.losses import Logistic, Loss, Softmax, Squared
from verfedsv.shapley.head_game import BLOCK_SAMPLES

if TYPE_CHECKING:
    from verfedsv.shapley.head_game import HeadGame

_MOST_NUMBERS = 2**21
"""Derivatives of the widest layer that are held at once, 16 MB; several such arrays are."""

_ROUNDING = 1e-9
"""Ranges are computed in float64: they are widened by this part of their ends, which is far more than is rounded."""


class Reach(NamedTuple):
    """What each player adds to any coalition, between `low` and `high`, (players, samples)."""

    low: Floats
    high: Floats

    def part(self, samples: Array) -> Reach:
        """Return that of some samples."""
        return Reach(self.low[:, samples], self.high[:, samples])

    def distances(self, values: Floats) -> Floats:
        """Return how far what a player adds can be from some values, (players, samples)."""
        return np.asarray(np.maximum(np.abs(self.low - values), np.abs(self.high - values)))

    def widths(self) -> Floats:
        """Return how far what a player adds to two coalitions can be apart, (players, samples)."""
        return np.asarray(self.high - self.low)


def reach_of(game: HeadGame) -> Reach | None:
    """Return what is proven; None if not all layers of the head are known, or numbers overflow."""
    layers = game.head.layers
    if layers is None or not has_ranges(layers):
        return None
    widest = max(len(tensor) for tensor in game.head.state.tensors.values() if tensor.ndim)
    size = max(16, min(_MOST_NUMBERS // (game.n_players * widest), BLOCK_SAMPLES))
    parts = list(game.map_samples(lambda samples, _: _of_samples(game, layers, samples), size=size))
    low, high = (np.concatenate([part[k] for part in parts], axis=1) for k in range(2))
    return Reach(low, high) if np.isfinite(low).all() and np.isfinite(high).all() else None


def _of_samples(game: HeadGame, layers: list[Any], samples: Array) -> Reach:
    previous = torch.from_numpy(game.previous[samples])
    change = torch.from_numpy(game.current[samples]) - previous
    columns, labels = torch.from_numpy(np.asarray(game.columns)), game.labels[samples]
    states = (game.move.previous, game.move.current) if game.move.is_move else (game.move.current,)
    with one_thread(), np.errstate(all="ignore"):
        found = [
            _of_loss(game.loss, ranges_of_scores(layers, s.tensors, previous, change, columns, game.n_clients), labels)
            for s in states
        ]
        least, most = np.min([each.least for each in found], axis=0), np.max([each.most for each in found], axis=0)
        # What a client adds is minus the mean of the loss's derivative along its way; and a difference of two losses.
        low = -np.max([each.slopes.high.numpy() for each in found], axis=0)
        high = -np.min([each.slopes.low.numpy() for each in found], axis=0)
        if game.move.is_move:
            # Beyond what the server adds to nobody, both losses of the difference change by what clients add to them:
            # for each client of a coalition, two numbers from the same interval.
            alone, apart = _of_server(game, samples), (high - low).sum(axis=0)
            low, high = np.vstack([low, alone - apart]), np.vstack([high, alone + apart])
        low, high = np.maximum(low, least - most), np.minimum(high, most - least)
        margin = _ROUNDING * np.maximum(np.abs(low), np.abs(high))
        return Reach(low - margin, high + margin)


def _of_server(game: HeadGame, samples: Array) -> Floats:
    """Return what the server adds to nobody, (samples,)."""
    nobody = np.zeros((1, game.n_players), bool)
    server = nobody.copy()
    server[0, -1] = True
    before, after = game.losses(samples, np.vstack([nobody, server]))
    return np.asarray(before - after)


class _OfLoss(NamedTuple):
    """The `least` and the `most` that a loss can be, (samples,), and its derivatives along the clients' changes."""

    least: Floats
    most: Floats
    slopes: Interval


def _of_loss(loss: Loss, scores: Ranges, labels: Array) -> _OfLoss:
    (low, high), slopes = scores
    if type(loss) is Logistic:
        signs = torch.from_numpy(labels)[:, np.newaxis]
        against = scores.values.scaled(-signs)  # the loss is log(1 + exp(.)) of this, its derivative the sigmoid of it
        along = Interval(*map(torch.sigmoid, against)) * slopes.scaled(-signs)
        least, most = (F.softplus(each[:, 0], threshold=700).numpy() for each in against)
        return _OfLoss(least, most, Interval(along.low[..., 0], along.high[..., 0]))
    if type(loss) is Softmax:
        return _of_softmax(scores, torch.from_numpy(np.asarray(labels, np.int64)))
    if type(loss) is Squared:
        targets = torch.from_numpy(labels.reshape(low.shape))
        off = Interval(low - targets, high - targets)
        along = off * slopes
        near, far = torch.maximum(off.low, -off.high).clamp(min=0), torch.maximum(-off.low, off.high)
        least, most = ((each**2).sum(dim=1).numpy() / 2 for each in (near, far))
        return _OfLoss(least, most, Interval(along.low.sum(dim=2), along.high.sum(dim=2)))
    # Of a user's loss, only its constants are known.
    width = loss.lipschitz * torch.linalg.vector_norm(high - low, dim=1).numpy() / 2
    middle = np.asarray(loss.value(((low + high) / 2).numpy(), labels))
    steepest = loss.lipschitz * torch.linalg.vector_norm(torch.maximum(-slopes.low, slopes.high), dim=2)
    return _OfLoss(middle - width, middle + width, Interval(-steepest, steepest))


def _of_softmax(scores: Ranges, labels: torch.Tensor) -> _OfLoss:
    """Take the derivative as the sum over the other classes of their probabilities times how they leave the own one."""
    (low, high), slopes = scores
    is_own = F.one_hot(labels, low.shape[1]).bool()
    best, worst = torch.where(is_own, high, low), torch.where(is_own, low, high)
    least, most = ((torch.logsumexp(each, 1) - each[is_own]).numpy() for each in (best, worst))
    likely = Interval(torch.empty_like(low), torch.empty_like(high))
    for c in range(low.shape[1]):
        for found, own, others in ((likely.low, low, high), (likely.high, high, low)):
            x = others.clone()
            x[:, c] = own[:, c]
            found[:, c] = torch.softmax(x, 1)[:, c]
    mine = labels[:, np.newaxis].expand(*slopes.low.shape[:2], 1)
    away = Interval(slopes.low - slopes.high.gather(2, mine), slopes.high - slopes.low.gather(2, mine))
    each = likely * away
    first = Interval(*(torch.where(is_own, 0.0, end).sum(dim=2) for end in each))
    # Or the probability of all others, times the most that any of them leaves it.
    wrong = Interval(*(-torch.expm1(-torch.from_numpy(end)) for end in (least, most)))
    farthest = Interval(
        torch.where(is_own, math.inf, away.low).amin(dim=2), torch.where(is_own, -math.inf, away.high).amax(dim=2)
    )
    second = wrong * farthest
    slopes = Interval(torch.maximum(first.low, second.low), torch.minimum(first.high, second.high))
    return _OfLoss(least, most, slopes)
