"""The default method: the closed form, and something slower on just those samples where it cannot prove its error."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedsv.losses import Floats
from verfedsv.shapley.closed_form import CLOSED_FORM_EVALUATIONS, balance, sample_errors, sum_third_order
from verfedsv.shapley.exact import MAX_CLIENTS, exact, rounding_errors
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.result import ErrorKind, Progress, keeps
from verfedsv.shapley.semivalues import SHAPLEY
from verfedsv.shapley.stratified import stratified

ENUMERATION_LIMIT = 2**30
"""Coalitions times samples up to which enumeration is preferred to sampling: about half a second on two cores."""


class Auto(NamedTuple):
    """Values and errors, (players,) each; standard errors are None where nothing was sampled."""

    values: Floats
    errors: Floats
    error_kind: ErrorKind
    method: str
    n_evaluations: int
    standard_errors: Floats | None
    tolerance_met: bool


def auto(
    game: RoundGame, *, tolerance: float, max_permutations: int, seed: int, progress: Progress | None = None
) -> Auto:
    """Return Shapley values whose errors are at most `tolerance` times the largest value, if that can be had.

    Both are those of the clients: the server may have a larger value, and a larger error.
    """
    paid = slice(game.n_clients)
    values, errors, utility = sum_third_order(game)
    balanced = balance(values, errors, utility)
    n_evaluations = CLOSED_FORM_EVALUATIONS
    met = keeps(tolerance, balanced.values[paid], balanced.errors[paid])
    result = Auto(balanced.values, balanced.errors, "certified", "closed-form", n_evaluations, None, met)
    # The largest value is known only roughly before the hard samples are done, so their share may have to be redone.
    for attempt in range(3):
        if result.tolerance_met:
            break
        wanted = tolerance * np.abs(result.values[paid]).max()
        refined = refine(game, utility, wanted, max_permutations, seed, attempt, progress)
        if refined is None or refined.errors[paid].max() >= result.errors[paid].max():
            break
        n_evaluations += refined.n_evaluations
        met = keeps(tolerance, refined.values[paid], refined.errors[paid])
        result = refined._replace(n_evaluations=n_evaluations, tolerance_met=met)
        if result.errors[paid].max() > wanted:
            break
    return result


def refine(
    game: RoundGame,
    utility: float,
    error: float,
    max_permutations: int,
    seed: int,
    attempt: int,
    progress: Progress | None = None,
) -> Auto | None:
    """Return values with errors of at most `error`, if that can be had, using the closed form where it is sure.

    `utility` is that of all players together. `attempt` numbers the calls that one result is made of. None if no sample
    is to blame: what is too large is rounding, which nothing here makes smaller.
    """
    easy, hard = split_samples(sample_errors(game), error / 2)
    if len(hard) == 0:
        return None
    closed = sum_third_order(game, easy)
    allowed = error - closed.errors.max()
    rest = _value_hard_samples(game, hard, allowed, max_permutations, seed, attempt, progress)
    # Each permutation adds up to the utility, and so does enumeration: only the easy samples leave a gap.
    values, errors, _ = balance(closed.values + rest.values, closed.errors + rest.errors, utility)
    return rest._replace(values=values, errors=errors)


def _value_hard_samples(
    game: RoundGame,
    samples: NDArray[np.intp],
    error: float,
    max_permutations: int,
    seed: int,
    attempt: int,
    progress: Progress | None,
) -> Auto:
    """Return what `samples` add to the values, by enumeration if that is quick, by sampling if not."""
    if game.n_players <= MAX_CLIENTS and 2**game.n_players * len(samples) <= ENUMERATION_LIMIT:
        values, n_coalitions = exact(game, SHAPLEY, samples=samples, progress=progress)
        n_evaluations = -(-n_coalitions * len(samples) // game.n_samples)
        return Auto(values, rounding_errors(game), "certified", "closed-form+exact", n_evaluations, None, False)
    values, standard_errors, errors, n_evaluations = stratified(
        game,
        samples,
        error=error,
        max_permutations=max_permutations,
        seed=seed,
        attempt=attempt,
        progress=progress,
    )
    return Auto(values, errors, "confidence", "closed-form+sampling", n_evaluations, standard_errors, False)


def split_samples(errors: Floats, allowed: float) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return the samples whose errors add up to at most `allowed` times all samples, and the others, both sorted."""
    order = np.argsort(errors, kind="stable")
    n_easy = int(np.searchsorted(np.cumsum(errors[order]), allowed * len(errors), side="right"))
    return np.sort(order[:n_easy]), np.sort(order[n_easy:])
