"""One valuation, its arguments checked: from a training to values of rounds."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field

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
from verfedsv.valuation.completed import CompletionPlan, complete_players, completed_source, completion_errors
from verfedsv.valuation.replay import Replay, value_replayed
from verfedsv.valuation.result import Factorisation, Valuation
from verfedsv.valuation.stream import Budget, Stream
from verfedsv.valuation.trainings import Training

MOST_PERMUTATIONS = 128
"""What "auto" lets samples draw in a round, on average. Where training makes no progress, values are small beside their
errors, and more would take hours to no avail."""


@dataclass(frozen=True, eq=False)
class Done:
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

    `since` is a valuation of its first rounds to go on from, `like` one of all of them that is repeated.
    """

    training: Training
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
        before, replay = Estimate.none(0, n_players), Replay.begin(self.training, rows, self.settings.tolerance)
        if self.since is not None:
            before = self.since.rounds
            if self.since.replay is not None:
                replay = self.since.replay.copy()
            else:
                for row in self.since.per_round:
                    replay.budget.allow(row)
        n_before, n_known = len(before.values), replay.n_rounds
        stream = self._stream(replay.budget, n_before)
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
        rounds = Estimate.joined([before, new])
        return Done(rounds, np.zeros(n_players), rows, n_unseen, None, replay, seconds)

    def _completed(self) -> Done:
        """Complete the embeddings of all clients, and value them."""
        begin = time.perf_counter()
        settings = self.settings
        reports = self.like.completion if self.like is not None else None
        plan = CompletionPlan.of(settings, self.executor, reports or ())
        known = None if self.since is None else self.since.factorisation
        n_clients = len(self.training.clients)
        n_chunks = len(self.backend.split(len(self.rows), n_clients, self.training.n_classes))
        # A completion takes about as long as all chunks.
        step = _Steps(self.progress, (n_clients + 1) * n_chunks)
        factorisation = complete_players(self.training, plan, known, self.executor, lambda: step(n_chunks))
        between = time.perf_counter()
        rows = self.rows[factorisation.is_seen[self.rows]]
        _refuse_none(rows)
        stream = self._stream(Budget(settings.tolerance), step=lambda: step(1))
        rounds = stream.value(completed_source(self.training, rows, factorisation))
        step.finish()
        seconds = {"completion": between - begin, "valuation": time.perf_counter() - between}
        errors = completion_errors(self.training, rows, factorisation, rounds.values)
        n_unseen = len(self.rows) - len(rows)
        return Done(rounds, errors, rows, n_unseen, factorisation, None, seconds)

    def _stream(self, budget: Budget, first_round: int = 0, step: Callable[[], None] = lambda: None) -> Stream:
        plan = Plan(
            self.estimator,
            len(self.rows),
            self.n_permutations,
            self.semivalue,
            self.settings.seed,
            first_round=first_round,
        )
        return Stream(self.backend, self.executor or available_threads(), plan, budget, step)


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
