"""Exact values, by enumerating every coalition.

Memory: 8 bytes for the utility of each of the 2^M coalitions and as much again while they are averaged, 0.5 GB at the
limit of 25 clients. Samples are processed in blocks, and coalitions 2^16 at a time.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Floats
from verfedsv.errors import TooManyClientsError
from verfedsv.shapley.blocks import compensated_sum
from verfedsv.shapley.coalitions import CoalitionSums
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.game import Game
from verfedsv.shapley.plan import Estimator, Plan, Progress
from verfedsv.shapley.semivalues import LEAVE_ONE_OUT, Semivalue

MAX_CLIENTS = 25
_SEGMENT_BITS = 16


class Exact(Estimator[Game]):
    """Every coalition of every sample."""

    parts = ("exact",)

    def check(self, semivalue: Semivalue, n_players: int) -> None:
        """Raise TooManyClientsError if there are too many coalitions."""
        if n_players > MAX_CLIENTS and semivalue != LEAVE_ONE_OUT:
            raise TooManyClientsError(
                f"method 'exact' enumerates 2^clients coalitions and takes up to {MAX_CLIENTS} clients, the server "
                f"included if it moves; received {n_players}. Use method='auto' (any number of clients, with an error "
                "bound) or method='permutation'"
            )

    def estimate(self, game: Game, plan: Plan, call: int) -> Estimate:  # noqa: ARG002  # nothing is random
        """Return the values by their definition, with rounding errors."""
        self.check(plan.semivalue, game.n_players)
        utility = game.decrease()  # first, as it refuses embeddings that are too large
        found = enumerate_coalitions(game, plan.semivalue, progress=plan.progress)
        return replace(found, errors=game.rounding_errors(), utility=utility)


def enumerate_coalitions(
    game: Game,
    semivalue: Semivalue,
    samples: NDArray[np.intp] | None = None,
    progress: Progress | None = None,
) -> Estimate:
    """Return what `samples` (all if None) add to the values of all players, without errors.

    The embeddings must be finite. The utility is NaN for leave-one-out.
    """
    n_players, n_samples = game.n_players, game.n_samples if samples is None else len(samples)
    if semivalue == LEAVE_ONE_OUT:
        return _estimate(game, _leave_one_out(game, samples), np.asarray(np.nan), (n_players + 1) * n_samples)
    n_free = min(n_players, _SEGMENT_BITS)
    losses = np.empty((2 ** (n_players - n_free), 2**n_free))
    linear = np.zeros(n_players)
    for high in range(len(losses)):
        fixed = (high >> np.arange(n_players - n_free) & 1).astype(bool)

        def sums(of_block: CoalitionSums, fixed: NDArray[np.bool_] = fixed) -> Floats:
            return np.concatenate([of_block.subsets(n_free, fixed), of_block.linear])

        total = compensated_sum(game.map_sums(sums, samples))
        losses[high], linear = total[: 2**n_free], total[2**n_free :]
        if progress is not None:
            progress(high + 1, len(losses))
    utilities = losses.ravel()
    np.negative(utilities, out=utilities)
    values = _semivalues(utilities, n_players, semivalue) - linear
    return _estimate(game, values, utilities[-1] - utilities[0] - linear.sum(), 2**n_players * n_samples)


def _estimate(game: Game, values: Floats, utility: Floats, n_evaluations: int) -> Estimate:
    values, utility = values / game.n_samples, np.asarray(utility / game.n_samples)
    return Estimate(values, np.zeros_like(values), utility, frozenset({"exact"}), n_evaluations=n_evaluations)


def _semivalues(utilities: Floats, n_clients: int, semivalue: Semivalue) -> Floats:
    """Return the weighted mean of what each client adds to coalitions; bit k of a coalition is client k."""
    weights = semivalue.size_weights(n_clients - 1)
    sizes = np.zeros(1, dtype=np.int8)
    for _ in range(n_clients - 1):
        sizes = np.concatenate([sizes, sizes + 1])
    of_coalition = weights[sizes]
    values, added = np.empty(n_clients), np.empty(len(of_coalition))
    for m in range(n_clients):
        # Differences first: a client that never changes the utility gets exactly 0. Not np.vdot: its order of addition
        # depends on the number of BLAS threads.
        pairs = utilities.reshape(-1, 2, 2**m)
        np.subtract(pairs[:, 1], pairs[:, 0], out=added.reshape(-1, 2**m))
        added *= of_coalition
        values[m] = added.sum()
    return values


def _leave_one_out(game: Game, samples: NDArray[np.intp] | None) -> Floats:
    """Return what each player adds to the coalition of all others, summed over samples."""
    everybody = np.ones((1, game.n_players), dtype=bool)

    def added(sums: CoalitionSums) -> Floats:
        return np.asarray(sums.toggles(everybody)[0] + sums.linear)

    return -compensated_sum(game.map_sums(added, samples))
