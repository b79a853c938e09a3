"""Sampling of the closed form's remainder, on the samples where its error is too large.

The utility is a mean over samples, so each sample can draw its own permutations: errors average out over samples as
well as over draws. (The paper draws one permutation for all samples.) What is sampled is the difference between the
loss and its cubic, whose values are known: a control variate.

With u the distance from the midpoint c, a permutation and its reverse visit u and -u. So only the odd part of the
remainder is left, and a permutation and its reverse cost two evaluations per client:

    r(u) = (f(c + u) - f(c - u)) / 2 - s D^3 f(c)[u, u, u] / 6,

where s in [0, 1] is chosen for each sample such that at the end of the round r equals its linear part, if possible:
far from the midpoint the cubic overshoots, and less of it is a better control variate. Nor may the cubic vary more than
the gradient does, as the confidence bound grows with it.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array, Floats
from verfedsv.compiled import compiled
from verfedsv.loss_checks import as_shaped
from verfedsv.losses import CubicForm, Loss, dot
from verfedsv.shapley.blocks import Block
from verfedsv.shapley.closed_form import cubic_values
from verfedsv.shapley.confidence import radius_of_sum
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.plan import Allowance, Progress

_BLOCK_ELEMENTS = 2**15
_DRAWS_AT_A_TIME = 32
_PILOT = 8
"""The pilot, which estimates the number of draws, takes one in this many samples, but at least about 64."""


def draw_enough(
    game: RoundGame,
    samples: NDArray[np.intp],
    allowed: Allowance,
    max_permutations: int,
    seed: int,
    call: int,
    progress: Progress | None = None,
) -> Estimate:
    """Return what `samples` add to the values, rounding errors not included.

    Each sample is drawn about as often as needed for a bound of `allowed.sampled`, and more often if a single draw
    could be further than `allowed.largest` from its expectation (if that is 0, a distance that takes the fewest draws
    is chosen); on average over the samples of the round at most `max_permutations` permutations. A draw takes four: two
    and their reverses. A pilot estimates the number of draws, and all samples are then drawn afresh, so draws do not
    depend on their number, and variances can be added to those of other samples and rounds. Draws are seeded by call
    and block, so that the number of threads does not matter.
    """
    most = max(1, max_permutations // 4)
    few = samples[:: min(_PILOT, max(1, len(samples) // 64))]
    pilot = draw(game, few, 1, (seed, call, 0))
    variance, largest = pilot.variance * (len(samples) / len(few)), _largest_each(game, samples) / game.n_samples
    # A sample is drawn `least` * `ratio`**power times; those with the same power are drawn together.
    if allowed.largest > 0:
        usual, apart, least, ratio = _draws_needed(variance, allowed.sampled, most), allowed.largest, 1, 2.0
    else:
        usual, apart = _fewest_draws(variance, largest, allowed.sampled, most)
        least, ratio = usual, math.sqrt(2)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # an allowed error may be 0
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
    """Return the numbers, the largest lowered to a common limit so that all add up to at most `most`."""
    ordered = np.sort(wanted)
    below = np.concatenate([[0.0], np.cumsum(ordered)[:-1]])
    # The limit of the others if the k smallest stay as they are.
    limits = (most - below) / np.arange(len(ordered), 0, -1)
    fits = limits >= ordered
    return np.minimum(wanted, np.inf if fits.all() else limits[np.argmin(fits)])


def _largest_each(game: RoundGame, samples: NDArray[np.intp]) -> Floats:
    """Return for each sample how far a single draw can be from its expectation, for any client, (samples,)."""
    parts = game.map_blocks(
        lambda block: _Remainder(block, game.loss).largest.max(axis=0), size=_block_size(game), samples=samples
    )
    return np.concatenate(list(parts))


def _block_size(game: RoundGame) -> int:
    return max(16, _BLOCK_ELEMENTS // (game.n_players * game.n_classes))


def draw(game: RoundGame, samples: NDArray[np.intp], n_draws: int, key: tuple[int, ...]) -> Estimate:
    """Return the means of at least `n_draws` draws of each sample; `key` seeds them."""
    # Many draws of few samples are faster as fewer draws of repeated samples.
    n_copies = -(-n_draws // _DRAWS_AT_A_TIME)
    n_draws = -(-n_draws // n_copies)

    def of_block(block: Block) -> Estimate:
        return _draw(block, game.loss, np.random.default_rng([*key, block.index]), n_draws)

    repeated = np.repeat(samples, n_copies)
    total = Estimate.sum(game.map_blocks(of_block, size=_block_size(game), samples=repeated))
    return total.divided(n_copies * n_draws * game.n_samples)


def _draws_needed(variance: Floats, error: float, most: int) -> int:
    """Return the number of draws, at most `most`, expected to meet the bound with a tenth to spare.

    `variance` is that of a single draw of each sample.
    """
    of_one = float(radius_of_sum(variance, np.zeros_like(variance), look=0).max())
    ratio = 1.1 * of_one / error if error else math.inf
    return math.ceil(min(most, max(1.0, ratio**2)))


def _fewest_draws(variance: Floats, largest: Floats, error: float, most: int) -> tuple[int, float]:
    """Return the number of draws per sample and the largest distance from the mean that together need the fewest draws.

    Samples whose draws may be further are drawn more often. `variance` is that of a single draw of each sample,
    `largest`, (samples,), how far one may be; both together should meet the bound with a tenth to spare.
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


