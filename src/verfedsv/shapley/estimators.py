"""The methods by name; from a game to an estimate, and from rounds to refined rounds."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Literal, Protocol, cast, get_args

import numpy as np

from verfedsv.arrays import Floats
from verfedsv.errors import InputError
from verfedsv.shapley.auto import Auto
from verfedsv.shapley.closed_form import ClosedForm
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.exact import Exact
from verfedsv.shapley.game import Game
from verfedsv.shapley.head_estimators import HeadAuto, HeadClosedForm, HeadExact
from verfedsv.shapley.head_game import HeadGame
from verfedsv.shapley.permutation import Permutation
from verfedsv.shapley.plan import Allowance, Estimator, Plan

Method = Literal["auto", "closed-form", "exact", "permutation"]

ESTIMATORS: Mapping[Method, Estimator[Any]] = {
    "auto": Auto(),
    "closed-form": ClosedForm(),
    "exact": Exact(),
    "permutation": Permutation(),
}

HEAD_ESTIMATORS: Mapping[Method, Estimator[Any]] = {
    **ESTIMATORS,
    "auto": HeadAuto(),
    "closed-form": HeadClosedForm(),
    "exact": HeadExact(),
}
"""The same for games with a head that is not a sum."""

PARTS = tuple(sorted({part for estimator in ESTIMATORS.values() for part in estimator.parts}))
"""The names that `Estimate.methods` may hold."""


def get_estimator(method: str, *, has_head: bool = False) -> Estimator[Any]:
    """Return the estimator of that name, for games of summed embeddings or with another head."""
    try:
        return (HEAD_ESTIMATORS if has_head else ESTIMATORS)[cast("Method", method)]
    except (KeyError, TypeError):
        raise InputError(f"unknown method {method!r}; allowed are {', '.join(map(repr, get_args(Method)))}") from None


def estimate_game(game: Game, plan: Plan, call: int = 0, allowed: Allowance | None = None) -> Estimate:
    """Return the values of a game, equal for identical clients; refined if some errors are `allowed`."""
    if isinstance(game, HeadGame):
        moving, players = game.moving()
        if len(players) < game.n_players:
            if len(players) == 0:
                return Estimate.none(game.n_players)
            return estimate_game(moving, plan, call, allowed).of_players(players, game.n_players)
    if allowed is None:
        result = plan.estimator.estimate(game, plan, call)
    else:
        result = plan.estimator.refine(game, plan, call, allowed)
    if result.kind == "certified" and not game.rounding_is_bounded:
        result = replace(result, kind="certified but for rounding")
    # The closed form gives identical clients equal values; other methods do so up to rounding or sampling.
    return result if result.methods <= {"closed-form"} else result.symmetric(game.identical_clients())


class Allowances(Protocol):
    """Decides which rounds are refined."""

    n_attempts: int

    def needed(self, values: Floats, errors: Floats) -> dict[int, Allowance]:
        """Return the rounds to refine, with the errors allowed for each, given those of all clients."""


def estimate_rounds(
    ask: Callable[[Plan], Estimate], plan: Plan, n_clients: int, allowances: Allowances, first_look: int
) -> tuple[Estimate, Floats]:
    """Return the values of some rounds, (rounds, players), and bounds on their errors.

    `ask` values all rounds of a plan, or those that it refines, as means over samples. If the closed form takes part,
    values are balanced; other methods' values add up to the utility already. Rounds whose errors are too large are
    refined. The bound of round t takes look `first_look` + t, and that of each further attempt one more.
    """
    paid = np.s_[:, :n_clients]  # the tolerance is for clients: the server's value and error may be larger
    found = ask(plan)
    # Decided once for all rounds, so that a round does not depend on what others needed.
    is_balanced = "closed-form" in found.methods
    found = found.balanced() if is_balanced else found
    looks = first_look + np.arange(len(found.values))
    errors = found.bound(looks)
    for attempt in range(allowances.n_attempts if plan.estimator.can_refine(plan.semivalue) else 0):
        refined = allowances.needed(found.values[paid], errors[paid])
        if not refined:
            break
        again = ask(replace(plan, refined=refined, first_round=plan.first_round + attempt))
        again = again.balanced() if is_balanced else again
        smaller = again.bound(looks + attempt)
        is_better = smaller[paid].max(axis=1) < errors[paid].max(axis=1)
        is_better &= np.isin(np.arange(len(is_better)), list(refined))
        if not is_better.any():
            break
        found, errors = found.replaced(again, is_better), np.where(is_better[:, np.newaxis], smaller, errors)
    return found, errors
