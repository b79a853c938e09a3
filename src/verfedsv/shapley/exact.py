"""Exact values, by enumerating every coalition.

Memory: 8 bytes for the utility of each of the 2^M coalitions and as much again while they are averaged, 0.5 GB at the
limit of 25 clients. Samples stream through in blocks, and so do the coalitions, 2^16 at a time, so that nothing of the
size coalitions x samples ever exists.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from verfedsv.errors import TooManyClientsError
from verfedsv.losses import Floats
from verfedsv.shapley.coalitions import coalition_sums
from verfedsv.shapley.game import Block, RoundGame
from verfedsv.shapley.moments import sum_moments
from verfedsv.shapley.result import Progress
from verfedsv.shapley.semivalues import LEAVE_ONE_OUT, Semivalue

MAX_CLIENTS = 25
_SEGMENT_BITS = 16
_BLOCK_SAMPLES = 1024


def exact(
    game: RoundGame,
    semivalue: Semivalue,
    *,
    samples: NDArray[np.intp] | None = None,
    progress: Progress | None = None,
) -> tuple[Floats, int]:
    """Return the values of all players, (players,), and the number of utilities evaluated.

    The embeddings must be finite. With `samples`, the sums run over those only, divided by the number of all samples.
    """
    if semivalue == LEAVE_ONE_OUT:
        return _leave_one_out(game, samples), game.n_players + 1
    n_players = game.n_players
    if n_players > MAX_CLIENTS:
        server = " and the server" if n_players > game.n_clients else ""
        raise TooManyClientsError(
            f"method 'exact' enumerates 2^clients coalitions and takes up to {MAX_CLIENTS} clients; received "
            f"{game.n_clients}{server}. Use method='auto' (any number of clients, with an error bound) or "
            "method='permutation'"
        )
    n_free = min(n_players, _SEGMENT_BITS)
    losses = np.empty((2 ** (n_players - n_free), 2**n_free))
    linear = np.zeros(n_players)
    for high in range(len(losses)):
        fixed = (high >> np.arange(n_players - n_free) & 1).astype(bool)

        def sums(block: Block, fixed: NDArray[np.bool_] = fixed) -> tuple[Floats, Floats]:
            of_block = coalition_sums(block, game.loss)
            return of_block.subsets(n_free, fixed), of_block.linear

        losses[high] = 0
        linear[:] = 0
        for subset_sums, linear_sums in game.map_blocks(sums, size=_BLOCK_SAMPLES, samples=samples):
            losses[high] += subset_sums
            linear += linear_sums
        if progress is not None:
            progress(high + 1, len(losses))
    utilities = losses.ravel()
    np.negative(utilities, out=utilities)
    values: Floats = (_semivalues(utilities, n_players, semivalue) - linear) / game.n_samples
    return values, 2**n_players


def rounding_errors(game: RoundGame) -> Floats:
    """Return a bound on what rounding does to the exact values, (players,); 0 for one that did not move.

    A utility is a mean of losses f(x), and each of those is rounded in proportion to |f| + |x| (1 + |f'|). Both are
    bounded over all coalitions from their values at the midpoint, and the Lipschitz constant or the smoothness.
    """
    largest_slope = math.sqrt(game.n_classes) * game.loss.lipschitz

    def noise_and_movement(block: Block) -> tuple[float, NDArray[np.bool_]]:
        moments = sum_moments(block)
        middle = moments.base + 0.5 * moments.total
        slope = np.abs(game.loss.gradient(middle, block.labels)).sum(axis=-1)
        slope = np.minimum(slope + game.n_classes * game.loss.smoothness * moments.magnitude, largest_slope)
        height = game.loss.value(middle, block.labels) + slope * moments.magnitude
        noise = 1 + height + moments.magnitude * (1 + slope)
        return float(noise.sum()), (block.change() != 0).any(axis=(1, 2))

    noise, moved = 0.0, np.zeros(game.n_players, dtype=bool)
    for noise_of_block, moved_in_block in game.map_blocks(noise_and_movement):
        noise += noise_of_block
        moved |= moved_in_block
    # Twice, as a value is a mean of differences; a few roundings a sample, one per client, class and block of samples.
    n_roundings = 32 + game.n_players + game.n_classes + game.n_samples // _BLOCK_SAMPLES
    unit = np.finfo(np.float64).eps / 2
    return np.asarray(np.where(moved, 2 * n_roundings * unit * noise / game.n_samples, 0.0))


def _semivalues(utilities: Floats, n_clients: int, semivalue: Semivalue) -> Floats:
    """Return the weighted mean over coalitions of what each client adds; bit k of a coalition stands for client k."""
    weights = semivalue.size_weights(n_clients - 1)
    sizes = np.zeros(1, dtype=np.int8)
    for _ in range(n_clients - 1):
        sizes = np.concatenate([sizes, sizes + 1])
    of_coalition = weights[sizes]
    values = np.empty(n_clients)
    for m in range(n_clients):
        # Differences first: a client that never changes the utility gets exactly 0.
        pairs = utilities.reshape(-1, 2, 2**m)
        values[m] = np.vdot((pairs[:, 1] - pairs[:, 0]).ravel(), of_coalition)
    return values


def _leave_one_out(game: RoundGame, samples: NDArray[np.intp] | None) -> Floats:
    everybody = np.ones((1, game.n_players), dtype=bool)

    def added(block: Block) -> Floats:
        sums = coalition_sums(block, game.loss)
        return np.asarray(sums.toggles(everybody)[0] + sums.linear)

    total = sum(game.map_blocks(added, samples=samples), np.zeros(game.n_players))
    result: Floats = -total / game.n_samples
    return result
