"""Confidence bounds that hold for any number of draws."""

from __future__ import annotations

import numpy as np

from verfedsv.arrays import Array, Floats

FAILURE_PROBABILITY = 1e-3
"""Errors of sampled values hold for all clients together with probability 99.9 %."""


def radius_of_mean(variance: Floats, width: Floats, n_draws: int, look: int) -> Floats:
    """Return a bound on the errors of means of `n_draws` identically distributed independent draws, (clients,).

    `variance` is the sample variance of the draws, `width` the length of an interval that contains every draw. The
    empirical Bernstein bound of Maurer and Pontil (2009, theorem 4) on both sides.
    """
    log = _log_inverse_failure(len(variance), look)
    return np.asarray(np.sqrt(2 * log * variance / n_draws) + 7 * log / (3 * (n_draws - 1)) * width)


def radius_of_sum(variance: Floats, largest: Floats, look: int | Array) -> Floats:
    """Return a bound on the distance of sums of independent terms from their expectations, (..., clients).

    The terms need not be identically distributed. Each is the mean of two independent copies a and b. `variance` is the
    sum over terms of ((a - b) / 2)^2, which estimates the variance of the sum without bias; `largest` bounds how far
    any term can be from its expectation.

    Let l = log(1/q). The squares are independent, not negative and at most `largest`^2, so their sum falls short of
    its expectation V by sqrt(2 l V) `largest` with probability at most q; solved for V, sqrt(V) is at most
    sqrt(variance + largest^2 l/2) + largest sqrt(l/2). Then by Bernstein's inequality the sum is within sqrt(2 l V) +
    largest l/3 of its expectation, except with probability 2 q.
    """
    log = _log_inverse_failure(variance.shape[-1], look)
    deviation = np.sqrt(variance + largest**2 * (log / 2)) + largest * np.sqrt(log / 2)
    return np.asarray(deviation * np.sqrt(2 * log) + largest * (log / 3))


def _log_inverse_failure(n_clients: int, look: int | Array) -> Floats:
    """Return log(1/q), q being the failure probability of each of three events: the mean on both sides, the variance.

    A caller may look several times, at numbers of draws that do not depend on the draws, and stop at any time: look
    number `look` (0, 1, ...) takes 1 / ((look + 1) (look + 2)) of the failure probability, which sums to 1.
    """
    look = np.asarray(look, np.float64)
    return np.asarray(np.log(3 * n_clients * (look + 1) * (look + 2) / FAILURE_PROBABILITY))
