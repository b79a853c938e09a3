"""The default method: the closed form, and enumeration or sampling on samples where its error is too large."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Floats
from verfedsv.shapley.closed_form import sample_errors, third_order
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.exact import MAX_CLIENTS, Exact, enumerate_coalitions
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.permutation import Permutation
from verfedsv.shapley.plan import ENUMERATION_LIMIT, Allowance, Estimator, Plan
from verfedsv.shapley.semivalues import LEAVE_ONE_OUT, SHAPLEY, Semivalue
from verfedsv.shapley.stratified import draw_enough


class Auto(Estimator[RoundGame]):
    """The closed form, refined by enumeration or sampling where its error is too large.

    Semivalues other than Shapley's have no closed form: they are enumerated, or sampled if that takes too long.
    """

    parts = ("closed-form", "exact", "permutation", "sampling")
    samples = adapts = True

    def estimate(self, game: RoundGame, plan: Plan, call: int) -> Estimate:
        """Return the closed form, or for another semivalue its enumerated or sampled values."""
        if self.is_closed_form(plan.semivalue):
            return third_order(game)
        if plan.semivalue == LEAVE_ONE_OUT or _can_enumerate(game, plan.n_samples, ENUMERATION_LIMIT):
            return Exact().estimate(game, plan, call)
        return Permutation().estimate(game, plan, call)

    def is_closed_form(self, semivalue: Semivalue) -> bool:
        """Return whether the semivalue has a closed form."""
        return semivalue == SHAPLEY

    def can_refine(self, semivalue: Semivalue) -> bool:
        """Return whether the semivalue has a closed form."""
        return self.is_closed_form(semivalue)

    def refine(self, game: RoundGame, plan: Plan, call: int, allowed: Allowance) -> Estimate:
        """Return values with at most the allowed errors, if possible.

        Samples with small errors keep the closed form. If all do, the error is rounding, which no method reduces.
        Nothing is sampled if the loss does not bound the draws.
        """
        easy, hard = split_samples(sample_errors(game), allowed.certified / 2)
        is_enumerated = _can_enumerate(game, len(hard), allowed.coalitions)
        is_bounded = min(game.loss.gradient_range, game.loss.third_derivative) < math.inf
        if len(hard) == 0 or not (is_enumerated or is_bounded):
            return third_order(game)
        rounding = game.rounding_errors()
        closed = third_order(game, easy)
        if is_enumerated:
            rest = enumerate_coalitions(game, SHAPLEY, hard, plan.progress)
        else:
            if allowed.sampled == 0:  # sampling gets what certified errors leave
                left = max(0.0, allowed.certified - closed.errors.max() - rounding.max())
                allowed = allowed._replace(sampled=left, largest=0.0)
            rest = draw_enough(game, hard, allowed, plan.n_permutations, plan.seed, call, plan.progress)
        return Estimate.sum([closed, replace(rest, errors=rounding)])


def _can_enumerate(game: RoundGame, n_samples: int, limit: float) -> bool:
    # Averaging the utilities costs as much per player as four more samples.
    return game.n_players <= MAX_CLIENTS and 2**game.n_players * (n_samples + 4 * game.n_players) <= limit


def split_samples(errors: Floats, allowed: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the samples whose errors add up to at most `allowed` times the number of all, and the others, sorted."""
    order = np.argsort(errors, kind="stable")
    n_easy = int(np.searchsorted(np.cumsum(errors[order]), allowed * len(errors), side="right"))
    return np.sort(order[:n_easy]), np.sort(order[n_easy:])
