"""One valuation, its arguments checked: from a training to values of rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from verfedsv.errors import InputError
from verfedsv.losses import Floats
from verfedsv.settings import ValuationSettings
from verfedsv.shapley import Progress
from verfedsv.shapley.blocks import available_threads, split
from verfedsv.shapley.permutation import default_permutations
from verfedsv.valuation.chunks import apply
from verfedsv.valuation.completed import CompletionPlan, complete_players, completed_segments, completion_errors
from verfedsv.valuation.error_sums import ErrorSums
from verfedsv.valuation.estimate import Plan
from verfedsv.valuation.replay import SEGMENT_ROUNDS, Replay, of_rows, segments
from verfedsv.valuation.result import Factorisation, Valuation
from verfedsv.valuation.stream import Budget, Rounds, Stream, chunk_size
from verfedsv.valuation.trainings import Training, Uploads

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

    @property
    def _continued(self) -> Valuation | None:
        """The earlier valuation to go on from, unless clients have joined since."""
        return self.since if self.since is not None and self.since.clients == self.training.clients else None

    def run(self) -> Done:
        """Value the training in the way that its transcript asks for."""
        if not self.training.is_synchronous:
            return self._replayed(self.rows, None)
        uploads = Uploads.of(self.training)
        rows = self.rows[uploads.is_seen[self.rows]]
        if len(rows) == 0:
            raise InputError("no client uploaded any of the selected rows")
        return self._completed(rows, uploads) if any(uploads.has_gaps) else self._replayed(rows, uploads)

    def _replayed(self, rows: NDArray[np.intp], uploads: Uploads | None) -> Done:
        """Value the embeddings as the server held them, from `uploads` in synchronous training."""
        begin = time.perf_counter()
        training, n_players = self.training, len(self.training.clients) + 1
        before, replay = Rounds.none(n_players), Replay.begin(training, rows, self.settings.tolerance)
        error_sums = ErrorSums.none(n_players)
        since = self._continued
        if since is not None and since.n_samples == len(rows):  # with other samples, earlier rounds are other games
            before = _rounds_of(since)
            error_sums = since.error_sums or ErrorSums.adding(before.errors.sum(axis=0))
            if since.replay is not None:
                replay = since.replay.copy()
            else:
                for row in since.per_round:
                    replay.budget.allow(row)
        if uploads is None:
            recorded = training.rounds(replay.next_record, replay.unstamped)
        else:
            recorded = iter(uploads.rounds[replay.n_rounds :])
        step = _Steps(self.progress, max(1, training.n_rounds - replay.n_rounds))
        n_before = len(before.values)
        stream = self._stream(len(rows), replay.budget, error_sums, n_before)
        rounds = replay.follow(of_rows(recorded, rows, training.n_samples))
        for changes in islice(rounds, n_before - replay.n_rounds):
            apply(replay.table, changes, replay.columns(slice(0, len(rows))))
        parts = [before]
        for segment in segments(training, rows, rounds, replay.table, replay.columns, SEGMENT_ROUNDS):
            parts.append(stream.value(segment))
            segment.advance()
            step(segment.n_rounds)
        replay.next_record = training.transcript.n_records + 1
        step.finish()
        seconds = {"valuation": time.perf_counter() - begin}
        n_unseen = len(self.rows) - int(replay.is_seen.sum())
        return Done(Rounds.joined(parts), stream.error_sums, np.zeros(n_players), rows, n_unseen, None, replay, seconds)

    def _completed(self, rows: NDArray[np.intp], uploads: Uploads) -> Done:
        """Complete the embeddings of all clients of which some are missing, and value them."""
        begin = time.perf_counter()
        training, n_clients = self.training, len(self.training.clients)
        reports = self.like.completion if self.like is not None else None
        plan = CompletionPlan.of(self.settings, self.executor, reports or ())
        earlier = None if self._continued is None else self._continued.factorisation
        n_chunks = len(split(len(rows), chunk_size(n_clients, training.n_classes)))
        # A completion takes about as long as all chunks.
        step = _Steps(self.progress, (n_clients + 1) * n_chunks)
        factorisation = complete_players(training, uploads, plan, earlier, self.executor, lambda: step(n_chunks))
        between = time.perf_counter()
        none = ErrorSums.none(n_clients + 1)
        stream = self._stream(len(rows), Budget(self.settings.tolerance), none, step=lambda: step(1))
        rounds = Rounds.joined([*map(stream.value, completed_segments(training, rows, uploads, factorisation))])
        step.finish()
        seconds = {"completion": between - begin, "valuation": time.perf_counter() - between}
        errors = completion_errors(training, rows, factorisation, rounds.values)
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
