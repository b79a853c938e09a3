"""Values of a game with a head, drawn: permutations of the players for single samples.

A draw is a permutation and its reverse, so that even orders of the Taylor series around the middle of the round cancel;
each sample has permutations of its own. Few draws are made for random samples: where they differ from first-order
values, the mean of the first-order values of all samples is corrected (a control variate). Where one draw for each
sample is not enough, every sample is drawn, and first-order values are not needed.

Bounds need to know how far a single draw can be off, and of a head nothing is known: that is taken to be `SAFETY` times
the largest difference between two draws of all that were made.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from verfedsv.losses import Array, Floats
from verfedsv.shapley.blocks import compensated_sum
from verfedsv.shapley.confidence import radius_of_sum
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.head_game import BLOCK_SAMPLES, HeadGame
from verfedsv.shapley.permutation import SAFETY
from verfedsv.shapley.plan import Allowance

_FIRST_ORDER = 5
"""Evaluations of the head that first-order values take: before, in the middle of and after the round, and a gradient
that takes twice as long."""

_PILOT = 256
"""Samples of the pilot, which estimates the number of draws."""


def first_order(game: HeadGame, samples: Array) -> tuple[Floats, Floats]:
    """Return first-order values of each sample, (players, samples), and its utility, (samples,), to which they add up.

    The gradient is that at the middle of the round. The server gets what the clients' values leave; without a server,
    the clients share that in proportion to the size of their values.
    """
    utilities = game.decreases(samples)
    change, x = game.current[samples] - game.previous[samples], (game.current[samples] + game.previous[samples]) / 2
    middle = game.move.middle
    gradient = game.loss.gradient(game.head.scores(middle, x), game.labels[samples])
    by_column = -change * game.head.pull_back(middle, x, np.ascontiguousarray(gradient, np.float64))
    values = np.zeros((game.n_players, len(samples)))
    for client in range(game.n_clients):
        values[client] = by_column[:, game.columns == client].sum(axis=1)
    rest = utilities - values.sum(axis=0)
    if game.move.is_move:
        values[-1] = rest
    else:
        sizes = np.abs(values)
        total = sizes.sum(axis=0)
        values += rest * np.where(total > 0, sizes / np.where(total > 0, total, 1.0), 1 / game.n_players)
    return values, utilities


def estimate_first_order(game: HeadGame, samples: NDArray[np.intp] | None = None) -> Estimate:
    """Return what `samples` (all if None) add to first-order values, whose errors are unknown."""

    def sums(part: Array, _: int) -> Floats:
        values, utilities = first_order(game, part)
        return np.append(values.sum(axis=1), utilities.sum())

    n_summed = game.n_samples if samples is None else len(samples)
    total = compensated_sum(game.map_samples(sums, samples=samples)) / game.n_samples
    errors, n_evaluations = np.full(game.n_players, np.inf), _FIRST_ORDER * n_summed
    return Estimate(total[:-1], errors, np.asarray(total[-1]), frozenset(), n_evaluations=n_evaluations)


def draw(game: HeadGame, samples: Array, rng: np.random.Generator) -> Floats:
    """Return what each player adds in a random permutation and its reverse, on average, (players, samples).

    Each sample has a permutation of its own; the values of a sample add up to its utility.
    """
    n_rows, n_players = len(samples), game.n_players
    orders = rng.permuted(np.tile(np.arange(n_players), (n_rows, 1)), axis=1)
    places = np.argsort(orders, axis=1)
    steps = np.arange(n_players + 1)[:, np.newaxis, np.newaxis]
    walks = np.stack([places < steps, places >= n_players - steps])  # (2, steps, rows, players)
    inner = walks[:, 1:-1].reshape(-1, n_players)
    ends = walks[0, [0, -1]].reshape(-1, n_players)
    losses = np.empty((2, n_players + 1, n_rows))
    losses[:, [0, -1]] = game.losses(np.tile(samples, 2), ends).reshape(2, n_rows)
    losses[:, 1:-1] = game.losses(np.tile(samples, 2 * (n_players - 1)), inner).reshape(2, n_players - 1, n_rows)
    added = -np.diff(losses, axis=1)
    result = np.empty((n_rows, n_players))
    np.put_along_axis(result, orders, (added[0] + added[1, ::-1]).T / 2, axis=1)
    return np.ascontiguousarray(result.T)


@dataclass(frozen=True, eq=False)
class Draws:
    """How the values of some samples are drawn: `n_pairs` pairs of draws, of random ones, or `per_sample` of each."""

    samples: NDArray[np.intp]
    n_pairs: int = 0
    per_sample: int = 0

    def n_evaluations(self, n_players: int) -> int:
        """Return how often the head is evaluated."""
        n_samples = len(self.samples)
        if self.n_pairs:
            return 2 * self.n_pairs * (2 * n_players + _FIRST_ORDER) + _FIRST_ORDER * n_samples
        return 2 * self.per_sample * n_samples * 2 * n_players

    def carry_out(self, game: HeadGame, key: tuple[int, ...]) -> Estimate:
        """Return what the samples add to the values, without rounding errors; `key` seeds the draws."""
        found = self._of_some(game, key) if self.n_pairs else self._of_all(game, key)
        return replace(found, errors=np.zeros(game.n_players), n_evaluations=self.n_evaluations(game.n_players))

    def _of_some(self, game: HeadGame, key: tuple[int, ...]) -> Estimate:
        """Return first-order values, with what draws of random samples, one in each, differ from them on average."""
        chosen = self.samples[np.random.default_rng([*key, 0]).integers(len(self.samples), size=(2, self.n_pairs))]

        def of_block(pairs: Array, index: int) -> Estimate:
            samples, rng = chosen[:, pairs].ravel(), np.random.default_rng([*key, 1, index])
            differences = draw(game, samples, rng) - first_order(game, samples)[0]
            return _estimate(differences.reshape(game.n_players, 2, -1), np.zeros(()))

        parts = game.map_samples(of_block, size=BLOCK_SAMPLES // 2, samples=np.arange(self.n_pairs))
        correction = Estimate.sum(parts).divided(self.n_pairs * game.n_samples / len(self.samples))
        return Estimate.sum([estimate_first_order(game, self.samples), correction])

    def _of_all(self, game: HeadGame, key: tuple[int, ...]) -> Estimate:
        """Return the means of draws of every sample."""

        def of_block(samples: Array, index: int) -> Estimate:
            rng = np.random.default_rng([*key, 2, index])
            copies = np.stack([draw(game, samples, rng) for _ in range(2)], axis=1)
            return _estimate(copies, copies.mean(axis=1).sum())

        repeated = np.repeat(self.samples, self.per_sample)
        parts = game.map_samples(of_block, size=BLOCK_SAMPLES // 2, samples=repeated)
        return Estimate.sum(parts).divided(self.per_sample * game.n_samples)


def _estimate(copies: Floats, utility: Floats) -> Estimate:
    """Return the sums over terms, each the mean of two independent draws, (players, 2, terms)."""
    values, differences = copies.mean(axis=1), (copies[:, 0] - copies[:, 1]) / 2
    # A term is at most as far from its expectation as the mean of two draws can be.
    largest = SAFETY * np.abs(2 * differences).max(axis=1)
    return Estimate(
        values.sum(axis=1),
        np.zeros(len(values)),
        np.asarray(utility),
        frozenset({"sampling"}),
        "confidence",
        variance=np.square(differences).sum(axis=1),
        largest=largest,
    )


def split_samples(game: HeadGame, fraction: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return most samples, and a fraction of them whose embeddings changed most, both sorted.

    Where embeddings are completed, a few are far off, and the two in a hundred that change most had nearly all of the
    variance of draws: 50 to 200 times as much as the others, with tanh.
    """
    n_hard = int(fraction * game.n_samples)
    order = np.argsort(np.abs(game.current - game.previous).sum(axis=1), kind="stable")
    return np.sort(order[: game.n_samples - n_hard]), np.sort(order[game.n_samples - n_hard :])


