"""Monte Carlo values: the paper's sampling of permutations (its section on computational efficiency).

As in the paper, a permutation is used for all samples.
"""

from __future__ import annotations

import math

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.shapley.blocks import compensated_sum
from verfedsv.shapley.coalitions import CoalitionSums
from verfedsv.shapley.confidence import radius_of_mean
from verfedsv.shapley.estimate import ErrorKind, Estimate, keeps
from verfedsv.shapley.game import Game
from verfedsv.shapley.plan import Estimator, Plan
from verfedsv.shapley.semivalues import SHAPLEY, Semivalue

_BATCH = 256

SAFETY = 2.0
"""Where nothing bounds the draws, they are taken to stay within this many times the largest range of those seen."""


class Permutation(Estimator[Game]):
    """Random permutations of the clients; random coalitions for semivalues other than Shapley's."""

    parts = ("permutation",)
    samples = True

    def estimate(self, game: Game, plan: Plan, call: int) -> Estimate:
        """Return values from `plan.n_permutations`, or fewer once every standard error or bound is small enough.

        For other semivalues a draw is a random coalition, which every client joins or leaves in turn: as costly as a
        permutation. With `plan.antithetic`, every permutation is followed by its reverse (a coalition by its mirror
        image). All calls draw the same permutations; each takes its part of the failure probability.
        """
        utility = game.decrease()  # first, as it refuses embeddings that are too large
        rng = np.random.default_rng(plan.seed)
        width, rounding = game.width_of_draws(), game.rounding_errors()
        # A draw is a permutation, or an antithetic pair. Distances from the first draw are summed, so that a small
        # variance is not lost in a large mean.
        per_draw = 2 if plan.antithetic else 1
        n_wanted = max(2, -(-plan.n_permutations // per_draw))
        sums, squares = np.zeros((2, game.n_players))
        lowest, highest = np.full(game.n_players, np.inf), np.full(game.n_players, -np.inf)
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
            lowest, highest = np.minimum(lowest, draws.min(axis=0)), np.maximum(highest, draws.max(axis=0))
            # Of all players: draws may miss what the others add in the few that show what one player adds.
            range_of_draws = np.full(game.n_players, SAFETY * (highest - lowest).max()) if width is None else width
            errors = radius_of_mean(variance, range_of_draws, n_drawn, look) + rounding
            look += 1
            if plan.tolerance is not None and keeps(plan.tolerance, values[clients], errors[clients]):
                break
            if plan.standard_error is not None and np.sqrt(variance / n_drawn).max() <= plan.standard_error:
                break
        n_evaluations = n_drawn * per_draw * (game.n_players + 1) * game.n_samples
        methods = frozenset(self.parts)
        kind: ErrorKind = "confidence on an assumption" if width is None else "confidence"
        return Estimate(values, errors, utility, methods, kind, n_evaluations, variance / n_drawn)


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


def _added_by_clients(game: Game, semivalue: Semivalue, draws: Array) -> Floats:
    """Return what each client adds to the utility in each draw, (draws, clients)."""

    def added(sums: CoalitionSums) -> Floats:
        if semivalue != SHAPLEY:
            return np.asarray(sums.toggles(draws) + sums.linear)
        result = np.empty(draws.shape)
        np.put_along_axis(result, draws, np.diff(sums.chains(draws), axis=1), axis=1)
        return result + sums.linear

    return -compensated_sum(game.map_sums(added)) / game.n_samples
