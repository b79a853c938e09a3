"""How far completion may move the values: an estimate of our own, and the paper's Proposition 2."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.completion import Completion, CompletionReport
from verfedsv.losses import Loss
from verfedsv.valuation.chunks import Chunk, Columns, State, apply
from verfedsv.valuation.result import FEWEST_HELD_OUT, HOPELESS, Factorisation, missed_fraction
from verfedsv.valuation.trainings import RecordedTraining

if TYPE_CHECKING:
    from verfedsv.heads import HeadMove
    from verfedsv.valuation.heads import TrainedHead

SAFETY = 3.0
"""A factor on the first part of the estimate: without it, true errors were up to 2.6 times as large on Adult, Web and
Covtype, and up to 1.9 times in small random trainings."""


NEAR_ZERO = 0.1
"""Embeddings whose size in the first round is below this fraction of their size in all rounds start near zero."""


def completion_errors(
    training: RecordedTraining, some: Chunk, n_rows: int, factorisation: Factorisation, per_round: Floats
) -> Floats:
    """Return an estimate of how far completion moves the values, (players,); NaN where it is unknown.

    `some` of the `n_rows` rows are looked at, in all rounds: those of `spread_evenly(rows, MAX_SAMPLES)`.

    The estimate has two parts. With r the fraction of a player's own embeddings that completion misses, the first is
    `SAFETY` r / (1 - r) times the mean absolute value of the player over rounds. The second is due to the missed
    embeddings of all others, which move the gradient that the player's changes are multiplied by: at most by the loss's
    smoothness times their size, and never by more than the range of the gradient. The values of a round move by the
    same fraction as the gradient does. Where values of samples cancel, they move at least as independent errors would:
    by the change of the player's embeddings times that of the gradient, over the root of the number of samples.
    """
    missed, squares = np.zeros((2, per_round.shape[1]))
    for player, completion in factorisation.completions.items():
        missed[player], squares[player] = _missed(completion, some.factors[player])
    missed[missed >= HOPELESS] = np.nan
    sensitivity = _of_sum if training.head is None else _of_head
    changes, gradients, moved = sensitivity(training, some, squares, per_round.shape)
    sizes = np.abs(per_round)
    by_gradient = np.maximum(sizes / gradients, changes / math.sqrt(n_rows))
    own = SAFETY * missed / (1 - missed) * sizes.mean(axis=0)
    return np.asarray(own + (moved * by_gradient).mean(axis=0))


def _missed(completion: Completion, samples: Floats) -> tuple[float, float]:
    """Return the fraction of the embeddings that is missed, by root mean squares, and the mean squared error.

    Both are the larger of what was measured on held-out uploads and what is expected of all embeddings. They are NaN if
    too few uploads were held out, or all of these are zero, as before the first step. Of embeddings that do not start
    near zero, as of models with random weights, only the movement since the first round counts: values are of changes.
    """
    report = completion.report
    if not report.rank or not (report.held_out_size or completion.rounds.any()):
        return 0.0, 0.0
    if report.n_held_out < FEWEST_HELD_OUT or not report.held_out_size:
        return np.nan, np.nan
    missed, error = missed_fraction(report), max(report.held_out_rmse, report.expected_rmse)
    first, moved = (
        _rms(samples, weights) for weights in (completion.rounds[:1], completion.rounds - completion.rounds[0])
    )
    if first > NEAR_ZERO * _rms(samples, completion.rounds):
        missed = max(missed, error / moved if moved > 0 else np.inf)
    return missed, error**2


def _rms(samples: Floats, rounds: Floats) -> float:
    """Return the root mean square of completed embeddings."""
    gram = samples.T @ samples
    return math.sqrt(
        max(0.0, float(np.einsum("twr,rs,tws->", rounds, gram, rounds))) / (rounds[..., 0].size * len(samples))
    )


Sensitivity = tuple[Floats, Floats, Floats]
"""By round and player, (rounds, players) or what broadcasts to that, root mean squares over samples of norms: how much
the player's embeddings change, the gradient that this is multiplied by, and how far missed embeddings move that."""