def plan_draws(
    game: HeadGame, samples: NDArray[np.intp], allowed: Allowance, max_permutations: int, key: tuple[int, ...]
) -> Draws:
    """Return the fewest draws expected to keep the allowed errors, by a pilot whose draws are not used again."""
    n_samples, most = len(samples), max(1, max_permutations // 4)
    few = samples[np.unique(np.linspace(0, n_samples - 1, _PILOT).astype(np.intp))]
    rng = np.random.default_rng(key)
    # Two draws of one sample; and two of different samples, as far as they differ from first-order values.
    of_one = np.stack([draw(game, few, rng) for _ in range(2)], axis=1)[: game.n_clients]
    of_some = rng.permuted(of_one - first_order(game, few)[0][: game.n_clients, np.newaxis], axis=2)
    n_pairs = _needed(of_some, allowed, n_samples * most)
    if 2 * n_pairs <= n_samples:
        return Draws(samples, n_pairs=n_pairs)
    per_sample = -(-_needed(of_one, allowed, n_samples * most) // n_samples)
    return Draws(samples, per_sample=min(per_sample, most))


def _needed(copies: Floats, allowed: Allowance, most: int) -> int:
    """Return the least number of terms, at most `most`, whose mean is expected to keep the allowed errors.

    A term is the mean of two draws; `copies` are some of these, (clients, 2, terms).
    """
    half = np.abs(copies[:, 0] - copies[:, 1]) / 2
    # More draws will have a larger maximum than those of the pilot: twice that, say.
    variance, largest = np.square(half).mean(axis=1), 2 * 2 * SAFETY * half.max(axis=1)

    def is_enough(n: int) -> bool:
        if allowed.largest > 0:
            spread = float(radius_of_sum(1.21 * variance / n, np.zeros_like(largest), look=0).max())
            return spread <= allowed.sampled and float(largest.max()) / n <= allowed.largest
        return float(radius_of_sum(1.21 * variance / n, largest / n, look=0).max()) <= allowed.sampled

    low, high = 1, most
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle + 1, high)
    return low
