"""`value`: what each client contributed to a recorded training."""

from __future__ import annotations

import hashlib
import os
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arguments import as_array, as_positive, as_whole
from verfedsv.completion.factors import Factors
from verfedsv.errors import CompletionWarning, InputError, ToleranceWarning, TooManyClientsError
from verfedsv.losses import Floats
from verfedsv.shapley import Method, Progress
from verfedsv.shapley.blocks import available_threads, split
from verfedsv.shapley.exact import MAX_CLIENTS
from verfedsv.shapley.permutation import default_permutations
from verfedsv.shapley.result import ErrorKind, keeps
from verfedsv.transcript import Recorder, Transcript
from verfedsv.valuation.completed import (
    CompletionPlan,
    approximation_guarantee,
    complete_clients,
    threads_inside,
    value_completed,
)
from verfedsv.valuation.estimate import Plan
from verfedsv.valuation.replay import value_replayed
from verfedsv.valuation.result import Factorisation, Settings, Valuation
from verfedsv.valuation.stream import Budget, Rounds, Stream, chunk_size
from verfedsv.valuation.trainings import Training


def value(
    run: str | os.PathLike[str] | Transcript | Recorder,
    method: Method = "auto",
    rank: int | Literal["auto"] = "auto",
    seed: int = 0,
    rows: str | ArrayLike = "all",
    progress: Progress | None = None,
    executor: Executor | None = None,
    *,
    since: Valuation | None = None,
    regularization: float = 0.1,
    tolerance: float = 1e-3,
    n_permutations: int | None = None,
) -> Valuation:
    """Return what each client contributed to a recorded training, and how sure that is.

    Each round is a game whose value is the decrease of the loss in it; a client's value is the mean over rounds of its
    Shapley values. Embeddings are zero before the first round. In synchronous training, embeddings that were not in
    the batch of a round are completed (equation 3 of the paper), unless every batch was all of the samples. In
    asynchronous training, they are what the server had, and nothing is completed.

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
        since: an earlier valuation of the same training, which has grown since. Asynchronous: only the new rounds are
            valued, and the result is that of valuing all. Synchronous: completion starts from what it was.
        regularization: lambda of equation 3.
        tolerance: for "auto", the largest error allowed to the estimator, relative to the largest value.
        n_permutations: for "permutation", how many per round, by default ceil(100 M ln M); for "auto", the most that
            any sample may draw in a round, by default 128.

    >>> with Recorder(None, labels=[0, 1, 1, 0], clients=["bank", "telco"]) as recorder:
    ...     recorder.update("bank", [0, 1, 2, 3], [-1.0, 1.0, 1.0, -1.0], time=1)
    ...     recorder.update("telco", [0], [-0.5], time=2)
    ...     recorder.stamp(time=3)
    >>> value(recorder).shares.round(3)
    array([0.899, 0.101])
    """
    begin = time.perf_counter()
    training = Training(_open(run))
    settings = Settings(
        method=method,
        rank=rank if rank == "auto" else as_whole("rank", rank, at_least=1, hint="; or use 'auto'"),
        regularization=as_positive("regularization", regularization),
        tolerance=as_positive("tolerance", tolerance),
        n_permutations=None if n_permutations is None else as_whole("n_permutations", n_permutations, at_least=1),
        seed=as_whole("seed", seed, at_least=0),
        rows=_describe(rows),
    )
    _check(training, settings, since)
    if executor is not None and not isinstance(executor, Executor):
        raise InputError(f"executor must be a concurrent.futures.Executor; received {executor!r}")
    if progress is not None and not callable(progress):
        raise InputError(f"progress must be a function of the steps done and in all; received {progress!r}")
    chosen = training.select(rows)
    job = _Job(training, settings, chosen, progress or (lambda _done, _total: None), executor, since)
    done = job.completed() if training.has_gaps else job.replayed()
    result = _assemble(training, settings, done, time.perf_counter() - begin)
    if result.tolerance_met is False:
        warnings.warn(
            f"errors of the estimator are up to {result.estimator_errors.max():.2g} and the largest value is "
            f"{np.abs(result.values).max():.2g}, which does not keep the tolerance of {tolerance:g}; allow more than "
            f"n_permutations={job.n_permutations:,} or a larger tolerance",
            ToleranceWarning,
            stacklevel=2,
        )
    if not np.isfinite(result.completion_errors).all():
        warnings.warn(
            "no sample was uploaded in two rounds, so embeddings of other rounds are little more than guessed and "
            "their error cannot be estimated; record more rounds",
            CompletionWarning,
            stacklevel=2,
        )
    return result


MOST_PERMUTATIONS = 128
"""What "auto" lets a sample draw in a round. Where training makes no progress, values are small beside their errors,
and more would take hours to no avail."""