def _of_sum(training: RecordedTraining, some: Chunk, squares: Floats, shape: tuple[int, ...]) -> Sensitivity:
    """Return the sensitivity under a sum, whose gradient is the same for all players, with the loss's constants.

    Gradients are those before the round.
    """
    of_others = np.sqrt(training.n_classes * (squares.sum() - squares))
    moved = np.minimum(training.loss.smoothness * of_others, training.loss.gradient_range)
    changes, gradients = np.zeros(shape), np.zeros((shape[0], 1))
    for t, (before, after, _) in enumerate(_replay(some)):
        gradient = training.loss.gradient(before.sum(axis=0), some.labels)
        gradients[t] = _size(gradient) or 1.0
        changes[t] = [_size(change) for change in after - before]
    return changes, gradients, moved[np.newaxis]


def _of_head(training: RecordedTraining, some: Chunk, squares: Floats, shape: tuple[int, ...]) -> Sensitivity:
    """Return the sensitivity under a head, of which no constants are known, by moving embeddings and looking.

    All are moved at once, by random numbers as large as what is missed, and by that fraction towards zero. For the
    server, whose change multiplies nothing, the gradient is what it changes in the loss of each sample.
    """
    head, loss = training.head, training.loss
    if head is None:
        raise AssertionError("the training has a head")
    labels, rng = some.labels, np.random.default_rng(0)
    deviation = np.sqrt(np.nan_to_num(squares))[head.columns]  # a column of nobody is zero
    changes, gradients, moved = np.zeros(shape), np.zeros(shape), np.zeros(shape)
    state = training.first_state
    for t, (before, after, following) in enumerate(_replay(some)):
        move, state = head.move(state, following), following
        x = head.joined(before[:-1])
        sizes = np.sqrt(np.square(x).mean(axis=0))
        shrunk = x * (1 - np.minimum(1.0, deviation / np.where(sizes > 0, sizes, 1.0)))
        here, *elsewhere = (
            _gradients(head, move, each, labels, loss)
            for each in (x, x + deviation * rng.standard_normal(x.shape), shrunk)
        )
        for player in range(shape[1]):
            own = np.flatnonzero(head.columns == player) if player < shape[1] - 1 else [len(head.columns)]
            gradients[t, player] = _size(here[:, own]) or 1.0
            moved[t, player] = SAFETY * max(_size((other - here)[:, own]) for other in elsewhere)
            changes[t, player] = _size(after[player] - before[player]) if player < shape[1] - 1 else 1.0
    known = np.isfinite(squares)
    return changes, gradients, np.where(known.all(), moved, np.nan)


def _gradients(head: TrainedHead, move: HeadMove, x: Floats, labels: Array, loss: Loss) -> Floats:
    """Return the gradient of the loss by the columns, and last what the server changes, (samples, columns + 1)."""
    scores, gradient = head.function.differentiate(move.previous, x, lambda scores: loss.gradient(scores, labels))
    change = np.zeros(len(x))
    if move.is_move:
        change = loss.value(scores, labels) - loss.value(head.function.scores(move.current, x), labels)
    return np.column_stack([gradient, change])


def _size(vectors: Floats) -> float:
    """Return the root mean square of the norms of some rows."""
    return math.sqrt(np.square(vectors).sum() / len(vectors))


def _replay(some: Chunk) -> Iterator[tuple[Floats, Floats, State]]:
    """Yield the tables before and after each round, and the state of the head after it."""
    columns, table = Columns.of(some.factors), some.table.copy()
    for moves, state in some.rounds:
        before = table.copy()
        apply(table, moves, columns)
        yield before, table, state


def approximation_guarantee(reports: Sequence[CompletionReport], training: RecordedTraining) -> float | None:
    """Return the bound of the paper's Proposition 2, 2 G M eps, from held-out errors; None if these were not measured.

    It holds for sums; under another head, G is unknown, and the result None.

    M eps is the sum over clients of the largest error of any embedding, whose norm over classes is at most sqrt(C)
    times as large. The proposition states 2 G eps, but its proof drops the factor M. The result is an estimate, as
    the held-out embeddings are a sample.
    """
    total = sum(report.held_out_largest for report in reports)
    guarantee = 2 * training.loss.lipschitz * math.sqrt(training.n_classes) * total
    completed = [report for report in reports if report.rank]
    is_measured = training.head is None and len(completed) > 0 and all(report.n_held_out > 0 for report in completed)
    return guarantee if is_measured and math.isfinite(guarantee) else None
