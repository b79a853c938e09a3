"""`Follower`: a run's folder as a sequence of states. It only reads, and rests longer than it works."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from verfedsv.errors import InputError, VerfedsvError
from verfedsv.report.metrics import GrowingMetrics
from verfedsv.report.reading import find_fault_at_end, summarise_valuation
from verfedsv.report.summary import Summary
from verfedsv.runs.folder import RunFolder
from verfedsv.shapley import Progress
from verfedsv.texts import count
from verfedsv.watch.growth import Growth, Stat, stat
from verfedsv.watch.state import State, Status, with_values

Signature = tuple[Stat | None, ...]
"""The stat of each file of a run; None for a missing one."""

_REST, _LONGEST_REST = 10, 10.0
"""The pause after a valuation, as a multiple of its duration; in asynchronous runs, at most that many seconds."""

_QUIET = (60, 300, 900, 3600, 6 * 3600, 24 * 3600)
"""Seconds without new records that the page reports; in steps, so that it does not change all the time."""


class Ended(Exception):  # noqa: N818  # nothing went wrong
    """The server was stopped."""


class Follower:
    """Follows the run in a folder, which need not exist yet.

    `publish` gets each state. If `is_ended` returns True during a valuation, it is aborted with `Ended`. States during
    a valuation are at least `every` seconds apart. `clock` counts seconds, and `now` returns seconds since 1970.
    """

    def __init__(
        self,
        folder: Path,
        publish: Callable[[State], None],
        is_ended: Callable[[], bool] = lambda: False,
        every: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        *,
        trust_head: bool = False,
    ) -> None:
        self.folder, self._run = folder, RunFolder(folder, trust_head=trust_head)
        self._publish, self._is_ended, self._every, self._clock, self._now = publish, is_ended, every, clock, now
        self._metrics = GrowingMetrics(self._run.metrics_path)
        self._forget()

    def _forget(self) -> None:
        """Forget a run that was removed."""
        self._growth = Growth(self._run, self._clock)
        self._due, self._took = -math.inf, 0.0
        self._read: Signature | None = None
        self._summary: Summary | None = None
        self._problem: str | None = None
        self._unreadable: str | None = None

    def poll(self) -> None:
        """Read the folder once and publish its state; value the run if it has changed and a valuation is due."""
        try:
            self._run.refuse_irregular()
        except InputError as error:
            self._problem, self._read = str(error), None
            self._show("waiting", "The run cannot be read.")
            return
        self._read_metrics()
        if not self._run.holds_run:
            self._forget()
            self._show("waiting", f"Waiting for a run in {self.folder}.")
            return
        run = self._run
        signature = tuple(stat(path) for path in [*run.transcript_files, run.config_path, run.valuation_path])
        if signature != self._read and (self._clock() >= self._due or self._was_valued(signature)):
            if self._read is None or self._took >= self._every:
                self._tell(" Reading and valuing what is new.")
            self._summarise(signature)
        self._tell()

    def _was_valued(self, signature: Signature) -> bool:
        """Return whether the run has a new valuation.json of all records, so that nothing needs to be computed."""
        if self._read is None or signature[-1] in (None, self._read[-1]):
            return False
        return self._growth.was_valued()

    def _read_metrics(self) -> None:
        try:
            self._metrics.read()
            self._unreadable = None
        except OSError as error:
            self._unreadable = f"cannot read {self._run.metrics_path.name}: {error.strerror}"

    def _summarise(self, signature: Signature) -> None:
        """Value all that is recorded now, publishing each portion; on failure, report why and keep the values."""
        self._read, self._problem = signature, None
        begin, is_first = self._clock(), self._summary is None
        try:
            growth = self._growth
            growth.open()
            is_done = False
            while not is_done:
                is_done = growth.advance(self._on_progress("Checking"), self._on_progress("Valuing"))
                self._take()
                if not is_done:
                    self._tell(" Computing.")
        except Ended:
            raise
        except VerfedsvError as error:
            self._problem = str(error)
        except Exception as error:  # whatever a damaged file causes: the page reports it and continues
            self._problem = f"the run cannot be valued: {type(error).__name__}: {error}"
        self._took = self._clock() - begin
        # The first valuation includes compiling.
        rest = (1 if is_first else _REST) * self._took
        is_cheap = self._summary is not None and self._summary.mode == "asynchronous"
        self._due = self._clock() + (min(rest, _LONGEST_REST) if is_cheap else rest)

    def _take(self) -> None:
        growth = self._growth
        if growth.transcript is None or growth.verified is None or growth.valuation is None:
            self._summary = None
            return
        transcript = growth.transcript.up_to(growth.verified)
        # Metrics are drawn from GrowingMetrics instead.
        self._summary = summarise_valuation(
            growth.valuation,
            self._run,
            transcript,
            growth.verified,
            rounds=growth.rounds,
            faults=find_fault_at_end(self._run, growth.transcript),
        )

    def _on_progress(self, what: str) -> Progress:
        """Return a progress callback that stops with the server and keeps the loss up to date."""
        last = self._clock()

        def progress(done: int, total: int) -> None:
            nonlocal last
            if self._is_ended():
                raise Ended
            if self._clock() - last >= self._every:
                last = self._clock()
                self._read_metrics()
                self._tell(f" {what}: {done / max(1, total):.0%} done." if self._growth.is_at_end else " Computing.")

        return progress

    def _tell(self, more: str = "") -> None:
        if self._summary is None:
            rounds = "there is no round yet" if self._problem is None and not more else "nothing was valued yet"
            self._show("waiting", f"Recording has begun; {rounds}.{more}")
        elif self._growth.is_finished and not more:
            self._show("finished", self._end(self._summary))
        else:
            planned = ""
            n_valued, n_expected, at = self._summary.n_rounds, self._growth.n_expected, self._metrics.last_round
            if self._summary.n_planned is not None:
                planned = f" {count(self._summary.n_planned, 'round')} are planned."
            if n_valued < n_expected:
                about = f"{n_valued:,} of about {max(n_expected, at):,} rounds"
                self._show("following", f"Valued: {about}.{planned}{more}")
                return
            ahead = f" Training is at round {at:,}." if at > n_valued else ""
            self._show("following", f"Valued: {count(n_valued, 'round')}.{ahead}{planned}{more}")

    def _end(self, summary: Summary) -> str:
        """Return a sentence that a run is finished, or was stopped early."""
        if summary.n_planned is not None and summary.is_unfinished:
            extent = f"{summary.n_rounds:,} of {summary.n_planned:,} planned rounds"
            return f"Stopped early; values from {self._run.valuation_path.name}, for {extent}."
        return f"Finished; values from {self._run.valuation_path.name}."

    def _stalled(self, quiet: float, status: Status) -> str:
        """Return a sentence if a training was stopped, or has recorded nothing for `quiet` seconds; else nothing."""
        summary = self._summary
        if status == "finished" or self._read is None:
            return ""
        is_open = self._run.is_running
        if summary is not None and summary.is_unfinished and not is_open and os.name == "posix":
            return "The training was stopped before its last round: nothing is being recorded any more."
        if quiet < _QUIET[0]:
            return ""
        if summary is not None and summary.n_planned is not None and not summary.is_unfinished:
            is_valued_later = self._run.config_path.exists()  # by `verfedsv run`; a recorder never values
            missing = f"; there is no {self._run.valuation_path.name} of them yet" if is_valued_later else ""
            return f"All planned rounds are recorded{missing}."
        why = "may be hanging, or one step may take that long" if is_open else "may have ended or been stopped"
        since = _duration(max(step for step in _QUIET if step <= quiet))
        return f"Nothing new has been recorded for more than {since}: the training {why}."

    def _show(self, status: Status, message: str) -> None:
        n_bad = self._metrics.n_bad
        name = self._run.metrics_path.name
        damaged = f"skipped {count(n_bad, 'unreadable line')} of {name}" if n_bad else None
        problems = tuple(text for text in (self._problem, self._growth.note, self._unreadable, damaged) if text)
        found = map(stat, self._run.growing_files)
        last = max((each[2] / 1e9 for each in found if each is not None), default=None)  # in seconds since 1970
        state = State(
            self.folder.resolve().name,
            status,
            message,
            problems,
            recorded="" if last is None else f"Last recorded: {_time_text(last)}.",
            stalled="" if last is None else self._stalled(self._now() - last, status),
            last_round=self._metrics.last_round,
            n_evaluations=self._metrics.n_evaluations,
        )
        curves, is_sampled = self._metrics.curves(), self._growth.is_sampled
        self._publish(with_values(state, self._summary, curves, is_sampled=is_sampled))


def _time_text(seconds: float) -> str:
    """Return a time, in seconds since 1970, as text.

    >>> _time_text(0.0)
    '1970-01-01 00:00:00 UTC'
    """
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _duration(seconds: int) -> str:
    """Return a duration in words.

    >>> _duration(60), _duration(900), _duration(86400)
    ('1 minute', '15 minutes', '24 hours')
    """
    return count(seconds // 3600, "hour") if seconds >= 3600 else count(seconds // 60, "minute")