ENOUGH_ROWS = 2**14
"""Samples from which the error of completion is estimated."""


@dataclass(frozen=True, eq=False)
class _Done:
    """What a job arrived at."""

    rounds: Rounds
    completion_errors: Floats
    n_samples: int
    n_unseen: int
    factorisation: Factorisation | None
    seconds: dict[str, float]


@dataclass(frozen=True, eq=False)
class _Job:
    """One valuation, its arguments checked."""

    training: Training
    settings: Settings
    rows: NDArray[np.intp]
    progress: Progress
    executor: Executor | None
    since: Valuation | None

    @property
    def n_permutations(self) -> int:
        if self.settings.n_permutations is not None:
            return self.settings.n_permutations
        by_paper = default_permutations(len(self.training.clients))
        return min(by_paper, MOST_PERMUTATIONS) if self.settings.method == "auto" else by_paper

    def replayed(self) -> _Done:
        """Value the embeddings as the server held them."""
        begin = time.perf_counter()
        rounds = Rounds.none(len(self.training.clients))
        budget = Budget(self.settings.tolerance)
        if self.since is not None:
            methods = set(self.since.method.split("+"))
            rounds = Rounds(self.since.per_round, self.since.per_round_errors, methods)
            for row in rounds.values:
                budget.allow(row)
        n_before, n_rounds = len(rounds.values), self.training.n_rounds
        rows = self.rows
        if self.training.is_synchronous:
            # All batches are the same, or there is one: what is not in it was never uploaded.
            rows = np.intersect1d(rows, next(self.training.rounds()).samples[0])
            self._refuse_none(rows)
        stream = self._stream(self.settings.method, len(rows), budget, n_before)
        new, n_unseen = value_replayed(
            self.training,
            rows,
            n_before,
            stream,
            lambda done: self.progress(done - n_before, n_rounds - n_before),
        )
        rounds.append(new)
        seconds = {"valuation": time.perf_counter() - begin}
        n_unseen += len(self.rows) - len(rows)
        return _Done(rounds, np.zeros(rounds.values.shape[1]), len(rows), n_unseen, None, seconds)

    def completed(self) -> _Done:
        """Complete the embeddings of all clients, and value them."""
        begin = time.perf_counter()
        plan = CompletionPlan(
            self.settings.rank, self.settings.regularization, self.settings.seed, threads_inside(self.executor)
        )
        known = None if self.since is None else self.since.factorisation
        n_clients = len(self.training.clients)
        n_chunks = len(split(len(self.rows), chunk_size(n_clients, self.training.n_classes)))
        # A completion takes about as long as all chunks.
        step = _Steps(self.progress, (n_clients + 1) * n_chunks)
        pattern, factorisation, intercept = complete_clients(
            self.training, plan, known, self.executor, lambda: step(n_chunks)
        )
        between = time.perf_counter()
        rows = self.rows[pattern.is_seen[self.rows]]
        self._refuse_none(rows)
        own = factorisation.offset
        offset = intercept if own is None else Factors(own.rounds, own.samples)
        factors = [Factors(completion.rounds, completion.samples) for completion in factorisation.clients]
        budget = Budget(self.settings.tolerance)
        stream = self._stream(self.settings.method, len(rows), budget, step=lambda: step(1))
        rounds = value_completed(self.training, rows, factors, offset, stream)
        errors = np.full(n_clients, np.nan)
        if (np.diff(pattern.starts) > 1).any():
            halves = factorisation.halves[:n_clients]
            own_half = offset if own is None else factorisation.halves[-1]
            # A difference of means: some of the samples tell it as well as all.
            some = rows[:: -(-len(rows) // ENOUGH_ROWS)]
            errors = _completion_errors(self._mean(some, factors, offset), self._mean(some, halves, own_half))
        step.finish()
        seconds = {"completion": between - begin, "valuation": time.perf_counter() - between}
        return _Done(rounds, errors, len(rows), len(self.rows) - len(rows), factorisation, seconds)

    def _mean(self, rows: NDArray[np.intp], factors: Sequence[Factors], offset: Factors | Floats | None) -> Floats:
        """Return the values of the training by the closed form, (clients,)."""
        stream = self._stream("closed-form", len(rows), Budget(self.settings.tolerance))
        rounds = value_completed(self.training, rows, factors, offset, stream)
        result: Floats = rounds.values.mean(axis=0)
        return result

    @staticmethod
    def _refuse_none(rows: NDArray[np.intp]) -> None:
        if len(rows) == 0:
            raise InputError("none of the samples that rows means was ever uploaded")

    def _stream(
        self,
        method: Method,
        n_samples: int,
        budget: Budget,
        first_round: int = 0,
        step: Callable[[], None] = lambda: None,
    ) -> Stream:
        n_chunks = len(split(n_samples, chunk_size(len(self.training.clients), self.training.n_classes)))
        plan = Plan(method, self.n_permutations, self.settings.seed, first_round, n_chunks)
        return Stream(self.executor or available_threads(), plan, budget, step)


def _completion_errors(values: Floats, from_half: Floats) -> Floats:
    """Return an estimate of what completion changes, from the values that half of the uploads lead to, (clients,).

    The difference of a client can be small by chance, so none is taken to be smaller, relative to its value, than that
    of all clients together. Half of the uploads know less than all, so this tends to be too large.
    """
    difference = np.abs(from_half - values)
    size = float(np.linalg.norm(values))
    relative = float(np.linalg.norm(difference)) / size if size > 0 else 0.0
    return np.maximum(difference, relative * np.abs(values))


class _Steps:
    """Counts steps and tells `progress`; refinement may take more of them than were foreseen."""

    def __init__(self, progress: Progress, n_steps: int) -> None:
        self._progress, self._done, self._n_steps = progress, 0, n_steps

    def __call__(self, n_steps: int) -> None:
        self._done = min(self._done + n_steps, self._n_steps - 1)
        self._progress(self._done, self._n_steps)

    def finish(self) -> None:
        self._progress(self._n_steps, self._n_steps)


def _open(run: str | os.PathLike[str] | Transcript | Recorder) -> Transcript:
    if isinstance(run, Recorder):
        return run.transcript
    if isinstance(run, Transcript):
        return run
    if isinstance(run, str | os.PathLike):
        return Transcript.open(run)
    raise InputError(f"run must be a folder, a Transcript or a Recorder; received {type(run).__name__}")


def _check(training: Training, settings: Settings, since: Valuation | None) -> None:
    """Raise InputError if the training cannot be valued like this, or does not continue the earlier valuation."""
    if settings.method not in get_args(Method):
        allowed = ", ".join(map(repr, get_args(Method)))
        raise InputError(f"unknown method {settings.method!r}; allowed are {allowed}")
    n_clients = len(training.clients)
    if settings.method == "exact" and n_clients > MAX_CLIENTS:
        raise TooManyClientsError(
            f"method 'exact' enumerates 2^clients coalitions and takes at most {MAX_CLIENTS} clients; this training "
            f"has {n_clients}. Use method 'auto'"
        )
    if since is None:
        return
    if not isinstance(since, Valuation):
        raise InputError(f"since must be an earlier Valuation; received {type(since).__name__}")
    if not training.transcript.contains(since.head):
        raise InputError("since is not a valuation of this training, or the transcript was changed after it")
    if since.settings != settings:
        raise InputError(f"since was valued with other settings: {since.settings}, now {settings}")


def _describe(rows: str | ArrayLike) -> str:
    """Return a short text that stands for the choice of samples."""
    if isinstance(rows, str):
        return rows
    digest = hashlib.sha256(np.ascontiguousarray(as_array("rows", rows)).tobytes()).hexdigest()
    return f"chosen ({digest[:16]})"


def _assemble(training: Training, settings: Settings, done: _Done, seconds: float) -> Valuation:
    per_round, errors = done.rounds.values, done.rounds.errors
    values = per_round.mean(axis=0)
    # The sums over chunks and rounds are rounded too.
    n_sums = 64 + done.n_samples // chunk_size(len(training.clients), training.n_classes)
    rounding = n_sums * np.finfo(np.float64).eps * np.abs(per_round).mean(axis=0)
    estimator_errors = errors.mean(axis=0) + rounding
    parts = {part for method in done.rounds.methods or {"closed-form"} for part in method.split("+")}
    kind: ErrorKind = "confidence" if parts & {"sampling", "permutation"} else "certified"
    reports = None if done.factorisation is None else tuple(c.report for c in done.factorisation.clients)
    guarantee = None if reports is None else approximation_guarantee(reports, training.loss, training.n_classes)
    return Valuation(
        clients=training.clients,
        values=values,
        estimator_errors=estimator_errors,
        completion_errors=done.completion_errors,
        error_kind=kind,
        per_round=per_round,
        per_round_errors=errors,
        method="+".join(part for part in ("closed-form", "exact", "permutation", "sampling") if part in parts),
        mode="synchronous" if training.is_synchronous else "asynchronous",
        loss=training.loss.name,
        n_rounds=training.n_rounds,
        n_samples=done.n_samples,
        n_unseen=done.n_unseen,
        tolerance_met=keeps(settings.tolerance, values, estimator_errors) if settings.method == "auto" else None,
        completion=reports,
        guarantee=guarantee,
        head=training.transcript.head,
        settings=settings,
        seconds={**done.seconds, "total": seconds},
        factorisation=done.factorisation,
    )
