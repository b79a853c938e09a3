"""`complete`: all embeddings of a client from those it uploaded in the batches of a synchronous training."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from verfedsv.arguments import as_array, as_positive, as_samples, as_whole
from verfedsv.arrays import Array, Floats
from verfedsv.completion.expected import MAX_SAMPLES, expected_errors
from verfedsv.completion.factors import CompiledSolver, Factors, Fit, FitErrors
from verfedsv.completion.observations import Pattern
from verfedsv.completion.parts import Equations, Observations, solve_all
from verfedsv.errors import InputError
from verfedsv.shapley.blocks import LARGEST_EMBEDDING
from verfedsv.threads import available_threads

HELD_OUT = 0.05
"""The fraction of observations held out to measure errors and to choose the rank."""

CANDIDATES = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)
"""The ranks that `rank="auto"` tries, until `PATIENCE` in a row do not help."""

HELPS, EXACT, PATIENCE = 0.02, 1e-6, 2
"""A rank helps if it lowers the held-out error by the fraction `HELPS`, or by 1/sqrt(n) if only few, n, are held out:
less may be chance. The search ends once the error is below `EXACT` times the size of the embeddings. A continued
completion tries one rank that does not help: with two, it took more sweeps than a fresh one."""

REGULARIZATIONS, COARSE = (0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6), 0.1
"""The lambdas that `regularization="auto"` tries, the paper's first, until the held-out error is below `COARSE` times
the size of the embeddings, or no longer halved."""

TIE = 1e-6
"""Errors that differ by less than this fraction may compare differently on another processor, by rounding."""

Start = Literal["spectral", "random"]


@dataclass(frozen=True)
class CompletionReport:
    """How well low-rank factors reproduce the embeddings of a client.

    `held_out_rmse` and `held_out_largest` are errors on uploads that were held out of the fit, NaN and 0 if there were
    none; `held_out_size` is the root mean square of these uploads. `expected_rmse` and `expected_size` are the same for
    all embeddings, uploaded or not, as `expected_errors` estimates them. `train_rmse` and `train_largest` are errors of
    the returned factors, which are fitted to all uploads. `fit_sweeps` are the sweeps of each fit, in order, `n_sweeps`
    is their sum. `n_unseen` samples were never uploaded. `n_withheld` embeddings were completed although another client
    uploaded the same sample in the same round. The rank is 0 if nothing was missing.
    """

    rank: int
    regularization: float
    train_rmse: float
    train_largest: float
    held_out_rmse: float
    held_out_largest: float
    held_out_size: float
    expected_rmse: float
    expected_size: float
    n_observations: int
    n_held_out: int
    n_unseen: int
    n_sweeps: int
    fit_sweeps: tuple[int, ...]
    n_withheld: int = 0

    @classmethod
    def of_uploads(cls, n_observations: int, n_unseen: int) -> CompletionReport:
        """Return the report if nothing was missing."""
        return cls(0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, n_observations, 0, n_unseen, 0, ())


@dataclass(frozen=True, eq=False)
class Completion:
    """The embeddings of a client in all rounds, as low-rank factors.

    The embedding of sample i in round t and class c is `rounds[t, c] . samples[i]`; `rounds` is (rounds, classes,
    rank), `samples` is (samples, rank), with zeros for samples that were never uploaded. The arrays are read-only.
    `samples` has no rows if they are in files: then only what follows from `rounds` is known, as where to start from.
    """

    rounds: Floats
    samples: Floats
    report: CompletionReport

    def __post_init__(self) -> None:
        self.rounds.flags.writeable = self.samples.flags.writeable = False

    def embeddings(self, round_number: int) -> Floats:
        """Return the embeddings of all samples in a round (0, 1, ...), (samples, classes)."""
        return np.asarray(self.samples @ self.rounds[round_number].T)


def complete(
    batches: Sequence[ArrayLike],
    embeddings: Sequence[ArrayLike],
    n_samples: int,
    rank: int | Literal["auto"] = "auto",
    regularization: float | Literal["auto"] = "auto",
    *,
    start: Start | Completion = "spectral",
    tolerance: float = 1e-3,
    max_sweeps: int = 100,
    seed: int = 0,
    n_threads: int | None = None,
) -> Completion:
    """Return all embeddings of one client from those it uploaded: equation 2 of the paper.

    Needs only the client's own uploads, so it can run at the client.

    Args:
        batches: for each round the uploaded samples, as distinct numbers from 0 to `n_samples` - 1 or as a mask.
        embeddings: for each round the embeddings of these samples, (samples,) or (samples, classes). A zero is an
            observation like any other.
        n_samples: the number of all samples.
        rank: the rank of the factors, or "auto": from 1 to 8, then 10, 12, 14, 16, 20, 24, 28 and 32, until the error
            on held-out embeddings no longer falls.
        regularization: lambda of equation 2, or "auto": 0.1 as in the paper, lowered by factors of ten while the error
            on held-out embeddings is above a tenth of their size and each step halves it.
        start: "spectral", from the embeddings interpolated in time; "random", the usual choice, which is worse here;
            or a completion of the first of these rounds, to continue from.
        tolerance: a fit ends when a sweep changes the root mean squared error by less than this fraction.
        max_sweeps: the largest number of sweeps of a fit.
        seed: seeds the choice of held-out embeddings and the random start.
        n_threads: by default all cores. The result does not depend on it.

    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> true = np.outer(np.arange(1, 31), rng.normal(size=50))
    >>> batches = [rng.permutation(50)[:10] for _ in range(30)]
    >>> result = complete(batches, [row[batch] for row, batch in zip(true, batches)], 50, regularization=1e-6)
    >>> bool(np.abs(result.embeddings(7)[:, 0] - true[7]).max() < 1e-5), result.report.rank
    (True, 1)
    """
    n_samples = as_whole("n_samples", n_samples, at_least=1)
    numbers = [as_samples(f"batches[{t}]", batch, n_samples) for t, batch in enumerate(_as_rounds("batches", batches))]
    uploads = _as_uploads(_as_rounds("embeddings", embeddings), numbers)
    pattern = Pattern.from_batches(numbers, n_samples)
    n_threads = available_threads() if n_threads is None else as_whole("n_threads", n_threads, at_least=1)
    values = pattern.sort(uploads, uploads[0].shape[1], n_threads)
    solver = CompiledSolver(
        Observations.in_memory(pattern, values, HELD_OUT, as_whole("seed", seed, at_least=0)),
        REGULARIZATIONS[0],
        as_positive("tolerance", tolerance),
        as_whole("max_sweeps", max_sweeps, at_least=1),
        n_threads,
    )
    fit, report = fit_with(solver, rank, regularization, start, seed)
    return Completion(fit.rounds, solver.solve(fit), report)


def fit_with(
    solver: CompiledSolver,
    rank: int | Literal["auto"],
    regularization: float | Literal["auto"],
    start: Start | Completion,
    seed: int,
    like: CompletionReport | None = None,
) -> tuple[Fit, CompletionReport]:
    """Choose rank and lambda on held-out uploads, then fit to all uploads.

    Choices so close that rounding decides them are made as in `like`, so that a completion can be repeated on another
    processor; otherwise `like` is ignored.
    """
    uploads = solver.observations
    n_rounds, n_classes, n_held_out = uploads.n_rounds, uploads.n_classes, uploads.n_held_out
    earlier = _continued(start, n_rounds, n_classes)
    # If nothing can be held out, nothing shows whether a higher rank helps.
    largest_rank = min(n_rounds * n_classes, uploads.n_seen)
    ranks = _ranks(rank, max(1, earlier.shape[2]), largest_rank, can_choose=n_held_out > 0)
    begin = _begin(solver, (n_rounds, n_classes, ranks[-1]), start, seed)
    zeros = np.zeros((n_rounds, n_classes, 1))
    without_fit = solver.errors(Fit(zeros, Equations.of(zeros, solver.regularization, uses_all=False)))[1]
    best = _Search(solver, begin, earlier, ranks, without_fit, like).over(_weights(regularization, start))
    solver.regularization = best.regularization
    fit = best.fit
    if n_held_out:
        fit = solver.fit(fit.rounds, uses_all=True, n_sweeps=_sweeps_of_next_fit(solver, like))
    used, _ = solver.errors(fit)
    some = solver.gather(MAX_SAMPLES)
    of_some = Factors(fit.rounds, solve_all(some, fit.equations))
    expected_rmse, expected_size = expected_errors(some, of_some, best.regularization, best.errors.rmse)
    report = CompletionReport(
        rank=fit.rounds.shape[2],
        regularization=best.regularization,
        train_rmse=used.rmse,
        train_largest=used.largest,
        held_out_rmse=best.errors.rmse,
        held_out_largest=best.errors.largest,
        held_out_size=without_fit.rmse,
        expected_rmse=expected_rmse,
        expected_size=expected_size,
        n_observations=uploads.n_observations,
        n_held_out=n_held_out,
        n_unseen=uploads.n_samples - uploads.n_seen,
        n_sweeps=sum(solver.fit_sweeps),
        fit_sweeps=tuple(solver.fit_sweeps),
    )
    return fit, report


def _ranks(rank: int | Literal["auto"], lowest: int, largest: int, *, can_choose: bool) -> list[int]:
    """Return the ranks to try, lowest first."""
    if isinstance(rank, str) and rank == "auto":
        return [lowest, *(r for r in CANDIDATES if can_choose and lowest < r <= largest)]
    return [min(as_whole("rank", rank, at_least=1, hint="; or use 'auto'"), largest)]


def _weights(regularization: float | Literal["auto"], start: Start | Completion) -> Sequence[float]:
    """Return the lambdas to try, largest first."""
    if not (isinstance(regularization, str) and regularization == "auto"):
        return [as_positive("regularization", regularization)]
    most = start.report.regularization if isinstance(start, Completion) else np.inf
    return [weight for weight in REGULARIZATIONS if weight <= most] or REGULARIZATIONS[-1:]


class _Choice(NamedTuple):
    """A fit and its held-out errors."""

    fit: Fit
    errors: FitErrors
    regularization: float


class _Search(NamedTuple):
    """A search for the rank and lambda with the smallest held-out error.

    For each lambda, the first fit starts from the `earlier` factors of the rounds, those of higher ranks from the best
    so far, with further columns of `begin`. `without_fit` are the errors of zeros.
    """

    solver: CompiledSolver
    begin: Floats
    earlier: Floats
    ranks: Sequence[int]
    without_fit: FitErrors
    like: CompletionReport | None

    def over(self, weights: Sequence[float]) -> _Choice:
        """Return the best fit over falling lambdas, each with its best rank."""
        largest, *smaller = weights
        best = self._with(largest)
        for weight in smaller:
            is_wanted = None if self.like is None else self.like.regularization <= weight
            if not _is_below(COARSE * self.without_fit.rmse, best.errors.rmse, is_wanted):
                break
            choice = self._with(weight)
            if not _is_below(choice.errors.rmse, best.errors.rmse / 2, is_wanted):
                break
            best = choice
        return best

    def _with(self, weight: float) -> _Choice:
        """Return the fit of the best rank for a lambda."""
        self.solver.regularization = weight
        n_held_out = self.without_fit.n_observations
        helps = max(HELPS, n_held_out**-0.5) if n_held_out else 1.0
        lowest, *higher = self.ranks
        best = self._fit(lowest, self.earlier)
        failures, patience = 0, 1 if self.earlier.size else PATIENCE
        for rank in higher:
            is_wanted = None if self.like is None else self.like.rank >= rank
            if failures == patience or not _is_below(EXACT * self.without_fit.rmse, best.errors.rmse, is_wanted):
                break
            choice = self._fit(rank, best.fit.rounds)
            if _is_below(choice.errors.rmse, (1 - helps) * best.errors.rmse, is_wanted):
                best, failures = choice, 0
            else:
                failures += 1
        return best

    def _fit(self, rank: int, known: Floats) -> _Choice:
        solver = self.solver
        rounds = np.concatenate([known[:, :, :rank], self.begin[:, :, known.shape[2] : rank]], axis=2)
        fit = solver.fit(rounds, uses_all=False, n_sweeps=_sweeps_of_next_fit(solver, self.like))
        return _Choice(fit, solver.errors(fit)[1], solver.regularization)


def _sweeps_of_next_fit(solver: CompiledSolver, like: CompletionReport | None) -> int | None:
    """Return the sweeps of the next fit in `like`, None if it has no such fit."""
    n_fits = len(solver.fit_sweeps)
    return like.fit_sweeps[n_fits] if like is not None and n_fits < len(like.fit_sweeps) else None


def _is_below(error: float, limit: float, if_close: bool | None) -> bool:
    """Return whether an error is below a limit; if it is too close to call, return `if_close` (unless None)."""
    if if_close is not None and abs(error - limit) <= TIE * limit:
        return if_close
    return error < limit


def _begin(solver: CompiledSolver, shape: tuple[int, int, int], start: Start | Completion, seed: int) -> Floats:
    if isinstance(start, Completion) or (isinstance(start, str) and start == "spectral"):
        return solver.start(shape[2])
    if isinstance(start, str) and start == "random":
        return np.random.default_rng(seed).standard_normal(shape)
    raise InputError(f"start must be 'spectral', 'random' or an earlier Completion; received {start!r}")


def _continued(start: Start | Completion, n_rounds: int, n_classes: int) -> Floats:
    """Return the factors of the rounds of an earlier completion, of rank 0 if there is none.

    New rounds get those of its last one.
    """
    if not isinstance(start, Completion):
        return np.empty((n_rounds, n_classes, 0))
    n_before, n_classes_before, _ = start.rounds.shape
    if n_before > n_rounds or n_classes_before != n_classes:
        raise InputError(
            f"the completion to start from has {n_before} rounds and {n_classes_before} classes, the uploads have "
            f"{n_rounds} and {n_classes}; it must be a completion of the first of these rounds"
        )
    return np.concatenate([start.rounds, np.repeat(start.rounds[-1:], n_rounds - n_before, axis=0)])


def _as_rounds(name: str, values: Sequence[ArrayLike]) -> Sequence[ArrayLike]:
    try:
        return list(values)
    except TypeError:
        raise InputError(f"{name} must have one entry for each round; received {type(values).__name__}") from None


def _as_uploads(embeddings: Sequence[ArrayLike], batches: Sequence[Array]) -> list[Array]:
    if len(embeddings) != len(batches) or len(batches) == 0:
        raise InputError(
            "batches and embeddings need one entry for each round, and at least one; "
            f"received {len(batches)} and {len(embeddings)}"
        )
    uploads = []
    for t, (values, batch) in enumerate(zip(embeddings, batches, strict=True)):
        array = as_array(f"embeddings[{t}]", values)
        array = array[:, np.newaxis] if array.ndim == 1 else array
        if array.ndim != 2 or len(array) != len(batch) or array.shape[1] == 0:
            raise InputError(
                f"embeddings[{t}] must have shape ({len(batch)},) or ({len(batch)}, classes) as its batch has "
                f"{len(batch)} samples; received {np.shape(values)}"
            )
        if not float(np.abs(array).max()) < LARGEST_EMBEDDING:
            raise InputError(f"embeddings[{t}] must be finite and below {LARGEST_EMBEDDING:g} in size")
        uploads.append(array if array.dtype in (np.float32, np.float64) else array.astype(np.float64))
    widths = {array.shape[1] for array in uploads}
    if len(widths) > 1:
        raise InputError(f"all embeddings must have the same number of classes; received {sorted(widths)}")
    return uploads
