"""Confidence bounds that hold for any number of draws, not only in the limit."""

from __future__ import annotations

import numpy as np

from verfedsv.losses import Array, Floats

FAILURE_PROBABILITY = 1e-3
"""Errors reported for sampled values hold for all clients together with probability 99.9 %."""


def radius_of_mean(variance: Floats, width: Floats, n_draws: int, look: int) -> Floats:
    """Return how far means of `n_draws` identical independent draws are from their expectations, at most, (clients,).

    `variance` is the sample variance of the draws, `width` the length of an interval that contains every draw. The
    empirical Bernstein bound of Maurer and Pontil (2009, theorem 4) on both sides: two events for the mean and one
    for the variance, which must not happen.
    """
    log = _log_inverse_failure(len(variance), look, n_events=3)
    result: Floats = np.sqrt(2 * log * variance / n_draws) + 7 * log / (3 * (n_draws - 1)) * width
    return result


def radius_of_sum(variance: Floats, largest: Floats, look: int | Array) -> Floats:
    """Return how far sums of independent terms are from their expectations, at most, (..., clients).

    The terms need not be identically distributed. Each is the mean of two independent copies a and b. `variance` is the
    sum over terms of ((a - b) / 2)^2, which estimates the variance of the sum without bias; `largest` bounds how far
    any term can be from its expectation.

    Let l = log(1/q). The squares are independent, not negative and at most `largest`^2, so their sum falls short of
    its expectation V by sqrt(2 l V) `largest` with probability at most q; solved for V, sqrt(V) is at most
    sqrt(variance + largest^2 l/2) + largest sqrt(l/2). Then by Bernstein's inequality the sum is within sqrt(2 l V) +
    largest l/3 of its expectation, but for a probability of 2 q.
    """
    log = _log_inverse_failure(variance.shape[-1], look, n_events=3)
    deviation = np.sqrt(variance + largest**2 * (log / 2)) + largest * np.sqrt(log / 2)
    result: Floats = deviation * np.sqrt(2 * log) + largest * (log / 3)
    return result


def _log_inverse_failure(n_clients: int, look: int | Array, n_events: int) -> Floats:
    """Return log(1/q), q being what each of the events that must not happen may take of the failure probability.

    A caller may look several times, at numbers of draws that do not depend on the draws looked at, and stop when it
    likes: look number `look` (0, 1, ...) takes 1 / ((look + 1) (look + 2)) of the whole, which sums to 1 over them all.
    """
    look = np.asarray(look, np.float64)
    return np.asarray(np.log(n_events * n_clients * (look + 1) * (look + 2) / FAILURE_PROBABILITY))
