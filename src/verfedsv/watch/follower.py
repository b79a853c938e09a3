"""`Follower`: a run's folder as a sequence of states. It only reads, and rests ten times as long as it worked."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path

from verfedsv.errors import VerfedsvError
from verfedsv.report.metrics import GrowingMetrics
from verfedsv.report.reading import about_run, uploads_of
from verfedsv.report.summary import Summary, build
from verfedsv.runs.folders import CONFIG, METRICS, VALUATION
from verfedsv.shapley import Progress as OnProgress
from verfedsv.shapley.result import count
from verfedsv.transcript import format as fmt
from verfedsv.transcript.reader import FOLDER
from verfedsv.watch.growth import Growth, Stat, stat
from verfedsv.watch.state import Progress, State, Status, build_state

Signature = tuple[Stat | None, ...]
"""Of each file of a run what tells its states apart; None for one that is not there."""

_REST = 10
_OF_TRANSCRIPT = (fmt.DESCRIPTION, fmt.LABELS, fmt.UPLOADS, fmt.CHAIN)


class Ended(Exception):  # noqa: N818  # nothing went wrong
    """Nobody watches any more."""


class Follower:
    """Follows the run in a folder, which need not be there yet.

    `publish` gets each state. `is_ended` is asked while a run is being valued, and ends that with `Ended`. Between
    two states of a valuation lie at least `every` seconds; `clock` counts seconds.
    """

    def __init__(
        self,
        folder: Path,
        publish: Callable[[State], None],
        is_ended: Callable[[], bool] = lambda: False,
        every: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.folder = folder
        self._publish, self._is_ended, self._every, self._clock = publish, is_ended, every, clock
        self._metrics = GrowingMetrics(folder / METRICS)
        self._forget()

    def _forget(self) -> None:
        """Forget a run that is not there any more."""
        self._growth = Growth(self.folder, self._clock)
        self._due, self._took = -math.inf, 0.0
        self._read: Signature | None = None
        self._summary: Summary | None = None
        self._is_behind = False
        self._was_up_to_date = False
        self._problem: str | None = None
        self._unreadable: str | None = None

    def look(self) -> None:
        """Look at the folder once, and publish its state; value the run if it has changed and that is due."""
        self._read_metrics()
        if not self._is_there():
            self._forget()
            self._show("waiting", f"Waiting for a run in {self.folder}.")
            return
        signature = self._signature()
        has_changed = signature != self._read or self._is_behind
        if has_changed and (self._clock() >= self._due or self._was_valued(signature)):
            if self._read is None or self._took >= self._every:
                self._tell(" Reading and valuing what is new.")
            self._summarise(signature)
        self._tell()

    def _was_valued(self, signature: Signature) -> bool:
        """Return whether the run has got a valuation.json of all that is in it, which need not be computed."""
        if self._read is None or signature[-1] in (None, self._read[-1]):
            return False
        return self._growth.was_valued()

    def _is_there(self) -> bool:
        return any((place / fmt.DESCRIPTION).exists() for place in (self.folder / FOLDER, self.folder))

    def _signature(self) -> Signature:
        places = (self.folder / FOLDER, self.folder)
        paths = [place / name for place in places for name in _OF_TRANSCRIPT]
        return tuple(stat(path) for path in [*paths, self.folder / CONFIG, self.folder / VALUATION])

    def _read_metrics(self) -> None:
        try:
            self._metrics.read()
            self._unreadable = None
        except OSError as error:
            self._unreadable = f"cannot read {METRICS}: {error.strerror}"

    def _summarise(self, signature: Signature) -> None:
        """Value what is in the folder; if that cannot be done, say why and keep what was.

        Values are shown after each portion. If the run grows meanwhile, the rest comes first and then the next portion;
        but not when a run is seen for the first time, nor when nothing was added: there is nobody to wait for then.
        """
        self._read, self._problem, self._is_behind = signature, None, False
        is_first = not self._was_up_to_date
        try:
            self._growth.open()
            while self._go_on() and (is_first or self._signature() == signature):
                self._tell(" Computing.")
        except Ended:
            raise
        except VerfedsvError as error:
            self._problem = str(error)
        except Exception as error:  # whatever a damaged file leads to: the page says so, and goes on
            self._problem = f"the run cannot be valued: {type(error).__name__}: {error}"
        # The first valuation includes compiling.
        self._due = self._clock() + (1 if is_first else _REST) * self._took

    def _go_on(self) -> bool:
        """Value the next portion, and return whether there are more."""
        begin, self._is_behind = self._clock(), False
        try:
            is_done = self._growth.go_on(self._on_progress("Checking"), self._on_progress("Valuing"))
            self._take()
        finally:
            self._took = self._clock() - begin
        self._is_behind = not is_done
        self._was_up_to_date |= is_done
        return not is_done

    def _take(self) -> None:
        growth = self._growth
        if growth.transcript is None or growth.verified is None or growth.valuation is None:
            self._summary = None
            return
        uploads = uploads_of(growth.transcript.description, growth.verified)
        # Metrics are drawn from the columns that are kept of them.
        self._summary = build(growth.valuation, uploads, {}, about_run(self.folder, growth.transcript))

    def _on_progress(self, what: str) -> OnProgress:
        """Return what is called while a run is checked or valued: it ends that if need be, and keeps the loss new."""
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
            self._show("finished", f"Finished: these are the values in its {VALUATION}.")
        else:
            noun = "round" if self._summary.mode == "synchronous" else "time stamp"
            n_valued, n_expected, at = self._summary.n_rounds, self._growth.n_expected, self._metrics.last_round
            if n_valued < n_expected:
                self._show("following", f"Valued: {n_valued:,} of about {max(n_expected, at):,} {noun}s.{more}")
                return
            ahead = f" Training is at {noun} {at:,}." if at > n_valued else ""
            self._show("following", f"Valued: {count(n_valued, noun)}.{ahead}{more}")

    def _show(self, status: Status, message: str) -> None:
        n_bad = self._metrics.n_bad
        damaged = f"{count(n_bad, 'line')} of {METRICS} cannot be read and left out" if n_bad else None
        problems = tuple(text for text in (self._problem, self._growth.note, self._unreadable, damaged) if text)
        progress = Progress(self.folder.resolve().name, status, message, problems, self._metrics.n_evaluations)
        self._publish(build_state(progress, self._summary, self._metrics.curves()))
