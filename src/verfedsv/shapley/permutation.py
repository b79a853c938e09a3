"""Monte Carlo values: the paper's sampling of permutations (its section on computational efficiency).

As in the paper, a permutation is used for all samples.
"""

from __future__ import annotations

import math

import numpy as np

from verfedsv.losses import Array, Floats
from verfedsv.shapley.blocks import compensated_sum
from verfedsv.shapley.coalitions import BLOCK_SAMPLES, coalition_sums
from verfedsv.shapley.confidence import radius_of_mean
from verfedsv.shapley.estimate import Estimate, keeps
from verfedsv.shapley.exact import rounding_errors
from verfedsv.shapley.game import Block, RoundGame
from verfedsv.shapley.plan import Estimator, Plan
from verfedsv.shapley.semivalues import SHAPLEY, Semivalue

_BATCH = 256


class Permutation(Estimator):
    """Random permutations of the clients; random coalitions for semivalues other than Shapley's."""

    parts = ("permutation",)
    samples = True

    def estimate(self, game: RoundGame, plan: Plan, call: int) -> Estimate:
        """Return values from `plan.n_permutations`, or fewer once every standard error or bound is small enough.

        For other semivalues a draw is a random coalition, which every client joins or leaves in turn: as costly as a
        permutation. With `plan.antithetic`, every permutation is followed by its reverse (a coalition by its mirror
        image). All calls draw the same permutations; each takes its part of the failure probability.
        """
        utility = game.decrease()  # first, as it refuses embeddings that are too large
        rng = np.random.default_rng(plan.seed)
        width, rounding = _width_of_draws(game), rounding_errors(game)
        # A draw is a permutation, or an antithetic pair. Distances from the first draw are summed, so that a small
        # variance is not lost in a large mean.
        per_draw = 2 if plan.antithetic else 1
        n_wanted = max(2, -(-plan.n_permutations // per_draw))
        sums, squares = np.zeros((2, game.n_players))
        n_drawn, look = 0, call * -(-n_wanted // _BATCH)
        clients = slice(game.n_clients)
        while n_drawn < n_wanted:
            n_batch = min(_BATCH, n_wanted - n_drawn)
            added = _added_by_clients(game, plan.semivalue, _draw(rng, plan, game.n_players, n_batch))
            draws = added.reshape(n_batch, per_draw, -1).mean(axis=1)
            if n_drawn == 0:
                origin = draws[0]
            sums += (draws - origin).sum(axis=0)
            squares += ((draws - origin) ** 2).sum(axis=0)
            n_drawn += n_batch
            if plan.progress is not None:
                plan.progress(n_drawn * per_draw, n_wanted * per_draw)
            values = origin + sums / n_drawn
            variance = np.maximum(squares - sums**2 / n_drawn, 0) / (n_drawn - 1)
            errors = radius_of_mean(variance, width, n_drawn, look) + rounding
            look += 1
            if plan.tolerance is not None and keeps(plan.tolerance, values[clients], errors[clients]):
                break
            if plan.standard_error is not None and np.sqrt(variance / n_drawn).max() <= plan.standard_error:
                break
        n_evaluations = n_drawn * per_draw * (game.n_players + 1) * game.n_samples
        methods = frozenset(self.parts)
        return Estimate(values, errors, utility, methods, "confidence", n_evaluations, variance / n_drawn)


def default_permutations(n_clients: int) -> int:
    """Return the paper's number of permutations, ceil(100 M ln M), and at least 2."""
    return max(2, math.ceil(100 * n_clients * math.log(n_clients)))


def _draw(rng: np.random.Generator, plan: Plan, n_clients: int, n_draws: int) -> Array:
    """Return permutations, or coalitions for other semivalues, (draws, clients); antithetic ones follow theirs."""
    semivalue, antithetic = plan.semivalue, plan.antithetic
    if semivalue == SHAPLEY:
        orders = rng.permuted(np.tile(np.arange(n_clients), (n_draws, 1)), axis=1)
        return np.stack([orders, orders[:, ::-1]], axis=1).reshape(-1, n_clients) if antithetic else orders
    probabilities = semivalue.draw(rng, n_draws)[:, np.newaxis]
    uniform = rng.random((n_draws, n_clients))
    members = uniform < probabilities
    mirrored = 1 - uniform < probabilities  # 1 - uniform is uniform too
    return np.stack([members, mirrored], axis=1).reshape(-1, n_clients) if antithetic else members


def _added_by_clients(game: RoundGame, semivalue: Semivalue, draws: Array) -> Floats:
    """Return what each client adds to the utility in each draw, (draws, clients)."""

    def added(block: Block) -> Floats:
        sums = coalition_sums(block, game.loss)
        if semivalue != SHAPLEY:
            return np.asarray(sums.toggles(draws) + sums.linear)
        result = np.empty(draws.shape)
        np.put_along_axis(result, draws, np.diff(sums.chains(draws), axis=1), axis=1)
        return result + sums.linear

    return -compensated_sum(game.map_blocks(added, size=BLOCK_SAMPLES)) / game.n_samples


def _width_of_draws(game: RoundGame) -> Floats:
    """Return the length of an interval that contains what a client adds in any draw, (clients,).

    It adds -d . f'(x) averaged along its change d. Over all coalitions of the others f' varies by at most its range,
    and by at most its smoothness times the summed spreads of the others' changes.
    """

    def spread_times_variation(block: Block) -> Floats:
        spread = game.loss.spread(block.change())
        # Not the total minus a client's spread: small others would be lost beside a large client.
        padded = np.pad(spread, ((1, 1), (0, 0)))
        others = padded[:-2].cumsum(axis=0) + padded[:1:-1].cumsum(axis=0)[::-1]
        with np.errstate(invalid="ignore"):  # 0 times an infinite constant
            each = spread * np.minimum(game.loss.gradient_range, game.loss.smoothness * others)
        return np.asarray(np.nan_to_num(each, nan=0.0, posinf=np.inf).sum(axis=1))

    total: Floats = sum(game.map_blocks(spread_times_variation), np.zeros(game.n_players))
    return total / game.n_samples
