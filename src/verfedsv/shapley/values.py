"""`shapley_values`: the value of each client in one round, by any of the methods."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike

from verfedsv.arguments import as_positive, as_whole
from verfedsv.errors import InputError, ToleranceWarning
from verfedsv.losses import Floats, Loss
from verfedsv.shapley.auto import ENUMERATION_LIMIT, auto
from verfedsv.shapley.closed_form import CLOSED_FORM_EVALUATIONS, closed_form
from verfedsv.shapley.exact import MAX_CLIENTS, exact, rounding_errors
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.permutation import default_permutations, permutation
from verfedsv.shapley.result import ErrorKind, Progress, ShapleyResult
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
    previous_offset: ArrayLike | None = None,
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

    Args:
        previous: embeddings before the round, (clients, samples) for one number per sample, or (clients, samples,
            classes). Any float type; never copied whole. Rows are matched by position.
        current: embeddings after the round, shaped as `previous`.
        labels: one per sample: -1/+1 or 0/1 for the loss "logistic", 0..C-1 for "softmax", numbers for "squared".
        loss: "logistic", "softmax", "squared", or a `Loss` of your own.
        method: "auto": the closed form, and where its proven error is above the tolerance, enumeration or sampling on
            the samples that cause it. "closed-form": linear in clients and samples, no sampling, a proven error for
            each client. "exact": all 2^clients coalitions, up to 25 clients. "permutation": the paper's Monte Carlo.
        offset: the server's own part of the summed embedding, such as an intercept, (samples,) or (samples, classes).
        previous_offset: the same before the round, if the server moved in it. The server is then one more player, whose
            value is `server_value`. Without it the offset is taken not to have changed.
        semivalue: "shapley", "banzhaf", "leave-one-out" or `Beta(a, b)`. Others than Shapley's are computed exactly or
            by sampling.
        tolerance: for "auto", the largest error allowed, relative to the largest value.
        n_permutations: for "permutation", how many, by default ceil(100 M ln M) as in the paper. For "auto", the most
            that any sample may draw.
        antithetic: for "permutation", draw them in pairs of opposite order: fewer do for the same error.
        standard_error: for "permutation", stop early once every standard error is at most this.
        seed: of the random draws. The same seed gives the same result.
        n_threads: by default all cores. The result does not depend on it.
        progress: called with the steps done and the steps in all.

    Returns:
        A `ShapleyResult`: `values`, `errors`, `shares`, and how they were obtained.

    Raises:
        InputError: something passed in cannot be used; the message says what.
        TooManyClientsError: "exact" was asked for with more than 25 clients.

    A ToleranceWarning tells when "auto" could not keep the tolerance. The first call with a loss or a float type
    compiles for a few seconds; the compiled code is kept on disk.

    Example:
        >>> import numpy as np
        >>> previous = np.zeros((2, 3))
        >>> current = np.array([[1.0, -1.0, 2.0], [0.0, 0.5, 0.5]])
        >>> result = shapley_values(previous, current, labels=[1, 0, 1])
        >>> result.values.round(4)
        array([ 0.4335, -0.0291])
    """
    game = RoundGame.from_arrays(
        previous, current, labels, loss, offset=offset, previous_offset=previous_offset, n_threads=n_threads
    )
    kind = get_semivalue(semivalue)
    if method not in get_args(Method):
        raise InputError(f"unknown method {method!r}; allowed are {', '.join(map(repr, get_args(Method)))}")
    tolerance = as_positive("tolerance", tolerance)
    standard_error = None if standard_error is None else as_positive("standard_error", standard_error)
    n_permutations = (
        default_permutations(game.n_players)
        if n_permutations is None
        else as_whole("n_permutations", n_permutations, at_least=1)
    )
    seed = as_whole("seed", seed, at_least=0)
    if progress is not None and not callable(progress):
        raise InputError(f"progress must be a function of the steps done and in all; received {progress!r}")
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
    if result.error_kind == "certified" and not game.loss.rounding_is_bounded:
        result = replace(result, error_kind="certified but for rounding")
    result = _set_server_apart(game, symmetric(game, result))
    if result.tolerance_met is False:
        remains = say_what_remains(result.values, result.errors, result.error_kind, tolerance, n_permutations)
        warnings.warn(remains, ToleranceWarning, stacklevel=2)
    return result


def _set_server_apart(game: RoundGame, result: ShapleyResult) -> ShapleyResult:
    """Return the result without the server among the clients, if it was the last player."""
    if game.n_players == game.n_clients:
        return result
    *_, value = result.values.tolist()
    *_, error = result.errors.tolist()
    return replace(
        result,
        values=result.values[:-1],
        errors=result.errors[:-1],
        standard_errors=None if result.standard_errors is None else result.standard_errors[:-1],
        server_value=value,
        server_error=error,
    )


def say_what_remains(
    values: Floats, errors: Floats, error_kind: ErrorKind, tolerance: float, n_permutations: int
) -> str:
    """Return the text of a ToleranceWarning."""
    more = f"more than n_permutations={n_permutations:,} or " if error_kind == "confidence" else ""
    return (
        f"errors are up to {errors.max():.2g} and the largest value is {np.abs(values).max():.2g}, "
        f"which does not keep the tolerance of {tolerance:g}; allow {more}a larger tolerance"
    )


def _is_small(game: RoundGame, semivalue: Semivalue) -> bool:
    """Return whether to enumerate a semivalue that has no closed form."""
    if semivalue in (SHAPLEY, LEAVE_ONE_OUT):
        return semivalue == LEAVE_ONE_OUT
    return game.n_players <= MAX_CLIENTS and 2**game.n_players * game.n_samples <= ENUMERATION_LIMIT


def _exact(game: RoundGame, semivalue: Semivalue, progress: Progress | None) -> ShapleyResult:
    values, n_evaluations = exact(game, semivalue, progress=progress)
    return ShapleyResult(values, rounding_errors(game), "certified", "exact", str(semivalue), n_evaluations)


def symmetric(game: RoundGame, result: ShapleyResult) -> ShapleyResult:
    """Return the values with the mean of those clients that are identical in the place of each of them."""
    # The closed form treats equal clients equally by itself; other methods do so up to rounding or sampling.
    groups = [] if result.method == "closed-form" else game.identical_clients()
    if not groups:
        return result
    values, errors = result.values.copy(), result.errors.copy()
    standard_errors = None if result.standard_errors is None else result.standard_errors.copy()
    for group in groups:
        values[group] = values[group].mean()
        errors[group] = errors[group].max()
        if standard_errors is not None:
            standard_errors[group] = standard_errors[group].max()
    return replace(result, values=values, errors=errors, standard_errors=standard_errors)
