"""The loops of the closed form for completed embeddings: products of factors, valued round after round.

The embeddings of a run of samples are computed from their factors in each round, valued, and overwritten in the next:
they never leave the cache. Blocks of eight samples are valued in vectors, one lane for each sample.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.compiled import add, compiled, inlined
from verfedsv.loss_loops import expand_logistic, expand_softmax
from verfedsv.shapley.blocks import LARGEST_EMBEDDING
from verfedsv.shapley.class_sums import add_octet, add_run, new_octet
from verfedsv.shapley.moments import RUN, BoundConstants, scalar_coefficients
from verfedsv.vectors import LANES, Vector, absolute, fill, larger, largest_lane, load, store, sum_lanes


class FactoredRounds(NamedTuple):
    """The embeddings of all players in some rounds, as products of factors.

    The factors of the samples, (factors, samples), are those of all players; player k has the rows `edges[k]` to
    `edges[k + 1]`. If it `moves[t, k]` in round t, its embeddings are these times `weights[t]`, (classes, factors);
    otherwise they stay. `table`, (players, samples, classes), are the embeddings before the first round.
    """

    samples: Floats
    edges: Array
    weights: Floats
    moves: Array
    table: Floats


Sums = tuple[Floats, Floats, Floats]


@compiled
def sum_softmax_rounds(rounds: FactoredRounds, labels: Array, begin: int, end: int, constants: BoundConstants) -> Sums:
    """Return values and errors, (rounds, players), and decreases, (rounds,), summed over samples `begin` to `end` - 1.

    A decrease is NaN if an embedding is not finite or too large; then the rounds after it are not valued.
    """
    n_rounds, n_players, n_classes = len(rounds.weights), len(rounds.table), rounds.table.shape[2]
    shape = n_rounds, n_players
    values, lost, errors = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    decrease, decrease_lost = np.zeros(n_rounds), np.zeros(n_rounds)
    octet, line = new_octet(n_players, n_classes, True), np.empty(LANES)
    factors, now = np.zeros(rounds.samples.shape[0] * RUN), np.zeros(n_players * n_classes * RUN)
    own_labels = np.zeros(RUN, np.intp)
    for first in range(begin, end, RUN):
        n = min(RUN, end - first)
        _begin_run(rounds, first, n, factors, now)
        own_labels[:] = 0
        own_labels[:n] = labels[first : first + n]
        for t in range(n_rounds):
            octet.values[:], octet.errors[:] = 0.0, 0.0
            of_run = 0.0
            for b in range(0, n, LANES):
                energy, magnitude, everything = fill(0.0), fill(0.0), fill(0.0)
                for c in range(n_classes):
                    base, total, squares, size = _move(rounds, t, c, b, factors, now, octet.change)
                    store(octet.base, c * LANES, base)
                    store(octet.total, c * LANES, total)
                    energy = energy + squares
                    magnitude = larger(size, magnitude)
                    everything = everything + size  # which keeps NaN
                if not largest_lane(everything) < LARGEST_EMBEDDING:
                    decrease[t] = np.nan
                    return values, errors, decrease
                of_run += expand_softmax(octet.base, octet.total, own_labels, b, octet.centre, octet.linear, line)
                add_octet(octet, energy, magnitude, constants)
            decrease[t], decrease_lost[t] = add(decrease[t], decrease_lost[t], of_run)
            add_run(octet, values[t], lost[t], errors[t])
    return values, errors, decrease


@compiled
def sum_logistic_rounds(
    rounds: FactoredRounds, labels: Floats, begin: int, end: int, constants: BoundConstants
) -> Sums:
    """Return the same for the logistic loss."""
    n_rounds, n_players = len(rounds.weights), len(rounds.table)
    shape = n_rounds, n_players
    values, lost, errors = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    decrease, decrease_lost = np.zeros(n_rounds), np.zeros(n_rounds)
    octet = new_octet(n_players, 1, True)
    factors, now = np.zeros(rounds.samples.shape[0] * RUN), np.zeros(n_players * RUN)
    signs = np.zeros(RUN)
    for first in range(begin, end, RUN):
        n = min(RUN, end - first)
        _begin_run(rounds, first, n, factors, now)
        signs[:] = 0.0
        signs[:n] = labels[first : first + n]
        for t in range(n_rounds):
            octet.values[:], octet.errors[:] = 0.0, 0.0
            of_run = fill(0.0)
            for b in range(0, n, LANES):
                base, total, energy, magnitude = _move(rounds, t, 0, b, factors, now, octet.change)
                if not largest_lane(magnitude) < LARGEST_EMBEDDING:
                    decrease[t] = np.nan
                    return values, errors, decrease
                slope, third, of_octet = expand_logistic(base, total, load(signs, b))
                of_run = of_run + of_octet
                path = fill(0.0)
                for k in range(0, n_players * LANES, LANES):
                    path = path + absolute(load(octet.change, k))
                moments = total, energy, path, magnitude
                linear, quadratic, error = scalar_coefficients(slope, third, moments, constants)
                for k in range(0, n_players * LANES, LANES):
                    d = load(octet.change, k)
                    store(octet.values, k, load(octet.values, k) + d * (quadratic * d - linear))
                    store(octet.errors, k, load(octet.errors, k) + absolute(d) * error)
            decrease[t], decrease_lost[t] = add(decrease[t], decrease_lost[t], sum_lanes(of_run))
            add_run(octet, values[t], lost[t], errors[t])
    return values, errors, decrease


@inlined
def _begin_run(rounds: FactoredRounds, first: int, n: int, factors: Floats, now: Floats) -> None:
    """Write the factors and the embeddings of `n` samples, both with samples last; the others are zero."""
    n_players, _, n_classes = rounds.table.shape
    factors[:], now[:] = 0.0, 0.0
    for a in range(len(rounds.samples)):
        factors[a * RUN : a * RUN + n] = rounds.samples[a, first : first + n]
    for k in range(n_players):
        for c in range(n_classes):
            for i in range(n):
                now[(k * n_classes + c) * RUN + i] = rounds.table[k, first + i, c]


@inlined
def _move(
    rounds: FactoredRounds, t: int, c: int, first: int, factors: Floats, now: Floats, change: Floats
) -> tuple[Vector, Vector, Vector, Vector]:
    """Bring a class of eight samples to the end of round t, and write the changes of all players.

    Return sums over players: of embeddings before the round, of changes, their squares, and of absolute values.
    """
    n_classes = rounds.weights.shape[1]
    edges = rounds.edges
    base, total, squares, size = fill(0.0), fill(0.0), fill(0.0), fill(0.0)
    for k in range(len(edges) - 1):
        at = (k * n_classes + c) * RUN + first
        before = load(now, at)
        after = before
        if rounds.moves[t, k]:
            after = fill(0.0)
            for a in range(edges[k], edges[k + 1]):
                after = after + load(factors, a * RUN + first) * rounds.weights[t, c, a]
            store(now, at, after)
        d = after - before
        store(change, (k * n_classes + c) * LANES, d)
        base, total, squares = base + before, total + d, squares + d * d
        size = size + (absolute(before) + absolute(d))
    return base, total, squares, size
