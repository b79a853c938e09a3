"""Values of a game with a head, drawn: permutations of the players for single samples.

A draw is a permutation and its reverse, so that even orders of the Taylor series around the middle of the round cancel;
each sample has permutations of its own. Few draws are made for random samples: where they differ from first-order
values, the mean of the first-order values of all samples is corrected (a control variate). Where one draw for each
sample is not enough, every sample is drawn, and first-order values are not needed.

Clients choose their embeddings, so first-order values may be anything, and few samples may have values that are far
from them. Bounds need to know how far a single draw can be off. Where the layers of the head are known, that is proven:
no draw is further from 0 than what the player can change the loss of that sample by (`HeadGame.reach`), and samples are
drawn with a probability that grows with that. Of other heads nothing is known. Samples are then drawn with a
probability that grows with their first-order values, with how far the losses of a few coalitions are apart, two of them
random, and with the change of each client; and a draw is taken to be off by `SAFETY` times the largest difference
between two draws of all that were made, or by the largest first-order value or distance between losses, if one is more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.shapley.confidence import radius_of_sum
from verfedsv.shapley.estimate import ErrorKind, Estimate
from verfedsv.shapley.exact import MAX_CLIENTS
from verfedsv.shapley.head_game import BLOCK_SAMPLES, HeadGame
from verfedsv.shapley.permutation import SAFETY
from verfedsv.shapley.plan import PER_LARGEST, Allowance

if TYPE_CHECKING:
    from verfedsv.shapley.head_reach import Reach

_FIRST_ORDER = 6
"""Evaluations of the head that first-order values and ranges take: before and after the round, in its middle one with a
gradient, which takes as long as two, and for two coalitions."""

_PILOT = 256
"""Samples of the pilot, which estimates the number of draws."""

_GUESSED = 1 / 32
"""The fraction of the samples from which the size of values is guessed."""


@dataclass(frozen=True, eq=False)
class FirstOrder:
    """First-order values of each sample, (players, samples), and its utility, (samples,), to which they add up.

    `ranges`, (samples,), are the largest differences between the losses of four coalitions: nobody, all players, and a
    random one, other for each sample, with its complement. `reach` contains what
    each player adds to any coalition; None if that is not known.
    """

    values: Floats
    utilities: Floats
    ranges: Floats
    reach: Reach | None = None

    @classmethod
    def of(cls, game: HeadGame, key: tuple[int, ...]) -> FirstOrder:
        """Return those of all samples; `key` seeds the coalitions."""
        parts = list(game.map_samples(lambda part, index: cls.of_some(game, part, (*key, index))))
        values = np.concatenate([part.values for part in parts], axis=1)
        utilities, ranges = (np.concatenate([getattr(part, n) for part in parts]) for n in ("utilities", "ranges"))
        return cls(values, utilities, ranges, game.reach)

    def part(self, samples: NDArray[np.intp]) -> FirstOrder:
        """Return those of some samples."""
        reach = None if self.reach is None else self.reach.part(samples)
        return FirstOrder(self.values[:, samples], self.utilities[samples], self.ranges[samples], reach)

    @classmethod
    def of_some(cls, game: HeadGame, samples: Array, key: tuple[int, ...]) -> FirstOrder:
        """Return those of some samples.

        The gradient is that at the middle of the round. The server gets what the clients' values leave; without a
        server, the clients share that in proportion to the size of their values.
        """
        members = np.random.default_rng(key).random((len(samples), game.n_players)) < 0.5
        inner = game.losses(samples, np.stack([members, ~members]))
        before, after = game.ends(samples)
        utilities, ranges = before - after, np.ptp([before, after, *inner], axis=0)
        change, x = game.current[samples] - game.previous[samples], (game.current[samples] + game.previous[samples]) / 2
        labels = game.labels[samples]
        _, gradient = game.head.differentiate(game.move.middle, x, lambda scores: game.loss.gradient(scores, labels))
        values = np.zeros((game.n_players, len(samples)))
        with np.errstate(over="ignore", invalid="ignore"):
            for client in range(game.n_clients):
                own = game.columns == client
                values[client] = -(change[:, own] * gradient[:, own]).sum(axis=1)
        # At a kink the gradient may be infinite: a root at 0. Draws are corrected for any numbers, but not for these.
        values[~np.isfinite(values)] = 0.0
        rest = utilities - values.sum(axis=0)
        if game.move.is_move:
            values[-1] = rest
        else:
            sizes = np.abs(values)
            total = sizes.sum(axis=0)
            values += rest * np.where(total > 0, sizes / np.where(total > 0, total, 1.0), 1 / game.n_players)
        return cls(values, utilities, ranges)

    def chances(self, game: HeadGame) -> Floats:
        """Return how likely each sample is to be drawn, relative to all being alike, (samples,); their mean is 1.

        Half of the draws are of any sample. The others are by how far draws of clients may be from first-order values,
        so that none weighs more than twice the mean of that. If it is not known, they are in equal parts by the size of
        first-order values, by the ranges of losses, and by the change of each client's embeddings. So no first-order
        value weighs more than six times the mean of all, and a sample that is moved far is found, however few there
        are.
        """
        if self.reach is not None:
            return np.asarray(0.5 + 0.5 * _relative(self.reach.distances(self.values)[: game.n_clients].max(axis=0)))
        change = np.abs(game.current - game.previous)
        moves = [_relative(change[:, game.columns == client].max(axis=1)) for client in range(game.n_clients)]
        parts = [_relative(np.abs(self.values).max(axis=0)), _relative(self.ranges), np.mean(moves, axis=0)]
        return np.asarray(0.5 + 0.5 * np.mean(parts, axis=0))

    def largest(self, chances: Floats) -> Floats:
        """Return how far a draw of any sample is at most from its expectation over samples, (players,).

        Where nothing proves that, it is taken to be the largest first-order value of all samples: at a kink, the
        derivative may change by as much as it is elsewhere. Of a piecewise linear head, few samples meet a kink, and
        the few that are drawn may miss them all. Or it is the largest range, if that is more: what a player adds is a
        difference between two losses.
        """
        if self.reach is not None:
            distances = self.reach.distances(self.values)
            return np.asarray((distances / chances).max(axis=1) + distances.mean(axis=1))
        by_order = (np.abs(self.values) / chances).max(axis=1)
        return np.asarray(np.maximum(by_order, (self.ranges / chances).max()))

    def largest_of_one(self) -> Floats:
        """Return how far the mean of two draws of a sample is at most from its value, (players,); 0 if unknown."""
        return np.zeros(len(self.values)) if self.reach is None else self.reach.widths().max(axis=1)

    def hardest(self, n_players: int, n_clients: int, allowed: Allowance) -> NDArray[np.intp]:
        """Return the samples to enumerate: draws of the others then take least time for what their bound needs.

        Samples that a client can change by far more than others are few, or it could not be said of them. They are
        found without a draw.
        """
        n_samples, most = len(self.utilities), allowed.largest or allowed.sampled / PER_LARGEST
        if self.reach is None or n_players > MAX_CLIENTS or most == 0:
            return np.arange(0)
        sizes = self.reach.distances(self.values)[:n_clients].max(axis=0)
        widths = self.reach.widths()[:n_clients].max(axis=0)
        order = np.argsort(-np.maximum(sizes, widths), kind="stable")
        # Of the samples that remain if the first 0, 1, ... are enumerated: sum, largest width and number.
        total, widest = (
            of(each[order][::-1])[::-1] for of, each in ((np.cumsum, sizes), (np.maximum.accumulate, widths))
        )
        n_left = np.arange(n_samples, 0, -1)
        # `largest` is at most three times the mean distance, `largest_of_one` the largest width.
        n_pairs = np.minimum(3 * total / n_samples, np.maximum(widest * n_left / n_samples, n_left * most)) / most
        costs = 2.0**n_players * np.arange(n_samples) + 4 * n_players * n_pairs  # a pair walks twice there and back
        return np.asarray(order[: int(np.argmin(costs)) if costs.min() < 2.0**n_players * n_samples else n_samples])


def _relative(sizes: Floats) -> Floats:
    """Return sizes as multiples of their mean; 1 if all are 0."""
    largest = sizes.max()
    if not 0 < largest < np.inf:
        return np.ones(len(sizes))
    return np.asarray(sizes / largest / (sizes / largest).mean())


def guess_values(game: HeadGame, key: tuple[int, ...]) -> Estimate:
    """Return values of some random samples, one draw of each, to show how large values are; errors are infinite."""
    rng = np.random.default_rng(key)
    n = min(game.n_samples, max(_PILOT, int(_GUESSED * game.n_samples)))
    some = rng.choice(game.n_samples, n, replace=False)
    values = draw(game, some, rng).mean(axis=1)
    errors, n_evaluations = np.full(game.n_players, np.inf), 2 * game.n_players * n
    return Estimate(values, errors, np.asarray(np.nan), frozenset(), n_evaluations=n_evaluations)


def draw(game: HeadGame, samples: Array, rng: np.random.Generator) -> Floats:
    """Return what each player adds in a random permutation and its reverse, on average, (players, samples).

    Each sample has a permutation of its own; the values of a sample add up to its utility.
    """
    n_rows, n_players = len(samples), game.n_players
    orders = rng.permuted(np.tile(np.arange(n_players), (n_rows, 1)), axis=1)
    places = np.argsort(orders, axis=1)
    steps = np.arange(n_players + 1)[:, np.newaxis, np.newaxis]
    walks = np.stack([places < steps, places >= n_players - steps])  # (2, steps, rows, players)
    # The ends are the same of both.
    coalitions = np.concatenate([walks[0], walks[1, 1:-1]])
    there = game.losses(samples, coalitions)
    losses = np.stack([there[: n_players + 1], there[[0, *range(n_players + 1, 2 * n_players), n_players]]])
    added = -np.diff(losses, axis=1)
    result = np.empty((n_rows, n_players))
    np.put_along_axis(result, orders, (added[0] + added[1, ::-1]).T / 2, axis=1)
    return np.ascontiguousarray(result.T)


@dataclass(frozen=True, eq=False)
class Draws:
    """How values are drawn: `n_pairs` pairs of draws of random samples, or `per_sample` pairs of each."""

    first_order: FirstOrder
    chances: Floats
    n_pairs: int = 0
    per_sample: int = 0

    @classmethod
    def plan(
        cls,
        game: HeadGame,
        first_order: FirstOrder,
        allowed: Allowance,
        max_permutations: int,
        key: tuple[int, ...],
    ) -> Draws:
        """Return the fewest draws expected to keep the allowed errors, by a pilot whose draws are not used again."""
        n_samples, most, chances = game.n_samples, max(1, max_permutations // 4), first_order.chances(game)
        rng, clients = np.random.default_rng((*key, 1)), slice(game.n_clients)
        few = _choose(rng, chances, _PILOT)
        # Two draws of one sample; and two of different samples, as far as they differ from first-order values.
        of_one = np.stack([draw(game, few, rng)[clients] for _ in range(2)], axis=1)
        weights = 1 / chances[few]
        differences = (of_one - first_order.values[clients, np.newaxis, few]) * weights
        half, half_of_one = _half(rng.permuted(differences, axis=2)), _half(of_one)
        of_some, of_all = first_order.largest(chances)[clients], first_order.largest_of_one()[clients]
        if first_order.reach is None:
            # More draws will have a larger maximum than those of the pilot: twice that, say.
            of_some, of_all = (
                np.maximum(2 * 2 * SAFETY * np.abs(own).max(axis=1), least)
                for own, least in ((half, of_some), (half_of_one, of_all))
            )
        n_pairs = _needed(half, np.ones(_PILOT), of_some, allowed, n_samples * most)
        if 2 * n_pairs <= n_samples:
            return cls(first_order, chances, n_pairs=n_pairs)
        per_sample = min(most, -(-_needed(half_of_one, weights, of_all, allowed, n_samples * most) // n_samples))
        if first_order.reach is not None and n_pairs < per_sample * n_samples:
            return cls(first_order, chances, n_pairs=n_pairs)
        return cls(first_order, chances, per_sample=per_sample)

    def n_evaluations(self, n_players: int) -> int:
        """Return how often the head is evaluated, first-order values included."""
        n_samples = len(self.chances)
        n_draws = 2 * (self.n_pairs or self.per_sample * n_samples)
        return n_draws * 2 * n_players + _FIRST_ORDER * n_samples

    def carry_out(self, game: HeadGame, key: tuple[int, ...]) -> Estimate:
        """Return the values, without rounding errors; `key` seeds the draws."""
        found = self._of_some(game, key) if self.n_pairs else self._of_all(game, key)
        utility = np.asarray(self.first_order.utilities.mean())
        kind: ErrorKind = "confidence" if self.is_proven else "confidence on an assumption"
        return replace(found, utility=utility, kind=kind, n_evaluations=self.n_evaluations(game.n_players))

    @property
    def is_proven(self) -> bool:
        """Whether it is known how far a draw can be off."""
        return self.first_order.reach is not None

    def _of_some(self, game: HeadGame, key: tuple[int, ...]) -> Estimate:
        """Return first-order values, with what draws of random samples, one in each, differ from them on average."""
        chosen = _choose(np.random.default_rng([*key, 0]), self.chances, 2 * self.n_pairs).reshape(2, -1)

        def of_block(pairs: Array, index: int) -> Estimate:
            samples, rng = chosen[:, pairs].ravel(), np.random.default_rng([*key, 1, index])
            differences = (draw(game, samples, rng) - self.first_order.values[:, samples]) / self.chances[samples]
            return _estimate(differences.reshape(game.n_players, 2, -1))

        parts = game.map_samples(of_block, size=BLOCK_SAMPLES // 2, samples=np.arange(self.n_pairs))
        found = Estimate.sum(parts)
        largest = self.first_order.largest(self.chances)
        if not self.is_proven:
            largest = np.maximum(found.largest, largest)
        found = replace(found, largest=largest).divided(self.n_pairs)
        return replace(found, values=self.first_order.values.mean(axis=1) + found.values)

    def _of_all(self, game: HeadGame, key: tuple[int, ...]) -> Estimate:
        """Return the means of draws of every sample."""

        def of_block(samples: Array, index: int) -> Estimate:
            rng = np.random.default_rng([*key, 2, index])
            return _estimate(np.stack([draw(game, samples, rng) for _ in range(2)], axis=1))

        repeated = np.repeat(np.arange(game.n_samples), self.per_sample)
        found = Estimate.sum(game.map_samples(of_block, size=BLOCK_SAMPLES // 2, samples=repeated))
        largest = self.first_order.largest_of_one()
        if not self.is_proven:
            # Two draws of the one sample that matters to a player may coincide, but then not for all players.
            largest = np.full(game.n_players, found.largest.max())
        return replace(found, largest=largest).divided(self.per_sample * game.n_samples)


def _choose(rng: np.random.Generator, chances: Floats, n: int) -> NDArray[np.intp]:
    """Return n random samples, some of them several times, by how likely each is."""
    sums = np.cumsum(chances)
    chosen = np.searchsorted(sums, rng.random(n) * sums[-1], side="right")
    return np.asarray(np.minimum(chosen, len(sums) - 1), np.intp)


def _half(copies: Floats) -> Floats:
    """Return half of the differences between two draws, (players, terms), of (players, 2, terms)."""
    return np.asarray((copies[:, 0] - copies[:, 1]) / 2)


def _estimate(copies: Floats) -> Estimate:
    """Return the sums over terms, each the mean of two independent draws, (players, 2, terms), without a utility."""
    values, differences = copies.mean(axis=1), _half(copies)
    # A term is at most as far from its expectation as the mean of two draws can be.
    largest = SAFETY * np.abs(2 * differences).max(axis=1)
    return Estimate(
        values.sum(axis=1),
        np.zeros(len(values)),
        np.zeros(()),
        frozenset({"sampling"}),
        "confidence",
        variance=np.square(differences).sum(axis=1),
        largest=largest,
    )


def _needed(half: Floats, weights: Floats, largest: Floats, allowed: Allowance, most: int) -> int:
    """Return the least number of terms, at most `most`, whose mean is expected to keep the allowed errors.

    A term is the mean of two draws; `half` are half of the differences of some of these, (clients, terms), which stand
    for others by `weights`, (terms,). A term is at most `largest` from its expectation, (clients,).
    """
    variance = (np.square(half) * weights).mean(axis=1)

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
