"""`Follower`: a run's folder as a sequence of states. It only reads, and rests ten times as long as it worked."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

from verfedsv._version import __version__
from verfedsv.errors import VerfedsvError
from verfedsv.report.reading import count_uploads
from verfedsv.report.summary import About, Summary, build
from verfedsv.runs.folders import CONFIG, METRICS, VALUATION
from verfedsv.settlement.folders import find_valuation, options_for
from verfedsv.shapley.result import count
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.reader import FOLDER, Stamp
from verfedsv.valuation import Valuation, value
from verfedsv.watch.metrics import GrowingMetrics
from verfedsv.watch.state import Progress, State, Status, build_state

Signature = tuple[tuple[int, int, int] | None, ...]
"""Number, size and time of change of each file; None for one that is not there."""

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
        self._due, self._took = -math.inf, 0.0
        self._forget()

    def _forget(self) -> None:
        """Forget a run that is not there any more."""
        self._read: Signature | None = None
        self._summary: Summary | None = None
        self._valuation: Valuation | None = None
        self._is_finished = False
        self._problem: str | None = None
        self._note: str | None = None
        self._unreadable: str | None = None

    def look(self) -> None:
        """Look at the folder once, and publish its state; value the run if it has changed and that is due."""
        self._read_metrics()
        if not self._is_there():
            self._forget()
            self._show("waiting", f"Waiting for a run in {self.folder}.")
            return
        signature = self._signature()
        if signature != self._read and (self._clock() >= self._due or self._was_valued(signature)):
            is_first = self._read is None
            if is_first or self._took >= self._every:
                self._tell(" Reading and valuing what is new.")
            begin = self._clock()
            self._read = signature
            self._summarise()
            self._took = self._clock() - begin
            # The first valuation includes compiling.
            self._due = self._clock() + (1 if is_first else _REST) * self._took
        self._tell()

    def _was_valued(self, signature: Signature) -> bool:
        """Return whether the run has got another valuation.json, which is read and need not be computed."""
        return self._read is not None and signature[-1] is not None and signature[-1] != self._read[-1]

    def _is_there(self) -> bool:
        return any((place / fmt.DESCRIPTION).exists() for place in (self.folder / FOLDER, self.folder))

    def _signature(self) -> Signature:
        places = (self.folder / FOLDER, self.folder)
        paths = [place / name for place in places for name in _OF_TRANSCRIPT]
        return tuple(_stat(path) for path in [*paths, self.folder / CONFIG, self.folder / VALUATION])

    def _read_metrics(self) -> None:
        try:
            self._metrics.read()
            self._unreadable = None
        except OSError as error:
            self._unreadable = f"cannot read {METRICS}: {error.strerror}"

    def _summarise(self) -> None:
        """Value what is in the folder; if that cannot be done, say why and keep what was."""
        self._problem = self._note = None
        self._is_finished = False
        try:
            transcript = Transcript.open(self.folder)
            transcript.verify(may_go_on=True)
            if self._valuation is not None and not transcript.contains(self._valuation.head):
                self._note = "what was valued before is not in the transcript any more: begun anew, or damaged"
            if any(isinstance(record, Stamp) for record in transcript):
                self._take(transcript, self._find_valuation(transcript))
            else:
                self._summary = self._valuation = None
        except Ended:
            raise
        except VerfedsvError as error:
            self._problem = str(error)
        except Exception as error:  # whatever a damaged file leads to: the page says so, and goes on
            self._problem = f"the run cannot be valued: {type(error).__name__}: {error}"

    def _find_valuation(self, transcript: Transcript) -> Valuation:
        """Return the valuation in the folder if it is of all that was recorded; if not, value the run."""
        try:
            found = find_valuation(self.folder, transcript)
        except VerfedsvError as error:
            found, self._note = None, str(error)
        self._is_finished = found is not None
        return found or self._value(transcript)

    def _value(self, transcript: Transcript) -> Valuation:
        options, before = options_for(self.folder), self._valuation
        # Asynchronous runs are valued on from where they were. Synchronous ones are completed from the start: going on
        # would give other digits than those of the report.
        if before is not None and (before.mode == "synchronous" or not transcript.contains(before.head)):
            before = None
        try:
            return value(transcript, progress=self._on_progress(), since=before, **options)
        except VerfedsvError:
            if before is None:
                raise
            # With other settings, say, if config.toml has changed.
            return value(transcript, progress=self._on_progress(), **options)

    def _take(self, transcript: Transcript, valuation: Valuation) -> None:
        description = transcript.description
        about = About(
            run=self.folder.resolve().name,
            package=f"verfedsv {__version__}",
            recorded=description.created,
            n_recorded=description.n_samples,
            n_classes=description.n_classes or 1,
        )
        # Metrics come from the columns that are kept of them: a list of a million lines would be half a gigabyte.
        self._summary = build(valuation, count_uploads(transcript), (), about)
        self._valuation = valuation

    def _on_progress(self) -> Callable[[int, int], None]:
        """Return what is called during a valuation: it ends it if need be, and keeps the loss up to date."""
        last = self._clock()

        def progress(done: int, total: int) -> None:
            nonlocal last
            if self._is_ended():
                raise Ended
            if self._clock() - last >= self._every:
                last = self._clock()
                self._read_metrics()
                self._tell(f" Valuing: {done / max(1, total):.0%} done.")

        return progress

    def _tell(self, more: str = "") -> None:
        at = self._metrics.last_round
        if self._summary is None:
            rounds = "there is no round yet" if self._problem is None and not more else "nothing was valued yet"
            self._show("waiting", f"Recording has begun; {rounds}.{more}")
        elif self._is_finished and not more:
            self._show("finished", f"Finished: these are the values in its {VALUATION}.")
        else:
            noun = "round" if self._summary.mode == "synchronous" else "time stamp"
            ahead = f" Training is at {noun} {at:,}." if at > self._summary.n_rounds else ""
            self._show("following", f"Valued: {count(self._summary.n_rounds, noun)}.{ahead}{more}")

    def _show(self, status: Status, message: str) -> None:
        n_bad = self._metrics.n_bad
        damaged = f"{count(n_bad, 'line')} of {METRICS} cannot be read and left out" if n_bad else None
        problems = tuple(text for text in (self._problem, self._note, self._unreadable, damaged) if text)
        progress = Progress(self.folder.resolve().name, status, message, problems, self._metrics.n_evaluations)
        self._publish(build_state(progress, self._summary, self._metrics.curves()))


def _stat(path: Path) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  # a dozen of them every two seconds
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
