"""`value`: what each client contributed to a recorded training."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import Executor
from dataclasses import asdict, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arguments import as_progress
from verfedsv.errors import CompletionWarning, InputError, ToleranceWarning, warn
from verfedsv.losses import Loss, get_loss
from verfedsv.settings import ValuationSettings
from verfedsv.shapley import Method, Progress, Semivalue
from verfedsv.shapley.estimators import get_estimator
from verfedsv.shapley.semivalues import get_semivalue
from verfedsv.shapley.values import say_what_remains
from verfedsv.transcript import Recorder, Transcript
from verfedsv.valuation.completion_errors import FEWEST
from verfedsv.valuation.job import Job
from verfedsv.valuation.result import Valuation
from verfedsv.valuation.trainings import RecordedTraining


def value(
    run: str | os.PathLike[str] | Transcript | Recorder,
    method: Method | None = None,
    rank: int | Literal["auto"] | None = None,
    seed: int | None = None,
    rows: str | ArrayLike | None = None,
    progress: Progress | None = None,
    executor: Executor | None = None,
    *,
    loss: Loss | None = None,
    since: Valuation | None = None,
    like: Valuation | None = None,
    regularization: float | Literal["auto"] | None = None,
    tolerance: float | None = None,
    n_permutations: int | None = None,
    semivalue: str | Semivalue | None = None,
) -> Valuation:
    """Return what each client contributed to a recorded training, and how sure that is.

    Each round is a game whose value is the decrease of the loss in it; a client's value is the mean over rounds of its
    Shapley values. Embeddings are zero before a client's first upload, and stay where they are in rounds without one.
    In synchronous training, embeddings that a client did not upload in a round are completed (equation 3 of the paper),
    unless all of its uploads have the same samples. In asynchronous training, they are what the server had, and nothing
    is completed.

    Options that are not given are those that were agreed when the training was recorded (`Recorder(valuation=...)`), by
    default "auto" for method, rank and regularization, a tolerance of 1e-3, seed 0, all rows and Shapley values.

    Args:
        run: the folder of a transcript, a `Transcript`, or the `Recorder` that is writing it.
        method: how to value a round, as in `shapley_values`. "auto" is the closed form, and enumeration or sampling on
            the samples of the rounds in which it is not sure enough.
        rank: of the factors in completion, or "auto": chosen for each client on held-out uploads.
        seed: of all random choices: the uploads held out, and permutations.
        rows: the samples to take the mean over: "all", "gradient" (those that receive gradients in training),
            "no-gradient" (the others), or a list of sample numbers.
        progress: called with the steps done and the steps in all.
        executor: where to compute, any `concurrent.futures.Executor`; by default a thread for each core. The result
            does not depend on it.
        loss: the loss again, if the training was recorded with one of your own.
        since: an earlier valuation of the same training, which has grown since. Asynchronous: only the new rounds are
            valued, and the result is that of valuing all; of a valuation that was not read from a file, only they are
            read. Synchronous: completion starts from what it was.
        like: a valuation of this transcript that is computed again, to check it. On the same version and processor the
            result is the same to the last bit. Elsewhere rounding differs, and where it decides how embeddings are
            completed (a rank, a lambda, one more sweep), that is decided as in `like`, which decides nothing else.
        regularization: lambda of equation 3, or "auto": 0.1 as in the paper, less where that shrinks too much.
        tolerance: for "auto", the largest error allowed to the estimator, relative to the largest value.
        n_permutations: for "permutation", how many per round, by default ceil(100 M ln M); for "auto", the most that
            samples may draw in a round, on average, by default 128.
        semivalue: of each round, as in `shapley_values`: "shapley", "banzhaf", "leave-one-out", "beta(a, b)" or
            `Beta(a, b)`. Only Shapley values add up to the decrease of the loss.

    >>> with Recorder(None, labels=[0, 1, 1, 0], clients=["bank", "telco"]) as recorder:
    ...     recorder.update("bank", [0, 1, 2, 3], [-1.0, 1.0, 1.0, -1.0], time=1)
    ...     recorder.update("telco", [0], [-0.5], time=2)
    ...     recorder.stamp(time=3)
    >>> value(recorder).shares.round(3)
    array([0.899, 0.101])
    """
    begin = time.perf_counter()
    training = RecordedTraining(_open(run), None if loss is None else get_loss(loss))
    agreed = training.transcript.description.valuation
    rows = agreed.rows if rows is None else rows
    chosen = training.select(rows)
    kind = get_semivalue(agreed.semivalue if semivalue is None else semivalue)
    given = {
        "method": method,
        "rank": rank,
        "regularization": regularization,
        "tolerance": tolerance,
        "n_permutations": n_permutations,
        "seed": seed,
        "rows": _describe(rows, chosen),
    }
    known = {name: option for name, option in given.items() if option is not None}
    settings = replace(agreed, semivalue=kind, **known)  # type: ignore[arg-type]  # whose name is stored
    _check(training, settings, kind, since, like)
    if executor is not None and not isinstance(executor, Executor):
        raise InputError(f"executor must be a concurrent.futures.Executor; received {executor!r}")
    told = as_progress(progress) or (lambda _done, _total: None)
    job = Job(training, settings, kind, chosen, told, executor, since, like)
    result = job.run()
    result = replace(result, seconds={**result.seconds, "total": time.perf_counter() - begin})
    _warn(result, job.n_permutations)
    return result


def _warn(result: Valuation, n_permutations: int) -> None:
    """Warn the caller of `value` of errors that are larger than the tolerance, or unknown."""
    if result.tolerance_met is False:
        remains = say_what_remains(
            result.values, result.estimator_errors, result.error_kind, result.settings.tolerance, n_permutations
        )
        warn(remains, ToleranceWarning)
    if not np.isfinite(result.completion_errors).all():
        warn(_say_what_is_missing(result), CompletionWarning)


def _say_what_is_missing(result: Valuation) -> str:
    reports = dict(zip(result.clients, result.completion or (), strict=True))
    if guessed := [name for name, report in reports.items() if report.rank and not report.n_held_out]:
        return (
            f"no sample was uploaded in two rounds by {', '.join(guessed)}, so embeddings of other rounds are little "
            "more than guessed and their error cannot be estimated; record more rounds"
        )
    if unchecked := [name for name, report in reports.items() if report.rank and report.n_held_out < FEWEST]:
        return (
            f"fewer than {FEWEST} uploads of {', '.join(unchecked)} could be held out, too few to estimate the error "
            "of completed embeddings; record more rounds"
        )
    names = [name for name, error in zip(result.clients, result.completion_errors, strict=True) if np.isnan(error)]
    return (
        f"the completed embeddings of {', '.join(names)} are little better than zeros, as held-out uploads show; the "
        "error of such values cannot be estimated. Record more rounds, or try a smaller regularization"
    )


def _open(run: str | os.PathLike[str] | Transcript | Recorder) -> Transcript:
    if isinstance(run, Recorder):
        return run.transcript
    if isinstance(run, Transcript):
        return run
    if isinstance(run, str | os.PathLike):
        return Transcript.open(run)
    raise InputError(f"run must be a folder, a Transcript or a Recorder; received {type(run).__name__}")


def _check(
    training: RecordedTraining,
    settings: ValuationSettings,
    semivalue: Semivalue,
    since: Valuation | None,
    like: Valuation | None,
) -> None:
    """Raise InputError if the training cannot be valued like this, or does not belong to the earlier valuation."""
    get_estimator(settings.method).check(semivalue, len(training.clients))
    for name, earlier in (("since", since), ("like", like)):
        if earlier is not None and not isinstance(earlier, Valuation):
            raise InputError(f"{name} must be an earlier Valuation; received {type(earlier).__name__}")
    if like is not None and like.head != training.transcript.head:
        raise InputError("like is not a valuation of this transcript, as their heads differ")
    if since is None:
        return
    if not training.transcript.contains(since.head):
        raise InputError("since is not a valuation of this training, or the transcript was changed after it")
    if since.settings != settings:
        before, now = asdict(since.settings), asdict(settings)
        differences = ", ".join(
            f"{name} was {before[name]!r} and is {now[name]!r}" for name in now if before[name] != now[name]
        )
        raise InputError(f"since was valued with other settings: {differences}")


def _describe(rows: str | ArrayLike, chosen: NDArray[np.intp]) -> str:
    """Return a short text that identifies the choice of samples."""
    if isinstance(rows, str):
        return rows
    return f"{len(chosen)} chosen ({hashlib.sha256(chosen.astype(np.int64).tobytes()).hexdigest()[:16]})"
