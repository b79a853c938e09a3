"""Synchronous training: embeddings that were never uploaded are completed by low-rank factors."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedsv.completion import Completion, CompletionReport
from verfedsv.completion.complete import REGULARIZATIONS, complete_with
from verfedsv.completion.factors import CompiledSolver
from verfedsv.completion.observations import Pattern
from verfedsv.losses import Array, Floats, Loss
from verfedsv.settings import ValuationSettings
from verfedsv.shapley.blocks import available_threads, ordered_map
from verfedsv.valuation.chunks import Change, Columns, Round
from verfedsv.valuation.replay import RoundSegment, of_rows, segments
from verfedsv.valuation.result import Factorisation
from verfedsv.valuation.trainings import RecordedTraining, Uploads

TOLERANCE, MAX_SWEEPS = 1e-3, 100

SAFETY = 3.0
"""What the estimated error of completion is multiplied by: without it, true errors were up to 2.6 times as large on
Adult, Web and Covtype, and up to 0.7 times on small artificial trainings."""

HOPELESS = 0.95
"""A held-out error of that part of the embeddings, and more, says nothing of the values but that they are wrong."""


@dataclass(frozen=True)
class CompletionPlan:
    """How to complete: as the arguments of `complete`. `like` are reports of all clients on an earlier completion."""

    rank: int | Literal["auto"]
    regularization: float | Literal["auto"]
    seed: int
    n_threads: int
    like: tuple[CompletionReport, ...]

    @classmethod
    def of(
        cls, settings: ValuationSettings, executor: Executor | None, like: tuple[CompletionReport, ...]
    ) -> CompletionPlan:
        """Return a plan whose completions use all threads, unless several run at a time on an executor."""
        n_threads = available_threads() if executor is None else 1
        return cls(settings.rank, settings.regularization, settings.seed, n_threads, like)


def complete_players(
    training: RecordedTraining,
    uploads: Uploads,
    plan: CompletionPlan,
    earlier: Factorisation | None,
    executor: Executor | None,
    step: Callable[[], None],
) -> Factorisation:
    """Return the completed embeddings of each client, and of the server's own part, of which some are missing.

    Each is completed from its own rounds and its own samples. `earlier` is of the first of these rounds, to start from.
    Without an executor the players are completed one after the other, each by all threads, so that only one player's
    uploads are in memory.
    """
    players = [player for player, has_gaps in enumerate(uploads.has_gaps) if has_gaps]

    def tasks() -> Iterator[_Task]:
        known, pattern = None, None
        for player in players:
            changes = uploads.by_player[player]
            if known is None or pattern is None or not _has_same_samples(known, changes):
                known, pattern = changes, Pattern.from_batches(_samples(changes), training.n_samples)
            values = pattern.sort([change.values for change in changes.values()], training.n_classes)
            like = plan.like[player] if player < len(plan.like) else None
            yield _Task(pattern, values, earlier.start_of(player) if earlier else None, like)

    fitted = ordered_map(partial(_complete_one, plan=plan), tasks(), executor or 1)
    completions, reports = dict[int, Completion](), list[CompletionReport]()
    for player, changes in enumerate(uploads.by_player):
        if uploads.has_gaps[player]:
            completions[player] = next(fitted)
        elif player == len(training.clients) and not _samples(changes):
            completions[player] = _intercept(changes, training.n_samples)
        reports.append(completions[player].report if player in completions else _report_uploaded(changes, training))
        step()
    return Factorisation(completions, tuple(reports[: len(training.clients)]))


class _Task(NamedTuple):
    """What one player uploaded, (observations, classes), and a completion of the first of its rounds to start from.

    `like` is the report of an earlier completion that is repeated.
    """

    pattern: Pattern
    values: Array
    start: Completion | None
    like: CompletionReport | None


def _complete_one(task: _Task, plan: CompletionPlan) -> Completion:
    pattern, values, start, like = task
    solver = CompiledSolver(pattern, values, REGULARIZATIONS[0], TOLERANCE, MAX_SWEEPS, plan.n_threads)
    return complete_with(
        solver, pattern, values.shape[1], plan.rank, plan.regularization, start or "spectral", plan.seed, like
    )


def _samples(changes: Mapping[int, Change]) -> list[Array]:
    return [change.samples for change in changes.values() if change.samples is not None]


def _has_same_samples(some: Mapping[int, Change], others: Mapping[int, Change]) -> bool:
    return list(some) == list(others) and all(map(np.array_equal, _samples(some), _samples(others)))


def _intercept(changes: Mapping[int, Change], n_samples: int) -> Completion:
    """Return the server's own part where it is the same for all samples of a round: nothing of it is missing."""
    weights = np.array([change.values for change in changes.values()])
    return Completion(weights, np.ones((n_samples, 1)), CompletionReport.of_uploads(0, 0))


