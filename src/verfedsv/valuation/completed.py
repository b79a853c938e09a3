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
from verfedsv.completion.factors import CompiledSolver, Factors
from verfedsv.completion.observations import Pattern
from verfedsv.losses import Array, Floats, Loss
from verfedsv.settings import ValuationSettings
from verfedsv.shapley.blocks import available_threads, ordered_map
from verfedsv.valuation.chunks import FactorChunk
from verfedsv.valuation.result import Factorisation
from verfedsv.valuation.trainings import Batches, Training

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
    training: Training,
    plan: CompletionPlan,
    known: Factorisation | None,
    executor: Executor | None,
    step: Callable[[], None],
) -> Factorisation:
    """Return the completed embeddings of all clients, and of the server's own part if there is one.

    Each player is completed from the rounds in which it took part. `known` is of the first of these rounds, to start
    from. Without an executor the players are completed one after the other, each by all threads, so that only one
    player's uploads are in memory.
    """
    batches, n_samples = Batches.of(training), training.n_samples
    exact = {player: _without_fit(training, uploads, player) for player, uploads in enumerate(batches.uploads)}

    def tasks() -> Iterator[_Task]:
        rounds, pattern = None, None
        for player, uploads in enumerate(batches.uploads):
            if exact[player] is not None:
                continue
            if pattern is None or list(uploads) != rounds:  # most often all players took part in all rounds
                rounds = list(uploads)
                pattern = Pattern.from_batches([batches.samples[t] for t in rounds], n_samples)
            values = pattern.sort(list(uploads.values()), training.n_classes)
            like = plan.like[player] if player < len(plan.like) else None
            yield _Task(pattern, values, known.start_of(player) if known else None, like)

    fitted = ordered_map(partial(_complete_one, plan=plan), tasks(), executor or 1)
    completions = []
    for player in range(len(batches.uploads)):
        completions.append(exact[player] or next(fitted))
        step()
    is_seen = np.zeros(n_samples, bool)
    for batch in batches.samples:
        is_seen[batch] = True
    so_far = [_count_rounds(uploads, training.n_rounds) for uploads in batches.uploads]
    return Factorisation(tuple(completions), tuple(so_far), len(training.clients), is_seen)


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


def _without_fit(training: Training, uploads: Mapping[int, Array], player: int) -> Completion | None:
    """Return the embeddings of a player for whom there is nothing to fit, or None.

    That is a client that took part in no round, and a server whose own part is the same for all samples of a round.
    """
    n_rounds, n_samples, n_classes = len(uploads), training.n_samples, training.n_classes
    is_server = player == len(training.clients)
    is_intercept = is_server and all((own == own[:1]).all() for own in uploads.values())
    if n_rounds and (not is_intercept or max(map(len, uploads.values())) == 1):  # one sample shows no intercept
        return None
    rounds = [own[0] if len(own) else np.zeros(n_classes) for own in uploads.values()]
    factors = np.array(rounds, np.float64).reshape(n_rounds, n_classes, 1)
    report = CompletionReport(
        rank=1,
        regularization=0.0,
        train_rmse=0.0,
        train_largest=0.0,
        held_out_rmse=0.0,
        held_out_largest=0.0,
        held_out_size=0.0,
        n_observations=sum(map(len, uploads.values())),
        n_held_out=0,
        n_unseen=0,
        n_sweeps=0,
        fit_sweeps=(0, 0),
    )
    return Completion(factors, np.ones((n_samples, 1)), report)


def _count_rounds(uploads: Mapping[int, Array], n_rounds: int) -> NDArray[np.intp]:
    """Return in how many rounds a player had taken part by the end of each round, (rounds,)."""
    took_part = np.zeros(n_rounds, np.intp)
    took_part[list(uploads)] = 1
    return np.cumsum(took_part)


@dataclass(frozen=True, eq=False)
class FactorSource:
    """Chunks of embeddings from low-rank factors: of each player the rounds, and the samples of the whole training."""

    loss: Loss
    labels: Array
    rows: NDArray[np.intp]
    n_clients: int
    n_rounds: int
    n_classes: int
    factors: Sequence[Factors]

    @property
    def n_samples(self) -> int:
        return len(self.rows)

    def chunk(self, part: slice, index: int) -> FactorChunk:
        """Return some of the rows in all rounds."""
        chosen = self.rows[part]
        factors = [Factors(rounds, samples[chosen]) for rounds, samples in self.factors]
        labels = self.labels[chosen]
        return FactorChunk(index, self.loss, labels, self.n_clients, self.n_rounds, self.n_classes, factors)


def completed_source(training: Training, rows: NDArray[np.intp], factorisation: Factorisation) -> FactorSource:
    """Return the chunks of completed embeddings."""
    factors = [
        Factors(rounds, completion.samples)
        for rounds, completion in zip(factorisation.all_rounds(), factorisation.players, strict=True)
    ]
    shape = len(training.clients), training.n_rounds, training.n_classes
    return FactorSource(training.loss, training.labels, rows, *shape, factors)


def completion_errors(
    training: Training, rows: NDArray[np.intp], factorisation: Factorisation, per_round: Floats
) -> Floats:
    """Return an estimate of what completion changes in the values, (players,); NaN where there is none.

    Both parts of it are fractions of the mean size of the player's values in single rounds, whichever sign they have.
    With r the part of a player's own embeddings that completion misses, by root mean squares of what was held out, the
    first is three times r / (1 - r). The second is what the missed embeddings of all others do to the gradient that the
    player's changes are multiplied by: they move it by at most the loss's smoothness times their size, and not by more
    than it can vary at all; that is taken relative to its root mean square at the start, when most is learnt.
    """
    reports = [completion.report for completion in factorisation.players]
    missed, squares = np.zeros((2, per_round.shape[1]))
    missed[: len(reports)] = [_missed(report) for report in reports]
    squares[: len(reports)] = [report.held_out_rmse**2 if report.held_out_size else 0.0 for report in reports]
    missed[missed >= HOPELESS] = np.nan
    of_others = np.sqrt(training.n_classes * (squares.sum() - squares))
    loss = training.loss
    moved = np.minimum(loss.smoothness * of_others, loss.gradient_range)
    gradient = loss.gradient(np.zeros((len(rows), training.n_classes)), training.labels[rows])
    size = math.sqrt(float(np.square(gradient).sum()) / len(rows)) or 1.0
    result: Floats = (SAFETY * missed / (1 - missed) + moved / size) * np.abs(per_round).mean(axis=0)
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
