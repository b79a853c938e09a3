"""Monte Carlo values: the paper's sampling of permutations (its section on computational efficiency).

The same permutation is used for all samples, as in the paper, so this needs nothing of the game but its utilities.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedsv.losses import Array, Floats
from verfedsv.shapley.coalitions import CoalitionSums, coalition_sums
from verfedsv.shapley.confidence import radius_of_mean
from verfedsv.shapley.exact import rounding_errors
from verfedsv.shapley.game import Block, RoundGame
from verfedsv.shapley.result import Progress, keeps
from verfedsv.shapley.semivalues import SHAPLEY, Semivalue

_BATCH = 256
_BLOCK_SAMPLES = 1024


class Sampled(NamedTuple):
    """Sampled values with their standard errors and 99.9 % confidence bounds, (players,) each."""

    values: Floats
    standard_errors: Floats
    errors: Floats
    n_evaluations: int
    tolerance_met: bool | None


def default_permutations(n_clients: int) -> int:
    """Return the paper's number of permutations, ceil(100 M ln M), and at least 2."""
    return max(2, math.ceil(100 * n_clients * math.log(n_clients)))


def permutation(
    game: RoundGame,
    semivalue: Semivalue,
    *,
    n_permutations: int,
    antithetic: bool,
    seed: int,
    attempt: int = 0,
    standard_error: float | None = None,
    tolerance: float | None = None,
    progress: Progress | None = None,
) -> Sampled:
    """Return values from `n_permutations` random permutations, or fewer once every standard error is small enough.

    The embeddings must be finite.
    For semivalues other than Shapley's each draw is a random coalition, whose members and non-members are exchanged
    one by one; it costs as much as a permutation. With `antithetic`, every permutation is followed by its reverse (a
    coalition by one that leans the other way): fewer draws for the same error. `tolerance` stops once the bounds are
    within that fraction of the largest value. `attempt` numbers the calls that one result is made of: all draw the same
    permutations, each takes its part of the failure probability.
    """
    rng = np.random.default_rng(seed)
    width, rounding = _width_of_draws(game), rounding_errors(game)
    # An independent draw is one permutation, or an antithetic pair. Sums are taken of the distances from the first one,
    # so that a small variance is not lost in a large mean.
    per_draw = 2 if antithetic else 1
    n_wanted = max(2, -(-n_permutations // per_draw))
    sums, squares = np.zeros((2, game.n_players))
    n_drawn, look = 0, attempt * -(-n_wanted // _BATCH)
    while n_drawn < n_wanted:
        n_batch = min(_BATCH, n_wanted - n_drawn)
        added = _added_by_clients(game, semivalue, _draw(rng, semivalue, game.n_players, n_batch, antithetic))
        draws = added.reshape(n_batch, per_draw, -1).mean(axis=1)
        if n_drawn == 0:
            origin = draws[0]
        sums += (draws - origin).sum(axis=0)
        squares += ((draws - origin) ** 2).sum(axis=0)
        n_drawn += n_batch
        if progress is not None:
            progress(n_drawn * per_draw, n_wanted * per_draw)
        values = origin + sums / n_drawn
        variance = np.maximum(squares - sums**2 / n_drawn, 0) / (n_drawn - 1)
        standard_errors = np.sqrt(variance / n_drawn)
        errors = radius_of_mean(variance, width, n_drawn, look) + rounding
        look += 1
        is_met = None if tolerance is None else keeps(tolerance, values[: game.n_clients], errors[: game.n_clients])
        if is_met or (standard_error is not None and standard_errors.max() <= standard_error):
            break
    return Sampled(values, standard_errors, errors, n_drawn * per_draw * (game.n_players + 1), is_met)


def _draw(rng: np.random.Generator, semivalue: Semivalue, n_clients: int, n_draws: int, antithetic: bool) -> Array:
    """Return permutations, or for other semivalues coalitions, one a row; antithetic ones follow their originals."""
    if semivalue == SHAPLEY:
        orders = rng.permuted(np.tile(np.arange(n_clients), (n_draws, 1)), axis=1)
        return np.stack([orders, orders[:, ::-1]], axis=1).reshape(-1, n_clients) if antithetic else orders
    probabilities = semivalue.draw(rng, n_draws)[:, np.newaxis]
    uniform = rng.random((n_draws, n_clients))
    members = uniform < probabilities
    # 1 - uniform is as uniform: the coalition then leans the other way, at the same probability.
    mirrored = 1 - uniform < probabilities
    return np.stack([members, mirrored], axis=1).reshape(-1, n_clients) if antithetic else members


def _added_by_clients(game: RoundGame, semivalue: Semivalue, draws: Array) -> Floats:
    """Return what each client adds to the utility in each draw, (draws, clients)."""

    def added(block: Block) -> Floats:
        sums = coalition_sums(block, game.loss)
        return _chain_differences(sums, draws) if semivalue == SHAPLEY else sums.toggles(draws) + sums.linear

    total = np.zeros(draws.shape)
    for of_block in game.map_blocks(added, size=_BLOCK_SAMPLES):
        total += of_block
    return -total / game.n_samples


def _chain_differences(sums: CoalitionSums, orders: NDArray[np.intp]) -> Floats:
    result = np.empty(orders.shape)
    np.put_along_axis(result, orders, np.diff(sums.chains(orders), axis=1), axis=1)
    return result + sums.linear


def _width_of_draws(game: RoundGame) -> Floats:
    """Return for each client the length of an interval that contains what it adds in any draw, (clients,).

    It adds -d . f'(x) averaged along its own change d. Over all coalitions f' varies by no more than its whole range,
    nor by more than its smoothness times the path that all clients walk together.
    """

    def spread_times_variation(block: Block) -> Floats:
        spread = game.loss.spread(block.change())
        variation = np.minimum(game.loss.gradient_range, game.loss.smoothness * spread.sum(axis=0))
        return np.asarray(np.einsum("mn,n->m", spread, variation))

    total: Floats = sum(game.map_blocks(spread_times_variation), np.zeros(game.n_players))
    return total / game.n_samples
