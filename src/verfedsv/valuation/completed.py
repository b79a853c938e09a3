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
from verfedsv.completion.complete import complete_with
from verfedsv.completion.factors import CompiledSolver, Factors
from verfedsv.completion.observations import Pattern
from verfedsv.losses import Array, Floats, Loss
from verfedsv.shapley.blocks import available_threads, ordered_map, split
from verfedsv.valuation.chunks import FactorChunk
from verfedsv.valuation.result import Factorisation
from verfedsv.valuation.stream import Rounds, Stream, chunk_size
from verfedsv.valuation.trainings import Batches, Training

TOLERANCE, MAX_SWEEPS = 1e-3, 100


@dataclass(frozen=True)
class CompletionPlan:
    """How to complete: as the arguments of `complete`."""

    rank: int | Literal["auto"]
    regularization: float
    seed: int
    n_threads: int


def complete_clients(
    training: Training,
    plan: CompletionPlan,
    known: Factorisation | None,
    executor: Executor | None,
    step: Callable[[], None],
) -> tuple[Pattern, Factorisation, Floats | None]:
    """Return the completed embeddings of all clients, and the server's own part where it is the same for all samples.

    `known` is that of the first of these rounds, to start from. Without an executor the clients are completed one after
    the other, each by all threads, so that only one client's uploads are in memory.
    """
    batches = Batches.of(training)
    pattern = Pattern.from_batches(batches.samples, training.n_samples)
    intercept = None if batches.offsets is None else _intercept(batches.offsets)
    uploads = [*batches.embeddings]
    if batches.offsets is not None and intercept is None:
        uploads.append(batches.offsets)

    def tasks() -> Iterator[tuple[Array, Completion | None, Factors | None]]:
        for m, of_client in enumerate(uploads):
            start, half = None, None
            if known is not None:
                start = known.clients[m] if m < len(known.clients) else known.offset
                half = known.halves[m] if m < len(known.halves) else None
            yield pattern.sort(of_client, training.n_classes), start, half

    results = []
    for result in ordered_map(partial(_complete_one, pattern=pattern, plan=plan), tasks(), executor or 1):
        results.append(result)
        step()
    n_clients = len(training.clients)
    factorisation = Factorisation(
        clients=tuple(completion for completion, _ in results[:n_clients]),
        halves=tuple(half for _, half in results),
        offset=results[n_clients][0] if len(results) > n_clients else None,
    )
    return pattern, factorisation, intercept


def _complete_one(
    task: tuple[Array, Completion | None, Factors | None], pattern: Pattern, plan: CompletionPlan
) -> tuple[Completion, Factors]:
    """Return the completion of one client, and factors of the same rank fitted to half of its uploads."""
    values, start, half = task
    solver = CompiledSolver(pattern, values, plan.regularization, TOLERANCE, MAX_SWEEPS, plan.n_threads)
    completion = complete_with(
        solver, pattern, values.shape[1], plan.rank, plan.regularization, start or "spectral", plan.seed
    )
    is_left_out = pattern.hold_out(0.5, plan.seed + 1)
    rounds = solver.start(is_left_out, completion.report.rank)
    if half is not None:
        n_before, _, rank = half.rounds.shape
        rounds[:n_before, :, :rank] = half.rounds
        rounds[n_before:, :, :rank] = half.rounds[-1:]
    return completion, solver.fit(rounds, is_left_out)


def _intercept(offsets: Sequence[Array]) -> Floats | None:
    """Return the server's own part, (rounds, 1, classes), if in each round it is the same for all samples."""
    if not all(len(own) and (own == own[0]).all() for own in offsets):
        return None
    return np.array([own[:1] for own in offsets], dtype=np.float64)


def value_completed(
    training: Training,
    rows: NDArray[np.intp],
    factors: Sequence[Factors],
    offset: Factors | Floats | None,
    stream: Stream,
) -> Rounds:
    """Return the values of all rounds, with embeddings from the factors of each client."""
    n_clients, n_classes = len(training.clients), training.n_classes
    labels = training.labels

    def chunks() -> Iterator[FactorChunk]:
        for number, part in enumerate(split(len(rows), chunk_size(n_clients, n_classes))):
            chosen = rows[part]
            own = Factors(offset.rounds, offset.samples[chosen]) if isinstance(offset, Factors) else offset
            of_chunk = [Factors(rounds, samples[chosen]) for rounds, samples in factors]
            yield FactorChunk(
                number, training.loss, labels[chosen], n_clients, training.n_rounds, n_classes, of_chunk, own
            )

    return stream.value(chunks, training.n_rounds, n_clients, len(rows))


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


def threads_inside(executor: Executor | None) -> int:
    """Return how many threads one completion may use: all, unless several run at a time on an executor."""
    return available_threads() if executor is None else 1
