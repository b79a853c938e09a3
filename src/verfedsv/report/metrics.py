"""The metrics of a training: metrics.jsonl, complete or still growing. Each byte is read once."""

from __future__ import annotations

import errno
import json
import math
import os
import stat
from array import array
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from verfedsv.federation.evaluation import MEASURES, PARTS, measures_of
from verfedsv.report.curves import Curve, curve

METRICS = {f"{part}_{name}": (name, label) for name in MEASURES for part, label in PARTS.items()}
"""For each metric, what it measures, which has a chart, and the label of its line there."""


def metrics_of(loss: str) -> list[str]:
    """Return the metrics of a training with that loss."""
    return [metric for metric, (name, _) in METRICS.items() if name in measures_of(loss)]


MetricLine = tuple[str, str, Curve]
"""A line of a chart of the training: the metric, its label, the curve."""

_AT_ONCE = 1 << 20
_LONGEST_LINE = 1 << 16
_MOST_ROUNDS = 2**53


def series(metrics: Mapping[str, Curve | None], losses: Curve | None) -> dict[str, list[MetricLine]]:
    """Return the lines of each chart of a training: of `losses`, the loss that was valued, if there are no metrics."""
    result: dict[str, list[MetricLine]] = {}
    for name, (chart, label) in METRICS.items():
        found = metrics.get(name)
        if found is not None:
            result.setdefault(chart, []).append((name, label, found))
    if not result and losses is not None:
        return {"loss": [("", "samples that were valued", losses)]}
    return result


class GrowingMetrics:
    """Loss and accuracy over rounds, from a file that grows.

    Numbers are kept in columns, 72 bytes an evaluation, and thinned when they are drawn. `n_bad` lines could not be
    read. A file that was replaced or truncated is read again from its start: a resumed run truncates what it will
    measure again.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._begin(None)

    def _begin(self, file: tuple[int, int] | None) -> None:
        self._file, self._position, self._rest, self._skips = file, 0, b"", False
        self._rounds = array("q")
        self._columns = {name: array("d") for name in METRICS}
        self.n_bad = 0

    @property
    def n_evaluations(self) -> int:
        """How many lines were read."""
        return len(self._rounds)

    @property
    def last_round(self) -> int:
        """The round of the last evaluation, 0 if there is none."""
        return self._rounds[-1] if self._rounds else 0

    def read(self) -> None:
        """Read what was added; raise OSError if that fails. An incomplete line is kept for the next call."""
        try:
            file = open(self._path, "rb", opener=_open_at_once)  # noqa: SIM115
        except FileNotFoundError:
            self._begin(None)
            return
        with file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file")
            identity = (found.st_dev, found.st_ino)
            if identity != self._file or found.st_size < self._position:
                self._begin(identity)
            file.seek(self._position)
            # Not beyond the size at the beginning: a file that grows as fast as it is read would never end.
            while self._position < found.st_size:
                content = file.read(min(_AT_ONCE, found.st_size - self._position))
                if not content:
                    break
                self._position += len(content)
                self._take(content)

    def curves(self, n_rounds: int = _MOST_ROUNDS) -> dict[str, Curve]:
        """Return a curve for each metric that was measured, up to a round."""
        rounds = np.array(self._rounds)
        is_wanted = rounds <= n_rounds
        columns = {name: np.array(column)[is_wanted] for name, column in self._columns.items()}
        curves = {name: curve(column, rounds=rounds[is_wanted]) for name, column in columns.items()}
        return {name: found for name, found in curves.items() if found.rounds}

    def _take(self, content: bytes) -> None:
        *lines, self._rest = (self._rest + content).split(b"\n")
        for line in lines:
            if self._skips:
                self._skips = False  # the end of a line that was too long
            elif line.strip():
                self._add(line)
        if len(self._rest) > _LONGEST_LINE:
            self.n_bad += not self._skips
            self._rest, self._skips = b"", True

    def _add(self, line: bytes) -> None:
        try:
            content = json.loads(line)  # accepts NaN, which a training writes for an undefined loss
            n_rounds = float(content["n_rounds"])
            found = [content.get(name) for name in METRICS]
            numbers = [math.nan if number is None else float(number) for number in found]
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
            self.n_bad += 1
            return
        if not 0 <= n_rounds <= _MOST_ROUNDS:
            self.n_bad += 1
        elif n_rounds >= 1:  # before the first round nothing was learnt; the report begins with it too
            self._rounds.append(int(n_rounds))
            for column, number in zip(self._columns.values(), numbers, strict=True):
                column.append(number)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file without blocking on a pipe that nobody writes to."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
