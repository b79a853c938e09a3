"""Synchronous training: embeddings that were never uploaded are completed by low-rank factors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array
from verfedsv.completion import Completion, CompletionReport
from verfedsv.completion.complete import HELD_OUT, REGULARIZATIONS, fit_with
from verfedsv.completion.factors import CompiledSolver
from verfedsv.completion.observations import Pattern
from verfedsv.completion.parts import Observations
from verfedsv.settings import ValuationSettings
from verfedsv.threads import available_threads, one_blas_thread, ordered_map
from verfedsv.valuation.chunks import Change, Round, SampleFactors, of_rows
from verfedsv.valuation.result import Factorisation
from verfedsv.valuation.trainings import RecordedTraining, Uploads, shared_samples

TOLERANCE, MAX_SWEEPS = 1e-3, 100


@dataclass(frozen=True)
class CompletionPlan:
    """The arguments of `complete`. `like` are the reports of an earlier completion to repeat, one for each client.

    `on_gpu` says whether sweeps are computed on a GPU.
    """

    rank: int | Literal["auto"]
    regularization: float | Literal["auto"]
    seed: int
    n_threads: int
    like: tuple[CompletionReport, ...]
    on_gpu: bool = False

    @classmethod
    def of(
        cls,
        settings: ValuationSettings,
        executor: Executor | None,
        like: tuple[CompletionReport, ...],
        *,
        on_gpu: bool = False,
    ) -> CompletionPlan:
        """Return the plan of a valuation: each completion has all threads, or one if several run on an executor."""
        n_threads = available_threads() if executor is None else 1
        return cls(settings.rank, settings.regularization, settings.seed, n_threads, like, on_gpu)


def complete_players(
    training: RecordedTraining,
    uploads: Uploads,
    plan: CompletionPlan,
    earlier: Factorisation | None,
    executor: Executor | None,
    step: Callable[[], None],
) -> Factorisation:
    """Return the completed embeddings of all clients, and of the server's own part, that have gaps.

    Each player is completed from its own rounds and samples, starting from `earlier`, a factorisation of the first
    rounds. Without an executor, players are completed one after the other, each by all threads, so that only one
    player's uploads are in memory.
    """
    players = [player for player, has_gaps in enumerate(uploads.has_gaps) if has_gaps]

    def tasks() -> Iterator[CompletionTask]:
        last, pattern = None, None
        for player in players:
            changes = uploads.by_player[player]
            if last is None or pattern is None or not _has_same_samples(last, changes):
                last, pattern = changes, Pattern.from_batches(_samples(changes), training.n_samples)
            width = training.width_of(player)
            values = pattern.sort([change.values for change in changes.values()], width, plan.n_threads)
            like = plan.like[player] if player < len(plan.like) else None
            yield CompletionTask(pattern, values, earlier.start_of(player) if earlier else None, like)

    fitted = ordered_map(partial(complete_one, plan=plan), tasks(), executor or 1)
    completions, reports = dict[int, Completion](), list[CompletionReport]()
    for player, changes in enumerate(uploads.by_player):
        if uploads.has_gaps[player]:
            completions[player] = next(fitted)
        elif player == len(training.clients) and not _samples(changes):
            completions[player] = _intercept(changes, training.n_samples)
        reports.append(completions[player].report if player in completions else _report_uploaded(changes, training))
        step()
    of_clients = zip(reports, _count_withheld(uploads), strict=False)  # the server's report comes last
    return Factorisation(completions, tuple(replace(report, n_withheld=n) for report, n in of_clients))


def _count_withheld(uploads: Uploads) -> list[int]:
    """Return the number of embeddings that each client did not upload although another client uploaded the sample.

    Only those that are completed count: in rounds in which the client took part, of samples that it ever uploaded.
    """
    is_seen = np.zeros((uploads.n_clients, uploads.n_samples), bool)
    for seen, own in zip(is_seen, uploads.by_player, strict=False):
        for samples in _samples(own):
            seen[samples] = True
    withheld = [0] * uploads.n_clients
    for changes, _ in uploads.rounds:
        of_clients = [change for change in changes if change.player < uploads.n_clients]
        if shared_samples(of_clients) is None:
            is_uploaded = np.zeros(uploads.n_samples, bool)
            for change in of_clients:
                is_uploaded[change.samples] = True
            for player, _, values in of_clients:
                withheld[player] += int((is_uploaded & is_seen[player]).sum()) - len(values)
    return withheld


class CompletionTask(NamedTuple):
    """The uploads of one player, (observations, classes), and a completion of its first rounds to start from.

    `like` is the report of a completion to repeat.
    """

    pattern: Pattern
    values: Array
    start: Completion | None
    like: CompletionReport | None


def complete_one(task: CompletionTask, plan: CompletionPlan) -> Completion:
    """Return the completed embeddings of one player."""
    pattern, values, start, like = task
    uploads = Observations.in_memory(pattern, values, HELD_OUT, plan.seed)
    own = uploads, REGULARIZATIONS[0], TOLERANCE, MAX_SWEEPS, plan.n_threads
    solver = _gpu_solver(own, pattern, values) if plan.on_gpu else CompiledSolver(*own)
    with one_blas_thread:
        fit, report = fit_with(solver, plan.rank, plan.regularization, start or "spectral", plan.seed, like)
        return Completion(fit.rounds, solver.solve(fit), report)


def _gpu_solver(arguments: tuple[Any, ...], pattern: Pattern, values: Array) -> CompiledSolver:
    from verfedsv.completion.gpu import GpuSolver  # which imports numba.cuda

    return GpuSolver(*arguments, pattern=pattern, values=values)


def _samples(changes: Mapping[int, Change]) -> list[Array]:
    return [change.samples for change in changes.values() if change.samples is not None]


def _has_same_samples(some: Mapping[int, Change], others: Mapping[int, Change]) -> bool:
    return list(some) == list(others) and all(map(np.array_equal, _samples(some), _samples(others)))


def _intercept(changes: Mapping[int, Change], n_samples: int) -> Completion:
    """Return the server's own part if it is the same for all samples of a round: nothing of it is missing."""
    weights = np.array([change.values for change in changes.values()])
    return Completion(weights, np.ones((n_samples, 1)), CompletionReport.of_uploads(0, 0))


def _report_uploaded(changes: Mapping[int, Change], training: RecordedTraining) -> CompletionReport:
    """Return the report of a client whose uploads all have the same samples."""
    sizes = [len(samples) for samples in _samples(changes)]
    return CompletionReport.of_uploads(sum(sizes), training.n_samples - max(sizes, default=0))


def factors_of(factorisation: Factorisation, rows: NDArray[np.intp]) -> SampleFactors:
    """Return the factors of some samples that the changes of `completed_rounds` are multiplied by."""
    completions = factorisation.completions
    # All rows are sorted, and need no copy.
    return {p: c.samples if len(rows) == len(c.samples) else c.samples[rows] for p, c in completions.items()}


def completed_rounds(
    training: RecordedTraining, rows: NDArray[np.intp], uploads: Uploads, factorisation: Factorisation
) -> Iterator[Round]:
    """Yield the changes of some samples in all rounds, completed for players with gaps."""
    # Copies: compiled loops would be compiled once more for read-only arrays.
    own_rounds = {player: iter(c.rounds.copy()) for player, c in factorisation.completions.items()}

    def completed(change: Change) -> Change:
        player = change.player
        return Change(player, None, next(own_rounds[player])) if player in own_rounds else change

    rounds = (Round(list(map(completed, changes)), state) for changes, state in uploads.rounds)
    return of_rows(rounds, rows, training.n_samples)
