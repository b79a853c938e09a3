"""One valuation, its arguments checked: from a training to values of rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from verfedsv.errors import InputError
from verfedsv.losses import Floats
from verfedsv.settings import ValuationSettings
from verfedsv.shapley import Progress
from verfedsv.shapley.blocks import available_threads, split
from verfedsv.shapley.permutation import default_permutations
from verfedsv.valuation.completed import CompletionPlan, complete_players, completion_errors, value_completed
from verfedsv.valuation.error_sums import ErrorSums
from verfedsv.valuation.estimate import Plan
from verfedsv.valuation.replay import Replay, value_replayed
from verfedsv.valuation.result import Factorisation, Valuation
from verfedsv.valuation.stream import Budget, Rounds, Stream, chunk_size
from verfedsv.valuation.trainings import Training

MOST_PERMUTATIONS = 128
"""What "auto" lets samples draw in a round, on average. Where training makes no progress, values are small beside their
errors, and more would take hours to no avail."""


@dataclass(frozen=True, eq=False)
class Done:
    """What a job arrived at; errors are (players,), the server being the last."""

    rounds: Rounds
    error_sums: ErrorSums
    completion_errors: Floats
    rows: NDArray[np.intp]
    n_unseen: int
    factorisation: Factorisation | None
    replay: Replay | None
    seconds: dict[str, float]


@dataclass(frozen=True, eq=False)
class Job:
    """A training to value, and how.

    `since` is a valuation of its first rounds to go on from, `like` one of all of them that is repeated.
    """

    training: Training
    settings: ValuationSettings
    rows: NDArray[np.intp]
    progress: Progress
    executor: Executor | None
    since: Valuation | None
    like: Valuation | None

    @property
    def n_permutations(self) -> int:
        if self.settings.n_permutations is not None:
            return self.settings.n_permutations
        by_paper = default_permutations(len(self.training.clients))
        return min(by_paper, MOST_PERMUTATIONS) if self.settings.method == "auto" else by_paper

    def run(self) -> Done:
        """Value the training in the way that its transcript asks for."""
        return self._completed() if self.training.has_gaps else self._replayed()

    def _replayed(self) -> Done:
        """Value the embeddings as the server held them."""
        begin = time.perf_counter()
        n_players, n_rounds = len(self.training.clients) + 1, self.training.n_rounds
        rows = self.rows
        if self.training.is_synchronous:
            # Every batch holds the same samples: what is not in it was never uploaded.
            rows = np.intersect1d(rows, next(self.training.rounds()).samples[0])
            _refuse_none(rows)
        before, replay = Rounds.none(n_players), Replay.begin(self.training, rows, self.settings.tolerance)
        error_sums = ErrorSums.none(n_players)
        if self.since is not None:
            before = _rounds_of(self.since)
            error_sums = self.since.error_sums or ErrorSums.adding(before.errors.sum(axis=0))
            if self.since.replay is not None:
                replay = self.since.replay.copy()
            else:
                for row in self.since.per_round:
                    replay.budget.allow(row)
        n_before, n_known = len(before.values), replay.n_rounds
        stream = self._stream(len(rows), replay.budget, error_sums, n_before)
        new = value_replayed(
            self.training,
            rows,
            replay,
            n_before,
            stream,
            lambda done: self.progress(done - n_known, n_rounds - n_known),
        )
        n_unseen = len(self.rows) - int(replay.is_seen.sum())
        seconds = {"valuation": time.perf_counter() - begin}
        rounds = Rounds.joined([before, new])
        return Done(rounds, stream.error_sums, np.zeros(n_players), rows, n_unseen, None, replay, seconds)

    def _completed(self) -> Done:
        """Complete the embeddings of all clients, and value them."""
        begin = time.perf_counter()
        settings = self.settings
        reports = self.like.completion if self.like is not None else None
        plan = CompletionPlan.of(settings, self.executor, reports or ())
        known = None if self.since is None else self.since.factorisation
        n_clients = len(self.training.clients)
        n_chunks = len(split(len(self.rows), chunk_size(n_clients, self.training.n_classes)))
        # A completion takes about as long as all chunks.
        step = _Steps(self.progress, (n_clients + 1) * n_chunks)
        factorisation = complete_players(self.training, plan, known, self.executor, lambda: step(n_chunks))
        between = time.perf_counter()
        rows = self.rows[factorisation.is_seen[self.rows]]
        _refuse_none(rows)
        none = ErrorSums.none(n_clients + 1)
        stream = self._stream(len(rows), Budget(settings.tolerance), none, step=lambda: step(1))
        rounds = value_completed(self.training, rows, factorisation, stream)
        step.finish()
        seconds = {"completion": between - begin, "valuation": time.perf_counter() - between}
        errors = completion_errors(self.training, rows, factorisation, rounds.values)
        n_unseen = len(self.rows) - len(rows)
        return Done(rounds, stream.error_sums, errors, rows, n_unseen, factorisation, None, seconds)

    def _stream(
        self,
        n_samples: int,
        budget: Budget,
        error_sums: ErrorSums,
        first_round: int = 0,
        step: Callable[[], None] = lambda: None,
    ) -> Stream:
        n_chunks = len(split(n_samples, chunk_size(len(self.training.clients), self.training.n_classes)))
        plan = Plan(self.settings.method, self.n_permutations, self.settings.seed, first_round, n_chunks, n_samples)
        return Stream(self.executor or available_threads(), plan, budget, error_sums, step)


def _rounds_of(valuation: Valuation) -> Rounds:
    """Return the rounds of an earlier valuation, with the server as the last player."""
    return Rounds(
        np.column_stack([valuation.per_round, valuation.per_round_server]),
        np.column_stack([valuation.per_round_errors, valuation.per_round_server_errors]),
        -np.diff(valuation.losses),
        set(valuation.methods),
    )


def _refuse_none(rows: NDArray[np.intp]) -> None:
    if len(rows) == 0:
        raise InputError("no client uploaded any of the selected rows")


class _Steps:
    """Counts steps and tells `progress`; refinement may take more of them than were foreseen."""

    def __init__(self, progress: Progress, n_steps: int) -> None:
        self._progress, self._done, self._n_steps = progress, 0, n_steps

    def __call__(self, n_steps: int) -> None:
        done = min(self._done + n_steps, self._n_steps - 1)
        if done > self._done:
            self._done = done
            self._progress(done, self._n_steps)

    def finish(self) -> None:
        self._progress(self._n_steps, self._n_steps)
