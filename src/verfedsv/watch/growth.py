"""`Growth`: the valuation of a growing run in portions, none of which is checked twice."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.errors import VerfedsvError
from verfedsv.runs.folder import RunFolder
from verfedsv.shapley import Progress
from verfedsv.transcript import Transcript
from verfedsv.transcript.verification import Verified
from verfedsv.valuation import Valuation, value
from verfedsv.valuation.trainings import RecordedTraining

Stat = tuple[int, int, int]
"""Inode, size and modification time of a file."""

_MOST_NUMBERS, _FEWEST_SAMPLES = 2**15, 256
"""With more embeddings than that, a random subset of the samples is valued, so that valuing keeps up with recording."""

_LEAST_TOLERANCE = 0.01
"""Values of a random subset of the samples are no more accurate anyway."""

_SKIMMED = 2048
"""How many of the last records are read if others are skipped: half a second of work."""

_SMALLEST_PORTION = 256
_SHORT, _LONG = 2.0, 8.0
"""Seconds. A portion is doubled if the last took less than the first, and halved if it took more than the second."""


class Growth:
    """What was checked and valued of the run in a folder.

    `transcript` is what was recorded when `open` was called. `valuation` covers the `verified` part, None if that has
    no round. `is_finished` means that it is the run's valuation.json, of all rounds; `is_sampled`, that it covers a
    random subset of the samples. If several rounds were valued as one, `rounds` lists the last round of each such
    group, else it is None. `note` is a message for the page. `clock` counts seconds.
    """

    def __init__(self, folder: RunFolder, clock: Callable[[], float] = time.monotonic) -> None:
        self.folder, self._clock = folder, clock
        self._portion = 8 * _SMALLEST_PORTION
        self._files: list[Stat | None] = []
        self._stored: tuple[Stat | None, Valuation | None, str | None] = None, None, None
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
        """Whether the portion being checked or valued is the last."""
        n_verified = 0 if self.verified is None else self.verified.n_records
        return self.transcript is not None and n_verified + self._portion >= self.transcript.n_records

    def open(self) -> None:
        """Open what is recorded now. Files that were replaced or changed in place are checked from the start."""
        before, self._files = self._files, [stat(path) for path in self.folder.growing_files]
        transcript = self.folder.open()
        if not all(map(_has_only_grown, before, self._files)):
            self.verified = None
            if self.rounds is not None:
                self._begin()
        self.note = None
        if self.valuation is not None and not transcript.contains(self.valuation.head):
            self._begin()
            self.note = "the transcript no longer contains what was valued: the run was started again, or is damaged"
        # The earlier transcript stays open until here, so that no new file can reuse its inode.
        self.transcript = transcript
        if self._falls_behind(transcript) and self.rounds is None and self.valuation is not None:
            self.rounds = list(range(1, self.valuation.n_rounds + 1))

    def _falls_behind(self, transcript: Transcript) -> bool:
        """Return whether an asynchronous training records faster than it is checked and valued."""
        before, self._lag = self._lag, transcript.n_records - self._n_valued
        is_late = self._lag > self._portion and self._lag > before / 2
        return is_late and transcript.description.mode == "asynchronous" and self.folder.is_running

    def _find_stored(self, transcript: Transcript) -> tuple[Valuation | None, str | None]:
        """Return valuation.json (re-read if changed) if it covers the transcript, and why it cannot be read."""
        now = stat(self.folder.valuation_path)
        if now != self._stored[0]:
            try:
                self._stored = now, self.folder.read_valuation(), None
            except VerfedsvError as error:
                self._stored = now, None, str(error)
        _, found, problem = self._stored
        return found if found is not None and found.head == transcript.head else None, problem

    def was_valued(self) -> bool:
        """Return whether the folder has a new valuation of all records."""
        try:
            found, _ = self._find_stored(self.folder.open())
        except VerfedsvError:
            return False
        return found is not None and found is not self.valuation

    def advance(self, on_check: Progress, on_value: Progress) -> bool:
        """Check and value the next portion, reporting progress; return whether it was the last.

        A synchronous run has only one portion, as it is completed as a whole.
        """
        transcript = self.transcript
        if transcript is None:
            raise AssertionError("call open() first")
        found, problem = self._find_stored(transcript)
        self.note = self.note or problem
        if found is not None or transcript.description.mode == "synchronous":
            self.verified = transcript.verify_more(self.verified, progress=on_check)
            if found is not None:
                self.folder.valuation_of(transcript.up_to(self.verified))
            self.valuation = found or self._value(transcript.up_to(self.verified), on_value)
            self.is_finished = found is not None
            self.is_sampled, self.rounds = False, None
            return True
        self.is_finished = False
        if self.rounds is not None:
            self._skim(transcript, on_value)
            return True
        begin = self._clock()
        self.verified = transcript.verify_more(self.verified, self._portion, on_check)
        self.valuation = self._value(transcript.up_to(self.verified), on_value)
        self._n_valued = self.verified.n_records
        took = self._clock() - begin
        if took < _SHORT:
            self._portion *= 2
        elif took > _LONG:
            self._portion = max(_SMALLEST_PORTION, self._portion // 2)
        return self.verified.n_records >= transcript.n_records

    def _skim(self, transcript: Transcript, progress: Progress) -> None:
        """Value all pending rounds as one, from the last `_SKIMMED` records, without verifying them."""
        before = self.valuation
        if before is None or self.rounds is None:
            return
        skimmed = transcript.merged(self._n_valued + 1, before.n_rounds, _SKIMMED)
        if skimmed is None:
            return
        try:
            self.valuation = value(skimmed, progress=progress, since=before, **self._options(skimmed))
        except VerfedsvError:
            self._begin()  # perhaps config.toml has changed
            raise
        self._n_valued = skimmed.n_records
        self.rounds.append(transcript.n_rounds)

    def _value(self, transcript: Transcript, progress: Progress) -> Valuation | None:
        """Return the valuation of a transcript, with the agreed settings; None if it has no rounds."""
        if transcript.n_rounds == 0:
            return None
        options, before = self._options(transcript), self.valuation
        # Synchronous valuations start again with completion: continuing would give other digits than the report.
        if before is not None and (before.mode == "synchronous" or not transcript.contains(before.head)):
            before = None
        try:
            return value(transcript, progress=progress, since=before, **options)
        except VerfedsvError:
            if before is None:
                raise
            # Perhaps it has other settings.
            return value(transcript, progress=progress, **options)

    def _options(self, transcript: Transcript) -> dict[str, Any]:
        """Return the agreed settings; for asynchronous runs with many samples, with a random subset of these.

        It is the same each time, so that the valuation can be continued. Synchronous runs spend most of the time on
        completion, which needs all samples.
        """
        options, training = self.folder.agreed_settings(transcript).as_dict(), RecordedTraining(transcript)
        if training.is_synchronous:
            return options
        rows = training.select(options.get("rows", "all"))
        most = max(_FEWEST_SAMPLES, _MOST_NUMBERS // (len(training.clients) * training.n_classes))
        self.is_sampled = len(rows) > most
        if not self.is_sampled:
            return options
        drawn = np.sort(np.random.default_rng(0).choice(rows, most, replace=False))
        return options | {"rows": drawn, "tolerance": max(_LEAST_TOLERANCE, options.get("tolerance", 0.0))}


def stat(path: Path) -> Stat | None:
    """Return the inode, size and modification time of a file; None if it is missing."""
    try:
        found = os.stat(path)  # noqa: PTH116  # a dozen of them every two seconds
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


def _has_only_grown(before: Stat | None, now: Stat | None) -> bool:
    if before is None or now is None or before == now:
        return before == now
    return now[0] == before[0] and now[1] > before[1]
