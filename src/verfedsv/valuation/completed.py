"""Synchronous training: embeddings that were never uploaded are completed by low-rank factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from verfedsv.completion import Completion, CompletionReport
from verfedsv.completion.complete import REGULARIZATIONS, complete_with
from verfedsv.completion.factors import CompiledSolver, Factors
from verfedsv.completion.observations import Pattern
from verfedsv.errors import InputError
from verfedsv.losses import Array, Floats, Loss
from verfedsv.shapley.blocks import available_threads, ordered_map, split
from verfedsv.shapley.game import LARGEST_EMBEDDING
from verfedsv.valuation.chunks import FactorChunk
from verfedsv.valuation.result import Factorisation
from verfedsv.valuation.stream import Rounds, Stream, chunk_size
from verfedsv.valuation.trainings import Batches, Training

TOLERANCE, MAX_SWEEPS = 1e-3, 100

SAFETY = 3.0
"""What the estimated error of completion is multiplied by: without it, true errors were up to 2.6 times as large on
Adult, Web and Covtype, and up to 0.7 times on small artificial trainings."""

HOPELESS = 0.95
"""A held-out error of that part of the embeddings, and more, says nothing of the values but that they are wrong."""


@dataclass(frozen=True)
class CompletionPlan:
    """How to complete: as the arguments of `complete`."""

    rank: int | Literal["auto"]
    regularization: float | Literal["auto"]
    seed: int
    n_threads: int

    @classmethod
    def of(
        cls, rank: int | Literal["auto"], regularization: float | Literal["auto"], seed: int, executor: Executor | None
    ) -> CompletionPlan:
        """Return a plan whose completions use all threads, unless several run at a time on an executor."""
        return cls(rank, regularization, seed, available_threads() if executor is None else 1)


def complete_clients(
    training: Training,
    plan: CompletionPlan,
    known: Factorisation | None,
    executor: Executor | None,
    step: Callable[[], None],
) -> tuple[Pattern, Factorisation]:
    """Return the completed embeddings of all clients, and of the server's own part if there is one.

    `known` is that of the first of these rounds, to start from. Without an executor the clients are completed one after
    the other, each by all threads, so that only one client's uploads are in memory.
    """
    batches = Batches.of(training)
    pattern = Pattern.from_batches(batches.samples, training.n_samples)
    uploads, starts = [*batches.embeddings], [*(known.clients if known else [None] * len(training.clients))]
    intercept = None if batches.offsets is None else _intercept(batches.offsets)
    if batches.offsets is not None and intercept is None:
        uploads.append(batches.offsets)
        starts.append(known.offset if known and isinstance(known.offset, Completion) else None)

    def tasks() -> Iterator[tuple[Array, Completion | None]]:
        for of_one, start in zip(uploads, starts, strict=True):
            values = pattern.sort(of_one, training.n_classes)
            if not max(float(values.max()), -float(values.min())) < LARGEST_EMBEDDING:
                raise InputError(f"embeddings must be below {LARGEST_EMBEDDING:g} in size; these are larger")
            yield values, start

    results = []
    for result in ordered_map(partial(_complete_one, pattern=pattern, plan=plan), tasks(), executor or 1):
        results.append(result)
        step()
    n_clients = len(training.clients)
    own = results[n_clients] if len(results) > n_clients else intercept
    return pattern, Factorisation(tuple(results[:n_clients]), own)


def _complete_one(task: tuple[Array, Completion | None], pattern: Pattern, plan: CompletionPlan) -> Completion:
    values, start = task
    solver = CompiledSolver(pattern, values, REGULARIZATIONS[0], TOLERANCE, MAX_SWEEPS, plan.n_threads)
    return complete_with(
        solver, pattern, values.shape[1], plan.rank, plan.regularization, start or "spectral", plan.seed
    )


def _intercept(offsets: Sequence[Array]) -> Floats | None:
    """Return the server's own part, (rounds, 1, classes), if in each round it is the same for all samples."""
    if not all((own == own[:1]).all() for own in offsets) or max(map(len, offsets)) == 1:
        return None  # of batches of one sample it cannot be told
    return np.array([own[:1] if len(own) else np.zeros((1, own.shape[1])) for own in offsets], dtype=np.float64)


def value_completed(training: Training, rows: NDArray[np.intp], factorisation: Factorisation, stream: Stream) -> Rounds:
    """Return the values of all rounds, with embeddings from the factors of each client."""
    n_clients, n_classes = len(training.clients), training.n_classes
    labels, offset = training.labels, factorisation.offset

    def chunks() -> Iterator[FactorChunk]:
        for number, part in enumerate(split(len(rows), chunk_size(n_clients, n_classes))):
            chosen = rows[part]
            yield FactorChunk(
                number,
                training.loss,
                labels[chosen],
                n_clients,
                training.n_rounds,
                n_classes,
                [_of_samples(completion, chosen) for completion in factorisation.clients],
                _of_samples(offset, chosen) if isinstance(offset, Completion) else offset,
            )

    return stream.value(chunks, training.n_rounds, n_clients, len(rows))


def _of_samples(completion: Completion, samples: NDArray[np.intp]) -> Factors:
    return Factors(completion.rounds, completion.samples[samples])


def completion_errors(factorisation: Factorisation, per_round: Floats) -> Floats:
    """Return an estimate of what completion changes in the values, (clients,); NaN where there is none.

    With r the part of a client's embeddings that completion misses, by root mean squares of what was held out, that is
    three times r / (1 - r) times the mean size of the client's values in single rounds, whichever sign they have. The
    server's own part counts for every client.
    """
    own = factorisation.offset
    missed_of_server = _missed(own.report) if isinstance(own, Completion) else 0.0
    missed = np.array([_missed(completion.report) + missed_of_server for completion in factorisation.clients])
    missed[missed >= HOPELESS] = np.nan
    result: Floats = SAFETY * missed / (1 - missed) * np.abs(per_round).mean(axis=0)
    return result


def _missed(report: CompletionReport) -> float:
    if report.held_out_size == 0:
        return 0.0
    return report.held_out_rmse / report.held_out_size


def approximation_guarantee(reports: Sequence[CompletionReport], loss: Loss, n_classes: int) -> float | None:
    """Return Proposition 2 of the paper, 2 G M eps, from the largest held-out errors; None if it says nothing.

    M eps is the sum over clients of the largest error of any embedding, whose norm over classes is at most sqrt(C)
    times as large. The proposition has 2 G eps; its proof gives the factor M. An estimate: held-out embeddings are a
    sample of all.
    """
    total = sum(report.held_out_largest for report in reports)
    guarantee = 2 * loss.lipschitz * math.sqrt(n_classes) * total
    is_measured = all(report.n_held_out > 0 for report in reports)
    return guarantee if is_measured and math.isfinite(guarantee) else None
