"""`Growth`: the valuation of a run that grows, a portion at a time: nothing is checked or valued twice."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.errors import VerfedsvError
from verfedsv.report.reading import refuse_misfit
from verfedsv.runs.folders import VALUATION
from verfedsv.runs.valuations import options_for, read_valuation
from verfedsv.shapley import Progress
from verfedsv.transcript import Transcript
from verfedsv.transcript import format as fmt
from verfedsv.transcript.reader import FOLDER, Verified, folder_of
from verfedsv.transcript.storage import is_being_written
from verfedsv.valuation import Valuation, value
from verfedsv.valuation.trainings import Training

Stat = tuple[int, int, int]
"""Number, size and time of change of a file."""

_MOST_NUMBERS, _FEWEST_SAMPLES = 2**15, 256
"""Of more embeddings than that, a random part of the samples is valued, which is faster than a training can record."""

_LEAST_TOLERANCE = 0.01
"""Where samples are drawn, values are not good to more than that anyway."""

_SKIMMED = 2048
"""So many of the last records are read where the others are skipped: half a second."""

_SMALLEST_PORTION = 256
_SHORT, _LONG = 2.0, 8.0
"""Seconds. The next portion is twice as large as one that took less, half as large as one that took more."""


class Growth:
    """What was checked and valued of the run in a folder.

    `transcript` is what was recorded when `open` was called, `valuation` is of the part that was `verified`, or None
    if there is no round in that. `is_finished` says that it came from the run's valuation.json, and is of all;
    `is_sampled` says that it is of a random part of the samples. `rounds` are the rounds up to which it was valued,
    if several were valued as one, and None if it was each. `note` is what else there is to say. `clock` counts seconds.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._file = ValuationFile(folder)
        self._portion = 8 * _SMALLEST_PORTION
        self._files: list[Stat | None] = []
        self._begin()

    def _begin(self) -> None:
        self.transcript: Transcript | None = None
        self.verified: Verified | None = None
        self.valuation: Valuation | None = None
        self.is_finished = False
        self.is_sampled = False
        self.rounds: list[int] | None = None
        self.note: str | None = None
        self._n_valued = 0  # records
        self._lag: float = math.inf

    @property
    def n_expected(self) -> int:
        """How many rounds were recorded when `open` was called."""
        return 0 if self.transcript is None else self.transcript.n_rounds

    @property
    def is_at_end(self) -> bool:
        """Whether what is being checked or valued is all that is left."""
        n_verified = 0 if self.verified is None else self.verified.n_records
        return self.transcript is not None and n_verified + self._portion >= self.transcript.n_records

    def open(self) -> None:
        """Look at what is recorded now. Files that were replaced, or changed without growing, are checked anew."""
        before, self._files = self._files, self._stat_files()
        transcript = Transcript.open(self.folder, mapped=False)
        if not all(map(_has_only_grown, before, self._files)):
            self.verified = None
            if self.rounds is not None:
                self._begin()
        self.note = None
        if self.valuation is not None and not transcript.contains(self.valuation.head):
            self._begin()
            self.note = "what was valued before is not in the transcript any more: begun anew, or damaged"
        # The one before is kept open until here, so that no new file can have its number.
        self.transcript = transcript
        if self._falls_behind(transcript) and self.rounds is None and self.valuation is not None:
            self.rounds = list(range(1, self.valuation.n_rounds + 1))

    def _falls_behind(self, transcript: Transcript) -> bool:
        """Return whether an asynchronous training records faster than it is checked and valued."""
        before, self._lag = self._lag, transcript.n_records - self._n_valued
        is_late = self._lag > self._portion and self._lag > before / 2
        return is_late and transcript.description.mode == "asynchronous" and is_being_written(folder_of(self.folder))

    def _stat_files(self) -> list[Stat | None]:
        files = fmt.files_of(self.folder / FOLDER) or fmt.files_of(self.folder)
        return [stat(path) for path in files if fmt.segment_of(path.name)]

    def was_valued(self) -> bool:
        """Return whether the folder has a valuation of all that is recorded now, which is not known yet."""
        try:
            found = self._file.of(Transcript.open(self.folder, mapped=False))
        except VerfedsvError:
            return False
        return found is not None and found is not self.valuation

    def go_on(self, on_check: Progress, on_value: Progress) -> bool:
        """Check and value the next portion, calling the two meanwhile; return whether that was the last.

        A synchronous run is completed as a whole, and so is valued at once.
        """
        transcript = self.transcript
        if transcript is None:
            raise AssertionError("open comes first")
        found = self._file.of(transcript)
        self.note = self.note or self._file.problem
        if found is not None or transcript.description.mode == "synchronous":
            self.verified = transcript.verify_on(self.verified, progress=on_check)
            if found is not None:
                refuse_misfit(found, transcript.up_to(self.verified))
            self.valuation = found or self._value(transcript.up_to(self.verified), on_value)
            self.is_finished = found is not None
            self.is_sampled, self.rounds = False, None
            return True
        self.is_finished = False
        if self.rounds is not None:
            self._skim(transcript, on_value)
            return True
        begin = self._clock()
        self.verified = transcript.verify_on(self.verified, self._portion, on_check)
        self.valuation = self._value(transcript.up_to(self.verified), on_value)
        self._n_valued = self.verified.n_records
        took = self._clock() - begin
        if took < _SHORT:
            self._portion *= 2
        elif took > _LONG:
            self._portion = max(_SMALLEST_PORTION, self._portion // 2)
        return self.verified.n_records >= transcript.n_records

    def _skim(self, transcript: Transcript, progress: Progress) -> None:
        """Value all rounds that are waiting as one, by what the last of them uploaded; nothing of it is checked."""
        before = self.valuation
        if before is None or self.rounds is None:
            return
        skimmed = transcript.merged(self._n_valued + 1, before.n_rounds, _SKIMMED)
        if skimmed is None:
            return
        try:
            options = self._sampled(skimmed, options_for(self.folder))
            self.valuation = value(skimmed, progress=progress, since=before, **options)
        except VerfedsvError:
            self._begin()  # config.toml may have changed
            raise
        self._n_valued = skimmed.n_records
        self.rounds.append(transcript.n_rounds)

    def _value(self, transcript: Transcript, progress: Progress) -> Valuation | None:
        """Return the valuation of a transcript, as its configuration says; None if it has no rounds."""
        if transcript.n_rounds == 0:
            return None
        options, before = self._sampled(transcript, options_for(self.folder)), self.valuation
        # Asynchronous runs are valued on from where they were. Synchronous ones are completed from the start: going on
        # would give other digits than those of the report.
        if before is not None and (before.mode == "synchronous" or not transcript.contains(before.head)):
            before = None
        try:
            return value(transcript, progress=progress, since=before, **options)
        except VerfedsvError:
            if before is None:
                raise
            # With other settings, say, if config.toml has changed.
            return value(transcript, progress=progress, **options)

    def _sampled(self, transcript: Transcript, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options, with samples drawn at random if those of an asynchronous run are many.

        They are the same each time, so that the run can be valued on. In a synchronous run most of the time goes into
        completion, for which all samples are needed.
        """
        training = Training(transcript)
        if training.is_synchronous:
            return options
        rows = training.select(options.get("rows", "all"))
        most = max(_FEWEST_SAMPLES, _MOST_NUMBERS // (len(training.clients) * training.n_classes))
        self.is_sampled = len(rows) > most
        if not self.is_sampled:
            return options
        drawn = np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
        return options | {"rows": drawn, "tolerance": max(_LEAST_TOLERANCE, options.get("tolerance", 0.0))}


class ValuationFile:
    """The valuation.json of a folder, which may be written at any time; it is read each time that it has changed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stat: Stat | None = None
        self._valuation: Valuation | None = None
        self.problem: str | None = None

    def of(self, transcript: Transcript) -> Valuation | None:
        """Return the valuation if it is of all of a transcript; if it cannot be read, `problem` says why."""
        now = stat(self._folder / VALUATION)
        if now != self._stat:
            self._stat, self._valuation, self.problem = now, None, None
            try:
                self._valuation = read_valuation(self._folder)
            except VerfedsvError as error:
                self.problem = str(error)
        found = self._valuation
        return found if found is not None and found.head == transcript.head else None


def stat(path: Path) -> Stat | None:
    """Return what tells one state of a file from another; None if it is not there."""
    try:
        found = os.stat(path)  # noqa: PTH116  # a dozen of them every two seconds
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _has_only_grown(before: Stat | None, now: Stat | None) -> bool:
    if before is None or now is None or before == now:
        return before == now
    return now[0] == before[0] and now[1] > before[1]
