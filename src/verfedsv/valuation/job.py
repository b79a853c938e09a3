"""One valuation, its arguments checked: from a training to values of rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from verfedsv.errors import InputError
from verfedsv.losses import Floats
from verfedsv.settings import ValuationSettings
from verfedsv.shapley import Progress, Semivalue
from verfedsv.shapley.blocks import available_threads
from verfedsv.shapley.estimate import Estimate
from verfedsv.shapley.estimators import get_estimator
from verfedsv.shapley.permutation import default_permutations
from verfedsv.shapley.plan import Estimator, Plan
from verfedsv.valuation.backends import Backend, CompiledLoops
from verfedsv.valuation.chunks import apply
from verfedsv.valuation.completed import CompletionPlan, columns_of, complete_players, completed_rounds
from verfedsv.valuation.completion_errors import completion_errors
from verfedsv.valuation.replay import SEGMENT_ROUNDS, Replay, of_rows, segments
from verfedsv.valuation.result import Factorisation, Valuation
from verfedsv.valuation.stream import Budget, ChunkStream
from verfedsv.valuation.trainings import RecordedTraining, Uploads

MOST_PERMUTATIONS = 128
"""What "auto" lets samples draw in a round, on average. Where training makes no progress, values are small beside their
errors, and more would take hours to no avail."""


@dataclass(frozen=True, eq=False)
class JobResult:
    """What a job arrived at: (rounds, players) and errors (players,), the server being the last player."""

    rounds: Estimate
    completion_errors: Floats
    rows: NDArray[np.intp]
    n_unseen: int
    factorisation: Factorisation | None
    replay: Replay | None
    seconds: dict[str, float]


@dataclass(frozen=True, eq=False)
class Job:
    """A training to value, and how.

    `since` is a valuation of its first rounds to continue from, `like` one of all of them that is repeated.
    """

    training: RecordedTraining
    settings: ValuationSettings
    semivalue: Semivalue
    rows: NDArray[np.intp]
    progress: Progress
    executor: Executor | None
    since: Valuation | None
    like: Valuation | None
    backend: Backend = field(default_factory=CompiledLoops)

    @property
    def estimator(self) -> Estimator:
        return get_estimator(self.settings.method)

    @property
    def n_permutations(self) -> int:
        if self.settings.n_permutations is not None:
            return self.settings.n_permutations
        by_paper = default_permutations(len(self.training.clients))
        return min(by_paper, MOST_PERMUTATIONS) if self.estimator.can_refine(self.semivalue) else by_paper

    @property
    def _continued(self) -> Valuation | None:
        """The earlier valuation to continue from, unless clients have joined since."""
        return self.since if self.since is not None and self.since.clients == self.training.clients else None

    def run(self) -> JobResult:
        """Value the training in the way that its transcript asks for."""
        if not self.training.is_synchronous:
            return self._replayed(self.rows, None)
        uploads = Uploads.of(self.training)
        rows = self.rows[uploads.is_seen[self.rows]]
        if len(rows) == 0:
            raise InputError("no client uploaded any of the selected rows")
        return self._completed(rows, uploads) if any(uploads.has_gaps) else self._replayed(rows, uploads)

    def _replayed(self, rows: NDArray[np.intp], uploads: Uploads | None) -> JobResult:
        """Value the embeddings as the server held them, from `uploads` in synchronous training."""
        begin = time.perf_counter()
        training, n_players = self.training, len(self.training.clients) + 1
        before, replay = Estimate.none(0, n_players), Replay.begin(training, rows, self.settings.tolerance)
        since = self._continued
        if since is not None and since.n_samples == len(rows):  # with other samples, earlier rounds are other games
            before = since.rounds
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
        stream = self._stream(replay.budget, n_before)
        rounds = replay.follow(of_rows(recorded, rows, training.n_samples))
        for changes in islice(rounds, n_before - replay.n_rounds):
            apply(replay.table, changes, replay.columns(slice(0, len(rows))))
        parts, segment = [before], None
        for segment in segments(training, rows, rounds, replay.table, replay.columns, SEGMENT_ROUNDS):
            parts.append(stream.value(segment))
            step(segment.n_rounds)
        if segment is not None:
            segment.advance()
        replay.next_record = training.transcript.n_records + 1
        step.finish()
        seconds = {"valuation": time.perf_counter() - begin}
        n_unseen = len(self.rows) - int(replay.is_seen.sum())
        return JobResult(Estimate.joined(parts), np.zeros(n_players), rows, n_unseen, None, replay, seconds)

    def _completed(self, rows: NDArray[np.intp], uploads: Uploads) -> JobResult:
        """Complete the embeddings of all clients of which some are missing, and value them."""
        begin = time.perf_counter()
        training, n_clients = self.training, len(self.training.clients)
        reports = self.like.completion if self.like is not None else None
        plan = CompletionPlan.of(self.settings, self.executor, reports or ())
        earlier = None if self._continued is None else self._continued.factorisation
        n_chunks = len(self.backend.split(len(rows), n_clients, training.n_classes))
        # A completion takes about as long as all chunks.
        step = _Steps(self.progress, (n_clients + 1) * n_chunks)
        factorisation = complete_players(training, uploads, plan, earlier, self.executor, lambda: step(n_chunks))
        between = time.perf_counter()
        stream = self._stream(Budget(self.settings.tolerance), step=lambda: step(1))
        completed = completed_rounds(training, rows, uploads, factorisation)
        table = np.zeros((n_clients + 1, len(rows), training.n_classes))
        parts = segments(training, rows, completed, table, lambda part: columns_of(factorisation, rows[part]))
        rounds = Estimate.joined([*map(stream.value, parts)])
        step.finish()
        seconds = {"completion": between - begin, "valuation": time.perf_counter() - between}
        errors = completion_errors(training, rows, uploads, factorisation, rounds.values)
        n_unseen = len(self.rows) - len(rows)
        return JobResult(rounds, errors, rows, n_unseen, factorisation, None, seconds)

    def _stream(self, budget: Budget, first_round: int = 0, step: Callable[[], None] = lambda: None) -> ChunkStream:
        plan = Plan(
            self.estimator,
            len(self.rows),
            self.n_permutations,
            self.semivalue,
            self.settings.seed,
            first_round=first_round,
        )
        return ChunkStream(self.backend, self.executor or available_threads(), plan, budget, step)


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