def _report_uploaded(changes: Mapping[int, Change], training: RecordedTraining) -> CompletionReport:
    """Return the report of a client all of whose uploads have the same samples."""
    sizes = [len(samples) for samples in _samples(changes)]
    return CompletionReport.of_uploads(sum(sizes), training.n_samples - max(sizes, default=0))


def completed_segments(
    training: RecordedTraining, rows: NDArray[np.intp], uploads: Uploads, factorisation: Factorisation
) -> Iterator[RoundSegment]:
    """Yield all rounds, with completed embeddings in place of uploads wherever some are missing."""
    completions = factorisation.completions

    def columns(part: slice) -> Columns:
        return {player: np.ascontiguousarray(c.samples[rows[part]].T) for player, c in completions.items()}

    rounds = of_rows(_completed_rounds(uploads, completions), rows, training.n_samples)
    table = np.zeros((len(uploads.by_player), len(rows), training.n_classes))
    before = None
    for segment in segments(training, rows, rounds, table, columns):
        if before is not None:  # most often there is only one, and the table stays untouched
            before.advance()
        yield segment
        before = segment


def _completed_rounds(uploads: Uploads, completions: Mapping[int, Completion]) -> Iterator[Round]:
    # Copies, as compiled loops would be compiled once more for arrays that are read-only.
    own_rounds = {player: iter(completion.rounds.copy()) for player, completion in completions.items()}
    for changes in uploads.rounds:
        yield [Change(c.player, None, next(own_rounds[c.player])) if c.player in own_rounds else c for c in changes]


def completion_errors(
    training: RecordedTraining, rows: NDArray[np.intp], factorisation: Factorisation, per_round: Floats
) -> Floats:
    """Return an estimate of what completion changes in the values, (players,); NaN where there is none.

    Both parts of it are fractions of the mean size of the player's values in single rounds, whichever sign they have.
    With r the part of a player's own embeddings that completion misses, by root mean squares of what was held out, the
    first is three times r / (1 - r). The second is what the missed embeddings of all others do to the gradient that the
    player's changes are multiplied by: they move it by at most the loss's smoothness times their size, and not by more
    than it can vary at all; that is taken relative to its root mean square at the start, when most is learnt.
    """
    missed, squares = np.zeros((2, per_round.shape[1]))
    for player, completion in factorisation.completions.items():
        report = completion.report
        if report.held_out_size:
            missed[player] = report.held_out_rmse / report.held_out_size
            squares[player] = report.held_out_rmse**2
        elif report.n_held_out and completion.rounds.any():
            missed[player] = np.nan  # all that was held out is zero, as before the first step: that shows nothing
    missed[missed >= HOPELESS] = np.nan
    of_others = np.sqrt(training.n_classes * (squares.sum() - squares))
    loss = training.loss
    moved = np.minimum(loss.smoothness * of_others, loss.gradient_range)
    gradient = loss.gradient(np.zeros((len(rows), training.n_classes)), training.labels[rows])
    size = math.sqrt(float(np.square(gradient).sum()) / len(rows)) or 1.0
    result: Floats = (SAFETY * missed / (1 - missed) + moved / size) * np.abs(per_round).mean(axis=0)
    return result


def approximation_guarantee(reports: Sequence[CompletionReport], loss: Loss, n_classes: int) -> float | None:
    """Return Proposition 2 of the paper, 2 G M eps, from the largest held-out errors; None if it says nothing.

    M eps is the sum over clients of the largest error of any embedding, whose norm over classes is at most sqrt(C)
    times as large. The proposition has 2 G eps; its proof gives the factor M. An estimate: held-out embeddings are a
    sample of all.
    """
    total = sum(report.held_out_largest for report in reports)
    guarantee = 2 * loss.lipschitz * math.sqrt(n_classes) * total
    completed = [report for report in reports if report.rank]
    is_measured = len(completed) > 0 and all(report.n_held_out > 0 for report in completed)
    return guarantee if is_measured and math.isfinite(guarantee) else None
