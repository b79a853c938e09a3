"""`shapley_values`: the value of each client in one round, by any of the methods."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from verfedsv.errors import InputError, ToleranceWarning
from verfedsv.losses import Loss
from verfedsv.shapley.auto import ENUMERATION_LIMIT, auto
from verfedsv.shapley.closed_form import CLOSED_FORM_EVALUATIONS, closed_form
from verfedsv.shapley.exact import MAX_CLIENTS, exact, rounding_errors
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.permutation import default_permutations, permutation
from verfedsv.shapley.result import Progress, ShapleyResult
from verfedsv.shapley.semivalues import LEAVE_ONE_OUT, SHAPLEY, Semivalue, get_semivalue

Method = Literal["auto", "closed-form", "exact", "permutation"]


def shapley_values(
    previous: ArrayLike,
    current: ArrayLike,
    labels: ArrayLike,
    loss: str | Loss = "logistic",
    method: Method = "auto",
    *,
    offset: ArrayLike | None = None,
    semivalue: str | Semivalue = "shapley",
    tolerance: float = 1e-3,
    n_permutations: int | None = None,
    antithetic: bool = False,
    standard_error: float | None = None,
    seed: int = 0,
    n_threads: int | None = None,
    progress: Progress | None = None,
) -> ShapleyResult:
    """Return how much of one round's decrease of the loss each client is credited with, and how sure that is.

    `previous` and `current` are the clients' embeddings before and after the round, (clients, samples) for one number
    per sample or (clients, samples, classes); any float type, never copied whole. `labels` has one entry per sample:
    -1/+1 or 0/1 for the loss "logistic", 0..C-1 for "softmax", real numbers for "squared". `offset`, (samples,) or
    (samples, classes), is the server's own part of the summed embedding, which is no player.

    `method` is one of these:

    - "auto": the closed form, and where its proven error is above `tolerance` times the largest value, enumeration or
      sampling on the samples that cause it. A ToleranceWarning tells when that was not enough.
    - "closed-form": linear in clients and samples, no sampling, with a proven error for each client.
    - "exact": all 2^clients coalitions, for up to 25 clients.
    - "permutation": the paper's Monte Carlo, by default ceil(100 M ln M) permutations (`n_permutations`), optionally in
      `antithetic` pairs, stopping early once every standard error is at most `standard_error`.

    `semivalue` is "shapley", "banzhaf", "leave-one-out" or a `Beta(a, b)`; other than Shapley values are computed
    exactly or by sampling. The result depends on `seed` but not on `n_threads`, by default all cores. `progress` is
    called with the steps done and the steps in all.

    >>> import numpy as np
    >>> previous = np.zeros((2, 3))
    >>> current = np.array([[1.0, -1.0, 2.0], [0.0, 0.5, 0.5]])
    >>> result = shapley_values(previous, current, labels=[1, 0, 1])
    >>> result.values.round(4)
    array([ 0.4335, -0.0291])
    """
    game = RoundGame.from_arrays(previous, current, labels, loss, offset=offset, n_threads=n_threads)
    kind = get_semivalue(semivalue)
    _check_options(method, tolerance, standard_error, n_permutations)
    n_permutations = n_permutations or default_permutations(game.n_clients)
    if method in ("exact", "permutation") or kind != SHAPLEY:
        game.check_finite()  # the closed form does so on its way
    if method == "exact" or (method == "auto" and _is_small(game, kind)):
        result = _exact(game, kind, progress)
    elif method == "permutation" or (method == "auto" and kind != SHAPLEY):
        sampled = permutation(
            game,
            kind,
            n_permutations=n_permutations,
            antithetic=antithetic,
            seed=seed,
            standard_error=standard_error,
            tolerance=tolerance if method == "auto" else None,
            progress=progress,
        )
        result = ShapleyResult(error_kind="confidence", method="permutation", semivalue=str(kind), **sampled._asdict())
    elif method == "auto":
        estimate = auto(game, tolerance=tolerance, max_permutations=n_permutations, seed=seed, progress=progress)
        result = ShapleyResult(semivalue=str(kind), **estimate._asdict())
    elif kind == SHAPLEY:
        values, errors, _ = closed_form(game)
        result = ShapleyResult(values, errors, "certified", method, str(kind), CLOSED_FORM_EVALUATIONS)
    else:
        raise InputError(
            f"method 'closed-form' computes Shapley values only; for semivalue {str(kind)!r} use method 'auto', "
            "'exact' or 'permutation'"
        )
    if result.tolerance_met is False:
        relative = result.errors.max() / np.abs(result.values).max()
        warnings.warn(
            f"the errors are up to {relative:.2g} of the largest value, more than the tolerance of {tolerance:g}; "
            "allow more permutations with n_permutations, or a larger tolerance",
            ToleranceWarning,
            stacklevel=2,
        )
    return result if result.standard_errors is None else _symmetric(game, result)


def _check_options(method: str, tolerance: float, standard_error: float | None, n_permutations: int | None) -> None:
    if method not in get_args(Method):
        raise InputError(f"unknown method {method!r}; allowed are {', '.join(map(repr, get_args(Method)))}")
    if not tolerance > 0:
        raise InputError(f"tolerance must be positive; received {tolerance}")
    if standard_error is not None and not standard_error > 0:
        raise InputError(f"standard_error must be positive; received {standard_error}")
    if n_permutations is not None and n_permutations < 1:
        raise InputError(f"n_permutations must be at least 1; received {n_permutations}")


def _is_small(game: RoundGame, semivalue: Semivalue) -> bool:
    """Return whether to enumerate a semivalue that has no closed form."""
    if semivalue in (SHAPLEY, LEAVE_ONE_OUT):
        return semivalue == LEAVE_ONE_OUT
    return game.n_clients <= MAX_CLIENTS and 2**game.n_clients * game.n_samples <= ENUMERATION_LIMIT


def _exact(game: RoundGame, semivalue: Semivalue, progress: Progress | None) -> ShapleyResult:
    values, n_evaluations = exact(game, semivalue, progress=progress)
    return ShapleyResult(values, rounding_errors(game), "certified", "exact", str(semivalue), n_evaluations)


def _symmetric(game: RoundGame, result: ShapleyResult) -> ShapleyResult:
    """Return sampled values with the mean of those clients that are identical in the place of each of them.

    Their true values are equal; sampling alone would leave them equal within the errors only.
    """
    values, errors = result.values.copy(), result.errors.copy()
    for group in game.identical_clients():
        values[group] = values[group].mean()
        errors[group] = errors[group].max()
    return replace(result, values=values, errors=errors)
