"""How far completion may move the values: an estimate of our own, and the paper's Proposition 2."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from verfedsv.completion import Completion, CompletionReport
from verfedsv.completion.expected import MAX_SAMPLES
from verfedsv.completion.observations import spread_evenly
from verfedsv.losses import Floats, Loss
from verfedsv.valuation.chunks import Columns, apply
from verfedsv.valuation.completed import completed_rounds, factors_of
from verfedsv.valuation.result import FEWEST_HELD_OUT, HOPELESS, Factorisation, missed_fraction
from verfedsv.valuation.trainings import RecordedTraining, Uploads

SAFETY = 3.0
"""A factor on the first part of the estimate: without it, true errors were up to 2.6 times as large on Adult, Web and
Covtype, and up to 1.9 times in small random trainings."""


def completion_errors(
    training: RecordedTraining,
    rows: NDArray[np.intp],
    uploads: Uploads,
    factorisation: Factorisation,
    per_round: Floats,
) -> Floats:
    """Return an estimate of how far completion moves the values, (players,); NaN where it is unknown.

    The estimate has two parts. With r the fraction of a player's own embeddings that completion misses, the first is
    `SAFETY` r / (1 - r) times the mean absolute value of the player over rounds. The second is due to the missed
    embeddings of all others, which move the gradient that the player's changes are multiplied by: at most by the loss's
    smoothness times their size, and never by more than the range of the gradient. The values of a round move by the
    same fraction as the gradient does. Where values of samples cancel, they move at least as independent errors would:
    by the change of the player's embeddings times that of the gradient, over the root of the number of samples.
    """
    missed, squares = np.zeros((2, per_round.shape[1]))
    for player, completion in factorisation.completions.items():
        missed[player], squares[player] = _missed(completion)
    missed[missed >= HOPELESS] = np.nan
    of_others = np.sqrt(training.n_classes * (squares.sum() - squares))
    moved = np.minimum(training.loss.smoothness * of_others, training.loss.gradient_range)
    changes, gradients = _changes(training, rows, uploads, factorisation, per_round.shape)
    sizes = np.abs(per_round)
    by_gradient = np.maximum(sizes / gradients[:, np.newaxis], changes / math.sqrt(len(rows)))
    result: Floats = SAFETY * missed / (1 - missed) * sizes.mean(axis=0) + moved * by_gradient.mean(axis=0)
    return result


def _missed(completion: Completion) -> tuple[float, float]:
    """Return the fraction of the embeddings that is missed, by root mean squares, and the mean squared error.

    Both are the larger of what was measured on held-out uploads and what is expected of all embeddings. They are NaN if
    too few uploads were held out, or all of these are zero, as before the first step.
    """
    report = completion.report
    if not report.rank or not (report.held_out_size or completion.rounds.any()):
        return 0.0, 0.0
    if report.n_held_out < FEWEST_HELD_OUT or not report.held_out_size:
        return np.nan, np.nan
    return missed_fraction(report), max(report.held_out_rmse, report.expected_rmse) ** 2


def _changes(
    training: RecordedTraining,
    rows: NDArray[np.intp],
    uploads: Uploads,
    factorisation: Factorisation,
    shape: tuple[int, ...],
) -> tuple[Floats, Floats]:
    """Return how much each player's embeddings change in each round, (rounds, players), and its gradients, (rounds,).

    Both are root mean squares over samples of norms over classes; gradients are those before the round.
    """
    some = spread_evenly(rows, MAX_SAMPLES)
    columns, labels = Columns.of(factors_of(factorisation, some)), training.labels[some]
    table = np.zeros((shape[1], len(some), training.n_classes))
    changes, gradients = np.zeros(shape), np.zeros(shape[0])
    for t, moves in enumerate(completed_rounds(training, some, uploads, factorisation)):
        gradient = training.loss.gradient(table.sum(axis=0), labels)
        gradients[t] = math.sqrt(np.square(gradient).sum() / len(some)) or 1.0
        before = table.copy()
        apply(table, moves, columns)
        changes[t] = np.sqrt(np.square(table - before).sum(axis=(1, 2)) / len(some))
    return changes, gradients


def approximation_guarantee(reports: Sequence[CompletionReport], loss: Loss, n_classes: int) -> float | None:
    """Return the bound of the paper's Proposition 2, 2 G M eps, from held-out errors; None if these were not measured.

    M eps is the sum over clients of the largest error of any embedding, whose norm over classes is at most sqrt(C)
    times as large. The proposition states 2 G eps, but its proof drops the factor M. The result is an estimate, as
    the held-out embeddings are a sample.
    """
    total = sum(report.held_out_largest for report in reports)
    guarantee = 2 * loss.lipschitz * math.sqrt(n_classes) * total
    completed = [report for report in reports if report.rank]
    is_measured = len(completed) > 0 and all(report.n_held_out > 0 for report in completed)
    return guarantee if is_measured and math.isfinite(guarantee) else None