def _draw(block: Block, loss: Loss, rng: np.random.Generator, n_draws: int) -> Estimate:
    """Return sums over the samples and draws of a block; the variance is from the difference of two copies."""
    remainder = _Remainder(block, loss)
    change = remainder.change
    cubic = CubicForm(remainder.cubic.weights * remainder.scale[:, np.newaxis], remainder.cubic.centre)
    values = n_draws * cubic_values(block, cubic)
    squares = np.zeros(len(change))
    copies = np.empty((2, *remainder.largest.shape))
    for _ in range(n_draws):
        for copy in copies:
            orders = rng.permuted(np.tile(np.arange(len(change), dtype=np.int32), (block.n_samples, 1)), axis=1)
            _differences(remainder(_walk(change, remainder.half, orders)), orders, copy)
        values += copies.sum(axis=(0, 2)) / 2
        squares += np.square(copies[0] - copies[1]).sum(axis=1) / 4
    return Estimate(
        values,
        np.zeros_like(values),
        np.asarray(values.sum()),  # the same for every permutation
        frozenset({"sampling"}),
        "confidence",
        n_evaluations=4 * n_draws * (len(change) + 1) * block.n_samples,
        variance=squares,
        largest=remainder.largest.max(axis=1),
    )


class _Remainder:
    """The odd part of the loss around the midpoint of a block, minus a multiple `scale`, (samples,), of its cubic.

    `largest`, (players, samples), bounds how far a draw can be from its expectation.
    """

    def __init__(self, block: Block, loss: Loss) -> None:
        self._loss, self._labels = loss, block.labels
        self.change = block.change()
        self.half = 0.5 * self.change.sum(axis=0)
        self._middle = block.base() + self.half
        weights, centre = loss.cubic_form(self._middle, block.labels)
        shape = self._middle.shape
        self.cubic = CubicForm(
            as_shaped(loss, "cubic_form", weights, shape), as_shaped(loss, "cubic_form", centre, shape)
        )
        spread = loss.spread(self.change)
        reach = 0.5 * spread.sum(axis=0)  # upper bound on the spread of u
        slope = dot(loss.gradient(self._middle, block.labels), self.half)[:, 0]
        wanted, full = self._odd(self.half) - slope, self._cubic(self.half)
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            fitting = np.nan_to_num(np.clip(wanted / full, 0, 1), nan=1.0)
            self.scale: Floats = np.fmin(fitting, loss.gradient_range / (loss.third_derivative * reach**2))
        self.largest: Floats = spread * loss.remainder_variation(self._middle, reach, self.scale)

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
        return np.asarray(dot(self.cubic.weights * centred * centred, centred)[..., 0] / 6)


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
    """Write by how much the value falls as each client joins, (clients, samples)."""
    n_clients, n_samples = result.shape
    for step in range(n_clients):
        for i in range(n_samples):
            result[orders[i, step], i] = values[step, i] - values[step + 1, i]
