"""One valuation, its arguments checked: from a training to its `Valuation`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from verfedsv._version import __version__
from verfedsv.arrays import Floats
from verfedsv.completion.expected import MAX_SAMPLES
from verfedsv.completion.observations import spread_evenly
from verfedsv.errors import InputError
from verfedsv.settings import ValuationSettings
from verfedsv.shapley import Progress, Semivalue
from verfedsv.shapley.estimate import Estimate, keeps
from verfedsv.shapley.estimators import get_estimator
from verfedsv.shapley.permutation import default_permutations
from verfedsv.shapley.plan import Estimator, Plan
from verfedsv.threads import available_threads, one_blas_thread
from verfedsv.valuation.backends import Backend, CompiledLoops, batches, value_sums
from verfedsv.valuation.budget import Budget, HeadBudget
from verfedsv.valuation.chunks import Chunk, Round, SampleFactors, State, chunks_of_rounds, of_rows
from verfedsv.valuation.completed import CompletionPlan, complete_players, completed_rounds, factors_of
from verfedsv.valuation.completion_errors import approximation_guarantee, completion_errors
from verfedsv.valuation.fingerprints import fingerprints
from verfedsv.valuation.limits import Cuts, Partitioning, explaining_workers
from verfedsv.valuation.partitioned import complete_stored, shuffle, store_training, sum_batches
from verfedsv.valuation.replay import Replay
from verfedsv.valuation.result import Factorisation, Valuation
from verfedsv.valuation.scratch import Scratch
from verfedsv.valuation.trainings import RecordedTraining, Uploads

MOST_PERMUTATIONS = 128
"""The most that "auto" draws in a round, on average. Where training makes no progress, values are small beside their
errors, and more draws would take hours to no avail."""

MOST_ROUNDS = 64
"""Rounds that are valued together where nothing is completed, so that progress is reported often."""


@dataclass(frozen=True, eq=False)
class Job:
    """A training to value, and how.

    `since` is a valuation of its first rounds to continue from, `like` a valuation to repeat.
    """

    training: RecordedTraining
    settings: ValuationSettings
    semivalue: Semivalue
    rows: NDArray[np.intp]
    progress: Progress
    executor: Executor | None
    since: Valuation | None
    like: Valuation | None
    partitioning: Partitioning | None = None
    backend: Backend = field(default_factory=CompiledLoops)

    @property
    def estimator(self) -> Estimator[Any]:
        return get_estimator(self.settings.method, has_head=self.training.head is not None)

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

    def run(self) -> Valuation:
        """Value the training: completed embeddings if there are gaps, else those that the server held."""
        with one_blas_thread:
            return self._run()

    def _run(self) -> Valuation:
        if self.partitioning is not None:
            return self._partitioned(self.partitioning)
        if not self.training.is_synchronous:
            return self._replayed(self.rows, None)
        uploads = Uploads.of(self.training)
        rows = self.rows[uploads.is_seen[self.rows]]
        if len(rows) == 0:
            raise InputError("no client uploaded any of the selected rows")
        return self._completed(rows, uploads) if any(uploads.has_gaps) else self._replayed(rows, uploads)

    def _replayed(self, rows: NDArray[np.intp], uploads: Uploads | None) -> Valuation:
        """Value the embeddings as the server held them, from `uploads` in synchronous training."""
        begin = time.perf_counter()
        training, n_players = self.training, len(self.training.clients) + 1
        before, replay = Estimate.none(0, n_players), Replay.begin(training, rows, self.settings.tolerance)
        since = self._continued
        if since is not None and since.n_samples == len(rows):  # a different set of samples makes different games
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
        step = _Steps(self.progress, self._n_steps(rows, training.n_rounds - len(before.values)))
        rounds = replay.follow(of_rows(recorded, rows, training.n_samples))
        start = self._chunk(rows, replay.table, replay.factors, replay.state)
        for each in islice(rounds, len(before.values) - replay.n_rounds):
            replace(start, rounds=[each]).advance()
            start = replace(start, state=each.state)
        found = self._value(start, rounds, before, step, replay)
        replay.next_record = training.transcript.n_records + 1
        n_unseen = len(self.rows) - int(replay.is_seen.sum())
        seconds = {"valuation": time.perf_counter() - begin}
        return self._assemble(rows, n_unseen, found, np.zeros(n_players), seconds, replay=replay)

    def _completed(self, rows: NDArray[np.intp], uploads: Uploads) -> Valuation:
        """Complete the embeddings of every client that has gaps, and value the training."""
        begin = time.perf_counter()
        training, n_players = self.training, len(self.training.clients) + 1
        reports = self.like.completion if self.like is not None else None
        plan = CompletionPlan.of(self.settings, self.executor, reports or (), on_gpu=self.backend.on_gpu)
        earlier = None if self._continued is None else self._continued.factorisation
        n_steps = self._n_steps(rows, training.n_rounds)  # a completion takes about as long as the valuation
        step = _Steps(self.progress, n_players * n_steps)
        factorisation = complete_players(training, uploads, plan, earlier, self.executor, lambda: step(n_steps))
        between = time.perf_counter()
        completed = completed_rounds(training, rows, uploads, factorisation)
        table = np.zeros((n_players, len(rows), training.width))
        start = self._chunk(rows, table, factors_of(factorisation, rows), training.first_state)
        found = self._value(start, completed, Estimate.none(0, n_players), step)
        seconds = {"completion": between - begin, "valuation": time.perf_counter() - between}
        few = spread_evenly(rows, MAX_SAMPLES)
        table = np.zeros((n_players, len(few), training.width))
        some = self._chunk(few, table, factors_of(factorisation, few), training.first_state)
        some = replace(some, rounds=list(completed_rounds(training, few, uploads, factorisation)))
        errors = completion_errors(training, some, len(rows), factorisation, found.values)
        return self._assemble(rows, len(self.rows) - len(rows), found, errors, seconds, factorisation=factorisation)

    def _partitioned(self, limits: Partitioning) -> Valuation:
        """Value the training in pieces of its samples, which are read where they are valued."""
        cuts = Cuts.of(self.training, limits)
        with (
            Scratch.begin(limits.scratch, self._identity(), resume=limits.resume) as scratch,
            explaining_workers(limits.scratch),
        ):
            return self._in_pieces(cuts.kept(scratch, self.training, limits), scratch)

    def _in_pieces(self, cuts: Cuts, scratch: Scratch) -> Valuation:
        begin, training, workers = time.perf_counter(), self.training, self.executor or available_threads()
        n_batches = len(batches(len(self.backend.split(len(self.rows), len(training.clients), training.width))))
        n_tasks = len(cuts.rounds) + len(cuts.edges) - 1 + len(training.clients) + n_batches
        step = _Steps(self.progress, n_tasks)
        shuffled = shuffle(training, scratch, cuts, self.settings.seed, workers, step)
        rows, factorisation = self.rows, None
        if training.is_synchronous:
            shuffled = shuffled.with_one_kind_of_offset()
            rows = rows[shuffled.is_seen[rows]]
            if len(rows) == 0:
                scratch.remove()  # to resume would lead here again
                raise InputError("no client uploaded any of the selected rows")
        moved = time.perf_counter()
        if training.is_synchronous and shuffled.has_any_gaps:
            reports = self.like.completion if self.like is not None else None
            how = CompletionPlan.of(self.settings, self.executor, reports or ())
            factorisation = complete_stored(shuffled, training, how, workers, step)
        between = time.perf_counter()
        factored = shuffled.intercept() if factorisation is None else factorisation.completions
        stored = store_training(shuffled, training, rows, factored)
        plan = self._plan(len(rows))
        n_chunks = len(self.backend.split(len(rows), stored.n_clients, stored.width))
        sums = partial(sum_batches, stored=stored, backend=self.backend, workers=workers, step=step)
        budget = self._budget(sees_all=factorisation is not None)
        found = value_sums(sums, plan, len(rows), stored.n_clients, n_chunks, budget)
        step.finish()
        seconds = {
            "shuffle": moved - begin,
            "completion": between - moved,
            "valuation": time.perf_counter() - between,
        }
        errors = np.zeros(len(training.clients) + 1)
        if factorisation is not None:
            some = stored.chunk(spread_evenly(rows, MAX_SAMPLES))
            errors = completion_errors(training, some, len(rows), factorisation, found.values)
        n_unseen = int(np.count_nonzero(~shuffled.is_seen[self.rows]))
        return self._assemble(rows, n_unseen, found, errors, seconds, factorisation=factorisation)

    def _chunk(self, rows: NDArray[np.intp], table: Floats, factors: SampleFactors, state: State) -> Chunk:
        """Return the rows before the first round."""
        training = self.training
        labels, n_clients = training.labels[rows], len(training.clients)
        return Chunk(training.loss, labels, n_clients, table, [], factors, head=training.head, state=state)

    def _first_scores(self, n_samples: int) -> Floats:
        """Return what the loss takes before the first round, when all embeddings are zero, (samples, classes)."""
        training = self.training
        if training.head is None:
            return np.zeros((n_samples, training.n_classes))
        return np.tile(training.head.first_scores(training.first_state), (n_samples, 1))

    def _plan(self, n_samples: int) -> Plan:
        return Plan(self.estimator, n_samples, self.n_permutations, self.semivalue, self.settings.seed)

    def _budget(self, *, sees_all: bool) -> Budget | HeadBudget:
        tolerance = self.settings.tolerance
        return Budget(tolerance) if self.training.head is None else HeadBudget(tolerance, sees_all=sees_all)

    def _identity(self) -> dict[str, Any]:
        """Return what work must have in common with this valuation to be continued by it."""
        reports = None if self.like is None else self.like.completion
        return {"version": __version__, **self.settings.as_dict(), **fingerprints(self.training, reports)}

    def _n_steps(self, rows: NDArray[np.intp], n_rounds: int) -> int:
        chunks = self.backend.split(len(rows), len(self.training.clients), self.training.width)
        return max(1, len(chunks) * n_rounds)

    def _value(
        self,
        start: Chunk,
        rounds: Iterable[Round],
        before: Estimate,
        step: _Steps,
        replay: Replay | None = None,
    ) -> Estimate:
        """Return the values of all rounds, given those of the rounds `before`; advance the table of a replay."""
        plan = self._plan(start.n_samples)
        budget = self._budget(sees_all=True) if replay is None else replay.budget
        parts, n_rounds, workers = [before], len(before.values), self.executor or available_threads()
        chunk = start
        for chunk in chunks_of_rounds(start, rounds, None if replay is None else MOST_ROUNDS):
            from_here = replace(plan, first_round=n_rounds)
            parts.append(self.backend.value_rounds(chunk, from_here, budget, workers, partial(step, chunk.n_rounds)))
            n_rounds += chunk.n_rounds
        if replay is not None:  # else the table may never have been written, and takes no memory
            chunk.advance()
            replay.state = chunk.last_state
        step.finish()
        return Estimate.joined(parts)

    def _assemble(
        self,
        rows: NDArray[np.intp],
        n_unseen: int,
        rounds: Estimate,
        completion_errors: Floats,
        seconds: dict[str, float],
        factorisation: Factorisation | None = None,
        replay: Replay | None = None,
    ) -> Valuation:
        training, n_clients, n_rounds = self.training, len(self.training.clients), self.training.n_rounds
        # Pairwise sums over rounds, whose rounding 64 units cover for any number of rounds.
        values = np.ascontiguousarray(rounds.values.T).mean(axis=1)
        rounding = 64 * np.finfo(np.float64).eps * np.abs(rounds.values).mean(axis=0)
        estimator_errors = rounds.total().bound(look=0) / n_rounds + rounding
        per_round_errors = rounds.bound(look=1 + np.arange(n_rounds))
        reports = None if factorisation is None else factorisation.reports
        first_loss = training.loss.value(self._first_scores(len(rows)), training.labels[rows]).mean()
        losses = first_loss - np.concatenate([[0.0], np.cumsum(rounds.utility)])
        tolerance = self.settings.tolerance
        return Valuation(
            clients=training.clients,
            values=values[:n_clients],
            estimator_errors=estimator_errors[:n_clients],
            completion_errors=completion_errors[:n_clients],
            error_kind=rounds.kind,
            per_round=rounds.values[:, :n_clients],
            per_round_errors=per_round_errors[:, :n_clients],
            server_value=float(values[n_clients]),
            server_error=float(estimator_errors[n_clients] + completion_errors[n_clients]),
            per_round_server=rounds.values[:, n_clients],
            per_round_server_errors=per_round_errors[:, n_clients],
            losses=losses,
            methods=tuple(sorted(rounds.methods)),
            mode="synchronous" if training.is_synchronous else "asynchronous",
            loss=training.loss.name,
            n_rounds=n_rounds,
            n_samples=len(rows),
            n_unseen=n_unseen,
            tolerance_met=keeps(tolerance, values[:n_clients], estimator_errors[:n_clients], losses.min())
            if self.estimator.adapts
            else None,
            completion=reports,
            guarantee=None if reports is None else approximation_guarantee(reports, training),
            head=training.transcript.head,
            settings=self.settings,
            seconds=seconds,
            sampled=rounds if rounds.is_sampled else None,
            factorisation=factorisation,
            replay=replay,
        )


class _Steps:
    """Counts steps and reports them to `progress`; refinement may take more of them than planned."""

    def __init__(self, progress: Progress, n_steps: int) -> None:
        self._progress, self._done, self._n_steps = progress, 0, n_steps

    def __call__(self, n_steps: int) -> None:
        done = min(self._done + n_steps, self._n_steps - 1)
        if done > self._done:
            self._done = done
            self._progress(done, self._n_steps)

    def finish(self) -> None:
        self._progress(self._n_steps, self._n_steps)
