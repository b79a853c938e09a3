"""The methods for games with a head, where they differ from those for sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verfedsv.shapley.closed_form import ClosedForm
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.exact import MAX_CLIENTS, Exact, enumerate_coalitions
from verfedsv.shapley.head_draws import estimate_first_order, plan_draws, split_samples
from verfedsv.shapley.head_game import HeadGame
from verfedsv.shapley.permutation import Permutation
from verfedsv.shapley.plan import Allowance, Estimator, Plan
from verfedsv.shapley.semivalues import LEAVE_ONE_OUT, SHAPLEY, Semivalue

FEW = 2**17
"""Coalitions times samples that are enumerated in any case: about a tenth of a second."""

HARD, AS_HARD = 1 / 50, 2.0
"""The fraction of the samples that are enumerated in any case, and how many evaluations that may take per sample."""

ENUMERATION_LIMIT = 2**22
"""Coalitions times samples that are enumerated for semivalues other than Shapley's; above that, they are sampled."""


class HeadAuto(Estimator[HeadGame]):
    """First-order values, of unknown error, refined by enumeration or sampling.

    Nothing bounds the remainder of a Taylor series of a function that nobody knows, and at a kink (ReLU) there is none:
    so no value rests on derivatives. Few players, or few samples, are enumerated; the others are drawn, with
    first-order values as a control variate. The cubic of `closed-form` would be a better one, but takes as long as 20
    evaluations of the head for each player, and the noise of a draw is of third order in any case: with 9 players, it
    took as long as all 512 coalitions.
    """

    parts = ("exact", "permutation", "sampling")
    samples = adapts = True

    def estimate(self, game: HeadGame, plan: Plan, call: int) -> Estimate:
        """Return first-order values with infinite errors, or for another semivalue enumerated or sampled values."""
        if plan.semivalue == SHAPLEY:
            return estimate_first_order(game)
        n_coalitions = 2.0**game.n_players * plan.n_samples
        if plan.semivalue == LEAVE_ONE_OUT or (game.n_players <= MAX_CLIENTS and n_coalitions <= ENUMERATION_LIMIT):
            return Exact().estimate(game, plan, call)
        return Permutation().estimate(game, plan, call)

    def can_refine(self, semivalue: Semivalue) -> bool:
        """Return whether the semivalue is Shapley's."""
        return semivalue == SHAPLEY

    def refine(self, game: HeadGame, plan: Plan, call: int, allowed: Allowance) -> Estimate:
        """Return enumerated values if that is not slower, else values drawn until their errors are allowed.

        A few samples that changed most are enumerated in any case.
        """
        n_coalitions, n_samples = 2.0**game.n_players, game.n_samples
        # Two draws, of the fewest that there can be, take four permutations.
        if n_coalitions <= 4 * game.n_players or n_coalitions * n_samples <= FEW:
            return Exact().estimate(game, plan, call)
        if allowed.sampled == 0:
            allowed = allowed._replace(sampled=allowed.certified, largest=0.0)
        easy, hard = split_samples(game, min(HARD, AS_HARD / n_coalitions))
        draws = plan_draws(game, easy, allowed, plan.n_permutations, (plan.seed, call, 0))
        if draws.n_evaluations(game.n_players) >= n_coalitions * n_samples and game.n_players <= MAX_CLIENTS:
            return Exact().estimate(game, plan, call)
        found = draws.carry_out(game, (plan.seed, call, 1))
        if len(hard):
            found = Estimate.sum([enumerate_coalitions(game, SHAPLEY, hard), found])
        return replace(found, errors=game.rounding_errors())


class HeadClosedForm(Estimator[HeadGame]):
    """Values to third order, by derivatives along the changes; nothing bounds their errors, which are infinite."""

    parts = ("closed-form",)

    def check(self, semivalue: Semivalue, n_players: int) -> None:
        """Raise InputError unless the semivalue is Shapley's."""
        ClosedForm().check(semivalue, n_players)

    def estimate(self, game: HeadGame, plan: Plan, call: int) -> Estimate:  # noqa: ARG002  # nothing to choose
        """Return the values to third order."""
        from verfedsv.shapley.head_derivatives import sum_third_order  # needs torch

        total = sum_third_order(game)
        errors = np.full(game.n_players, np.inf)
        # Counted as 20 evaluations for each player, which takes about as long.
        n_evaluations = 20 * game.n_players * game.n_samples
        return Estimate(total[:-1], errors, np.asarray(total[-1]), frozenset(self.parts), n_evaluations=n_evaluations)
