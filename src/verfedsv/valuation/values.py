"""`value`: what each client contributed to a recorded training."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from verfedsv.arguments import as_progress
from verfedsv.errors import CompletionWarning, InputError, ToleranceWarning, warn
from verfedsv.gpu.devices import Device, takes_gpu
from verfedsv.losses import Loss, get_loss
from verfedsv.settings import ValuationSettings
from verfedsv.shapley import Method, Progress, Semivalue
from verfedsv.shapley.estimators import get_estimator
from verfedsv.shapley.semivalues import get_semivalue
from verfedsv.shapley.values import describe_remaining_error
from verfedsv.transcript import Recorder, Transcript
from verfedsv.valuation.backends import CompiledLoops, Gpu
from verfedsv.valuation.job import Job
from verfedsv.valuation.limits import Partitioning, as_partitioning
from verfedsv.valuation.result import Valuation, why_unknown
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
    head: Any = None,
    trust_head: bool = False,
    since: Valuation | None = None,
    like: Valuation | None = None,
    regularization: float | Literal["auto"] | None = None,
    tolerance: float | None = None,
    n_permutations: int | None = None,
    semivalue: str | Semivalue | None = None,
    memory: int | str | None = None,
    scratch: str | os.PathLike[str] | None = None,
    resume: bool = False,
    device: Device = "cpu",
) -> Valuation:
    """Return what each client contributed to a recorded training, with errors.

    Each round is a game whose value is the decrease of the loss in it; a client's value is the mean over rounds of its
    Shapley values. Embeddings are zero before a client's first upload, and do not change in rounds without one. In
    synchronous training, embeddings that a client did not upload in a round are completed (equation 2 of the paper),
    unless all of its uploads have the same samples. In asynchronous training nothing is completed: the embeddings are
    those that the server held. Hashes are not checked: `Transcript.open(run).verify()` does that.

    Options default to those agreed when the training was recorded (`Recorder(valuation=...)`), and these to "auto" for
    method, rank and regularization, a tolerance of 1e-3, seed 0, all rows and Shapley values.

    Args:
        run: the folder of a transcript or its URI in an object store ("s3://bucket/run"), a `Transcript`, or the
            `Recorder` that is writing it.
        method: how to value a round, as in `shapley_values`. "auto" uses the closed form, and enumerates or samples
            where its error would be too large.
        rank: the rank of completed embeddings, or "auto": chosen for each client on held-out uploads.
        seed: seeds all random choices: which uploads are held out, and permutations.
        rows: the samples to take the mean over: "all", "gradient" (those that receive gradients in training),
            "no-gradient" (the others), or a list of sample numbers.
        progress: called with the number of steps done and their total.
        executor: any `concurrent.futures.Executor`, such as that of a Dask client; by default a thread for each core.
            The result does not depend on it. Its workers read the transcript themselves.
        loss: the same loss again, if the training was recorded with one of your own.
        head: the torch module again, if the training was recorded with a head that is not made of common layers. A
            `Recorder` has it.
        trust_head: if the head was recorded as a program instead, load that, which may run any code of whoever
            recorded it.
        since: an earlier valuation of this training, which has grown since. In asynchronous training, only the new
            rounds are valued, with the same result as valuing all of them (and only they are read, unless `since` was
            read from a file). In synchronous training, completion starts from the earlier factors.
        like: a valuation of this transcript to be checked by repeating it. The same version on the same processor gives
            the same bits. Elsewhere rounding differs; choices of the completion that rounding could tip (rank, lambda,
            number of sweeps) are taken from `like`, and nothing else is.
        regularization: lambda of equation 2, or "auto": 0.1 as in the paper, less where that shrinks too much.
        tolerance: for "auto", the largest error of the estimator, relative to the largest value.
        n_permutations: for "permutation", the number per round, by default ceil(100 M ln M); for "auto", the most that
            a sample may draw in a round, on average, by default 128 (other semivalues: as for "permutation").
        device: "cuda" to compute the closed form of completed rounds on a GPU, with the extra `gpu`, or "auto": a GPU
            if there is one. Values are those of the processor to 1e-12; it also values what the closed form does not.
        semivalue: of each round, as in `shapley_values`: "shapley", "banzhaf", "leave-one-out", "beta(a, b)" or
            `Beta(a, b)`. Only Shapley values add up to the decrease of the loss.
        memory: the bytes that each process may take, a number or such as "4GB", for trainings larger than memory: they
            are cut into pieces on disk. By default everything is held in memory; on an executor, 1 GB.
        scratch: the folder for the pieces, as large as twice the uploads, which all workers see; by default `.valuing`
            in the folder of the transcript. What is kept there is removed at the end, and nothing else.
        resume: continue from the pieces, sweeps and sums that an interrupted valuation left in the scratch folder.

    >>> with Recorder(None, labels=[0, 1, 1, 0], clients=["bank", "telco"]) as recorder:
    ...     recorder.update("bank", [0, 1, 2, 3], [-1.0, 1.0, 1.0, -1.0], time=1)
    ...     recorder.update("telco", [0], [-0.5], time=2)
    ...     recorder.stamp(time=3)
    >>> value(recorder).shares.round(3)
    array([0.899, 0.101])
    """
    begin = time.perf_counter()
    own_loss = None if loss is None else get_loss(loss)
    module = run.own_head if head is None and isinstance(run, Recorder) else head
    training = RecordedTraining.of(_open(run), own_loss, module, trust_head=trust_head)
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
    options = {name: option for name, option in given.items() if option is not None}
    settings = replace(agreed, semivalue=kind, **options)  # type: ignore[arg-type]  # its name is stored
    _check(training, settings, kind, since, like)
    if executor is not None and not isinstance(executor, Executor):
        raise InputError(f"executor must be a concurrent.futures.Executor; received {executor!r}")
    told = as_progress(progress) or (lambda _done, _total: None)
    limits = as_partitioning(training.transcript, memory, scratch, executor, resume=resume, continues=since is not None)
    backend = _backend(device, limits)
    job = Job(training, settings, kind, chosen, told, executor, since, like, limits, backend)
    result = job.run()
    result = replace(result, seconds={**result.seconds, "total": time.perf_counter() - begin})
    _warn(result, job.n_permutations)
    return result


def _backend(device: Device, limits: Partitioning | None) -> CompiledLoops:
    """Return what values chunks; raise InputError if a GPU is asked for with what only processors can do."""
    on_gpu = takes_gpu(device)
    if on_gpu and limits is not None:
        if device == "cuda":
            raise InputError("device 'cuda' is for one process: leave out executor, memory, scratch and resume")
        return CompiledLoops()
    return Gpu() if on_gpu else CompiledLoops()


def _warn(result: Valuation, n_permutations: int) -> None:
    """Warn of errors that are larger than the tolerance, or unknown."""
    if result.tolerance_met is False:
        remains = describe_remaining_error(
            result.values, result.estimator_errors, result.error_kind, result.settings.tolerance, n_permutations
        )
        warn(remains, ToleranceWarning)
    if not np.isfinite(result.completion_errors).all():
        is_fixed = result.settings.rank != "auto"
        remedy = f"{'set rank to auto, ' if is_fixed else ''}record more rounds, or try a smaller regularization"
        warn(f"the error of completion cannot be estimated, because {why_unknown(result)}; {remedy}", CompletionWarning)


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
    """Raise InputError if the training cannot be valued like this, or an earlier valuation is of another training."""
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
        raise InputError(f"since was valued with other settings: {', '.join(since.settings.differences(settings))}")


def _describe(rows: str | ArrayLike, chosen: NDArray[np.intp]) -> str:
    """Return a short text that identifies the choice of samples."""
    if isinstance(rows, str):
        return rows
    return f"{len(chosen)} chosen ({hashlib.sha256(chosen.astype(np.int64).tobytes()).hexdigest()[:16]})"
