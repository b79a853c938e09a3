"""The methods for games with a head, where they differ from those for sums."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verfedsv.shapley.closed_form import ClosedForm
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.exact import MAX_CLIENTS, Exact, enumerate_coalitions
from verfedsv.shapley.game import Game
from verfedsv.shapley.head_draws import Draws, FirstOrder, guess_values
from verfedsv.shapley.head_game import HeadGame
from verfedsv.shapley.permutation import Permutation
from verfedsv.shapley.plan import Allowance, Estimator, Plan
from verfedsv.shapley.semivalues import LEAVE_ONE_OUT, SHAPLEY, Semivalue

FEWEST_COALITIONS = 8
"""Coalitions of so few players that enumerating them takes no longer than draws."""

FEWEST_OF_LOOPS = 128
"""The same where loops compute the scores: these coalitions of a head with 64 units with tanh take 10 us a sample, the
proof and the first-order values that draws need 14 us."""

FEW, FEW_OF_PART = 2**17, 2**14
"""Coalitions times samples that are enumerated in any case, of a game (about a tenth of a second) and of a part of its
samples (the pilot of draws takes as long)."""

ENUMERATION_LIMIT = 2**22
"""Coalitions times samples that are enumerated for semivalues other than Shapley's; above that, they are sampled."""


class HeadExact(Exact):
    """Every coalition of every sample; their losses give the decrease of the loss as well."""

    def estimate(self, game: Game, plan: Plan, call: int) -> Estimate:  # noqa: ARG002  # nothing is random
        """Return the values by their definition, with rounding errors."""
        self.check(plan.semivalue, game.n_players)
        found = enumerate_coalitions(game, plan.semivalue, progress=plan.progress)
        utility = game.decrease() if plan.semivalue == LEAVE_ONE_OUT else found.utility
        return replace(found, errors=game.rounding_errors(), utility=utility)


class HeadAuto(Estimator[HeadGame]):
    """Enumerated values of few players or samples; for others a guess, refined by sampling or enumeration.

    Nothing bounds the remainder of a Taylor series of a function that nobody knows, and at a kink (ReLU) there is none:
    so no value rests on derivatives. Draws have first-order values as a control variate. The cubic of `closed-form`
    would be a better one, but takes as long as 20 evaluations of the head for each player, and the noise of a draw is
    of third order in any case: with 9 players, it took as long as all 512 coalitions.
    """

    parts = ("exact", "permutation", "sampling")
    samples = adapts = True

    def estimate(self, game: HeadGame, plan: Plan, call: int) -> Estimate:
        """Return a guess with infinite errors if draws will refine it, else enumerated or sampled values."""
        if plan.semivalue == SHAPLEY:
            return (
                HeadExact().estimate(game, plan, call)
                if _is_small(game, plan)
                else guess_values(game, (*_key(game, plan, call), 0))
            )
        n_coalitions = 2.0**game.n_players * plan.n_samples
        if plan.semivalue == LEAVE_ONE_OUT or (game.n_players <= MAX_CLIENTS and n_coalitions <= ENUMERATION_LIMIT):
            return HeadExact().estimate(game, plan, call)
        return Permutation().estimate(game, plan, call)

    def can_refine(self, semivalue: Semivalue) -> bool:
        """Return whether the semivalue is Shapley's."""
        return semivalue == SHAPLEY

    def refine(self, game: HeadGame, plan: Plan, call: int, allowed: Allowance) -> Estimate:
        """Return enumerated values if that is not slower, else values drawn until their errors are allowed."""
        n_coalitions = 2.0**game.n_players
        if _is_small(game, plan):
            return HeadExact().estimate(game, plan, call)
        if allowed.sampled == 0:
            allowed = allowed._replace(sampled=allowed.certified, largest=0.0)
        key = _key(game, plan, call)
        first_order = FirstOrder.of(game, (*key, 1, 0))
        hard = first_order.hardest(game.n_players, game.n_clients, allowed)
        easy = np.setdiff1d(np.arange(game.n_samples), hard)
        if len(easy) == 0:
            return HeadExact().estimate(game, plan, call)
        rest, times = game.part(easy), game.n_samples / len(easy)
        draws = Draws.plan(rest, first_order.part(easy), allowed.times(times), plan.n_permutations, (*key, 1, 1))
        n_evaluations = draws.n_evaluations(game.n_players) + n_coalitions * len(hard)
        if n_evaluations >= n_coalitions * game.n_samples and game.n_players <= MAX_CLIENTS:
            return HeadExact().estimate(game, plan, call)
        found = draws.carry_out(rest, (*key, 2)).divided(times)
        if len(hard):
            found = Estimate.sum(
                [found, HeadExact().estimate(game.part(hard), plan, call).divided(game.n_samples / len(hard))]
            )
        return replace(found, errors=game.rounding_errors())


def _key(game: HeadGame, plan: Plan, call: int) -> tuple[int, ...]:
    return (plan.seed, call, *game.move.entropy)


def _is_small(game: HeadGame, plan: Plan) -> bool:
    """Return whether enumerating all coalitions takes little time in any case."""
    n_coalitions = 2.0**game.n_players
    few = n_coalitions * plan.n_samples <= FEW or n_coalitions * game.n_samples <= FEW_OF_PART
    return few or n_coalitions <= (FEWEST_COALITIONS if game.head.loops is None else FEWEST_OF_LOOPS)


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
        methods = frozenset(self.parts)
        return Estimate(total[:-1], errors, np.asarray(total[-1]), methods, "unknown", n_evaluations=n_evaluations)
