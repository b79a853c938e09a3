"""Sampling where the closed form is not enough: the remainder only, on the samples that need it.

The utility is a mean over samples, so each sample can draw its own permutations: errors average out over samples as
well as over draws. (The paper draws one permutation for all samples, as any method must that sees only utilities.) What
is sampled is the difference between the loss and its cubic, whose values are known: a control variate.

With u the distance from the midpoint c, a permutation and its reverse visit u and -u. So only the odd part of the
remainder is left, and a permutation and its reverse cost two evaluations per client:

    r(u) = (f(c + u) - f(c - u)) / 2 - s D^3 f(c)[u, u, u] / 6,

where s between 0 and 1 is chosen for each sample such that r is linear from the midpoint to the end of the round, as
far as that is possible: far from the midpoint the cubic overshoots, and less of it is a better control variate. Nor
may the cubic vary more than the gradient itself does over all u that can occur, as the confidence bound grows with it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verfedsv.compiled import compiled
from verfedsv.losses import Array, CubicForm, Floats, Loss, dot
from verfedsv.shapley.closed_form import cubic_values
from verfedsv.shapley.confidence import radius_of_sum
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.game import Block, RoundGame
from verfedsv.shapley.plan import Allowance, Progress

_BLOCK_ELEMENTS = 2**15
_DRAWS_AT_A_TIME = 32
_PILOT = 8
"""One in this many samples is in the pilot, which estimates the number of draws; more if that is fewer than 64."""


def draw_enough(
    game: RoundGame,
    samples: NDArray[np.intp],
    allowed: Allowance,
    max_permutations: int,
    seed: int,
    call: int,
    progress: Progress | None = None,
) -> Estimate:
    """Return what `samples` add to the values, drawing some samples more often than others; rounding is not in it.

    Each is drawn about as often as the 99.9 % bound takes to be `allowed.sampled`, which some of the samples show that
    are then drawn afresh, and more often if a single draw of it could be further than `allowed.largest` from its
    expectation, or than takes the fewest draws if that is 0; but there are not more permutations than
    `max_permutations` for each sample of the round. A draw takes
    four, two and their reverses. So the draws are independent of their number, and their variances can be added to
    those of other rounds and samples, where errors average out. They are seeded by call and block, so that the number
    of threads does not matter.
    """
    most = max(1, max_permutations // 4)
    few = samples[:: min(_PILOT, max(1, len(samples) // 64))]
    pilot = draw(game, few, 1, (seed, call, 0))
    variance, largest = pilot.variance * (len(samples) / len(few)), _largest_each(game, samples) / game.n_samples
    # Samples are drawn `least` times some power of `ratio`: those with the same power together.
    if allowed.largest > 0:
        usual, apart, least, ratio = _draws_needed(variance, allowed.sampled, most), allowed.largest, 1, 2.0
    else:
        usual, apart = _fewest_draws(variance, largest, allowed.sampled, most)
        least, ratio = usual, math.sqrt(2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # nothing at all may be allowed
        powers = np.ceil(np.log(np.fmax(largest / apart, usual) / least) / math.log(ratio) - 1e-9)
        capped = _cap(least * ratio**powers, most * game.n_samples)
        powers = np.floor(np.log(capped / least) / math.log(ratio) + 1e-9).astype(int)
    parts, n_done = [], 0
    for power in np.unique(powers).tolist():
        chosen = samples[powers == power]
        parts.append(draw(game, chosen, math.ceil(least * ratio**power - 1e-9), (seed, call, 1 + power)))
        n_done += len(chosen)
        if progress is not None:
            progress(n_done, len(samples))
    total = Estimate.sum(parts)
    return replace(total, n_evaluations=total.n_evaluations + pilot.n_evaluations)


def _cap(wanted: Floats, most: int) -> Floats:
    """Return the numbers, those above some limit lowered to it, such that they add up to at most `most`."""
    ordered = np.sort(wanted)
    below = np.concatenate([[0.0], np.cumsum(ordered)[:-1]])
    # With the k smallest as they are, the others may have this much each.
    limits = (most - below) / np.arange(len(ordered), 0, -1)
    fits = limits >= ordered
    return np.minimum(wanted, np.inf if fits.all() else limits[np.argmin(fits)])


def _largest_each(game: RoundGame, samples: NDArray[np.intp]) -> Floats:
    """Return for each sample how far a single draw can be from its expectation, for any client, (samples,)."""
    size = max(16, _BLOCK_ELEMENTS // (game.n_players * game.n_classes))
    return np.concatenate(
        list(game.map_blocks(lambda block: _Path(block, game.loss).largest.max(axis=0), size=size, samples=samples))
    )


def draw(game: RoundGame, samples: NDArray[np.intp], n_draws: int, key: tuple[int, ...]) -> Estimate:
    """Return the means of some draws of each sample; `key` seeds them."""
    size = max(16, _BLOCK_ELEMENTS // (game.n_players * game.n_classes))
    # Few samples with many draws are quicker as more samples with fewer.
    n_copies = -(-n_draws // _DRAWS_AT_A_TIME)
    n_draws = -(-n_draws // n_copies)

    def of_block(block: Block) -> Estimate:
        return _draw(block, game.loss, np.random.default_rng([*key, block.index]), n_draws)

    total = Estimate.sum(game.map_blocks(of_block, size=size, samples=np.repeat(samples, n_copies)))
    return total.divided(n_copies * n_draws * game.n_samples)


def _draws_needed(variance: Floats, error: float, most: int) -> int:
    """Return the number of draws, at most `most`, after which the bound should be met, a tenth to spare.

    `variance` is what a single draw of each sample is expected to have.
    """
    of_one = float(radius_of_sum(variance, np.zeros_like(variance), look=0).max())
    ratio = 1.1 * of_one / error if error else math.inf
    return math.ceil(min(most, max(1.0, ratio**2)))


def _fewest_draws(variance: Floats, largest: Floats, error: float, most: int) -> tuple[int, float]:
    """Return how often to draw every sample, and how far a draw may be from its expectation, for the fewest draws.

    Samples whose draws may be further are drawn more often. `variance` is what a single draw of each sample is expected
    to have, `largest` how far one may be, (samples,); both together should meet the bound, a tenth to spare.
    """
    some = np.quantile(largest, np.linspace(0, 1, 256))
    apart = np.geomspace(max(some[-1], 1e-300) / most, max(some[-1], 1e-300), 32)
    best, result = math.inf, (most, float(apart[0]))
    for usual in np.unique(np.geomspace(1, most, 24).astype(int)).tolist():
        draws = np.maximum(some / apart[:, np.newaxis], usual)
        expected = 1.21 * np.outer((1 / draws).mean(axis=1), variance)
        bounds = radius_of_sum(expected, np.broadcast_to(apart[:, np.newaxis], expected.shape), look=0).max(axis=1)
        totals = np.where(bounds <= error, draws.mean(axis=1), np.inf)
        if totals.min() < best:
            best, result = totals.min(), (usual, float(apart[totals.argmin()]))
    return result


class _Path:
    """What permutations of a block walk along: the changes of the clients, centred at the midpoint."""

    def __init__(self, block: Block, loss: Loss) -> None:
        self.change, base = block.change(), block.base()
        self.half = 0.5 * self.change.sum(axis=0)
        middle = base + self.half
        spread = loss.spread(self.change)
        # u is nowhere larger than half the path that all clients walk together.
        reach = 0.5 * spread.sum(axis=0)
        self.remainder = _Remainder(loss, middle, self.half, reach, block.labels)
        self.largest: Floats = spread * loss.remainder_variation(middle, reach, self.remainder.scale)


def _draw(block: Block, loss: Loss, rng: np.random.Generator, n_draws: int) -> Estimate:
    """Return sums over the samples and draws of a block; a variance is the square of half what two copies differ by."""
    path = _Path(block, loss)
    remainder, change = path.remainder, path.change
    known = CubicForm(remainder.cubic.weights * remainder.scale[:, np.newaxis], remainder.cubic.centre)
    values = n_draws * cubic_values(block, known)
    squares = np.zeros(len(change))
    copies = np.empty((2, *path.largest.shape))
    for _ in range(n_draws):
        for copy in copies:
            orders = rng.permuted(np.tile(np.arange(len(change), dtype=np.int32), (block.n_samples, 1)), axis=1)
            _differences(remainder(_walk(change, path.half, orders)), orders, copy)
        values += copies.sum(axis=(0, 2)) / 2
        squares += np.square(copies[0] - copies[1]).sum(axis=1) / 4
    return Estimate(
        values,
        np.zeros_like(values),
        np.asarray(values.sum()),  # to which every permutation adds up
        frozenset({"sampling"}),
        "confidence",
        n_evaluations=8 * n_draws * len(change) * block.n_samples,
        variance=squares,
        largest=path.largest.max(axis=1),
    )


class _Remainder:
    """The odd part of the loss around the midpoint, less a multiple `scale`, (samples,), of its cubic."""

    def __init__(self, loss: Loss, middle: Floats, half: Floats, reach: Floats, labels: Array) -> None:
        self._loss, self._middle, self._labels = loss, middle, labels
        self.cubic = loss.cubic_form(middle, labels)
        slope = dot(loss.gradient(middle, labels), half)[:, 0]
        wanted, full = self._odd(half) - slope, self._cubic(half)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            fitting = np.nan_to_num(np.clip(wanted / full, 0, 1), nan=1.0)
            self.scale = np.fmin(fitting, loss.gradient_range / (loss.third_derivative * reach**2))

    def __call__(self, u: Floats) -> Floats:
        """Return r(u), (..., samples), for u of shape (..., samples, classes)."""
        return self._odd(u) - self.scale * self._cubic(u)

    def _odd(self, u: Floats) -> Floats:
        forward = self._loss.value(self._middle + u, self._labels)
        forward -= self._loss.value(self._middle - u, self._labels)
        forward *= 0.5
        return forward

    def _cubic(self, u: Floats) -> Floats:
        centred = u - dot(self.cubic.centre, u)
        result: Floats = (self.cubic.weights * centred * centred * centred).sum(axis=-1)
        result /= 6
        return result


@compiled
def _walk(change: Floats, half: Floats, orders: Array) -> Floats:
    """Return the distances from the midpoint along each sample's permutation, (clients + 1, samples, classes)."""
    n_clients, n_samples, n_classes = change.shape
    result = np.empty((n_clients + 1, n_samples, n_classes))
    for i in range(n_samples):
        for c in range(n_classes):
            result[0, i, c] = -half[i, c]
    for step in range(n_clients):
        for i in range(n_samples):
            for c in range(n_classes):
                result[step + 1, i, c] = result[step, i, c] + change[orders[i, step], i, c]
    return result


@compiled
def _differences(values: Floats, orders: Array, result: Floats) -> None:
    """Write what each client takes off the value when it joins, (clients, samples)."""
    n_clients, n_samples = result.shape
    for step in range(n_clients):
        for i in range(n_samples):
            result[orders[i, step], i] = values[step, i] - values[step + 1, i]
