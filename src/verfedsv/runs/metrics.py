"""What was measured in a run, `metrics.jsonl`, and whether it says that training should end."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.errors import InputError
from verfedsv.federation.evaluation import MEASURES, PARTS
from verfedsv.files import naming, opening, write_whole
from verfedsv.untrusted import read_json

MOST_BYTES = 1 << 28
"""Limit of the size of metrics.jsonl."""

MEMBERS_SINCE = "members_since"
"""The first round of those with the same members as at an evaluation; only where clients join, leave or miss rounds."""


@dataclass(frozen=True)
class Patience:
    """Training ends after `n_evaluations` in a row that did not lower the least test loss by `min_improvement`.

    There is one each `evaluate_every` rounds.
    """

    n_evaluations: int
    min_improvement: float = 0.0
    evaluate_every: int = 1

    @classmethod
    def agreed_in(cls, step: Any) -> Patience | None:
        """Return that of an agreed step; None if none was agreed."""
        if not isinstance(step, Mapping):
            return None
        found, least, every = (step.get(name) for name in ("patience", "min improvement", "evaluate every"))
        if type(found) is not int or not isinstance(least, float) or type(every) is not int or min(found, every) < 1:
            return None
        return cls(found, least, every)

    def is_over(self, losses: Sequence[float]) -> bool:
        """Return whether test losses in a row end a training.

        >>> [Patience(2).is_over(losses) for losses in ([3, 2, 2.5], [3, 2, 2.5, 2.0], [3, 2, 2.5, 1.9])]
        [False, True, False]
        """
        least, n_without = math.inf, 0
        for loss in losses:
            is_better = loss < least - self.min_improvement
            least, n_without = (loss, 0) if is_better else (least, n_without + 1)
        return n_without >= self.n_evaluations

    def ends(self, measured: Sequence[Mapping[str, float]]) -> bool:
        """Return whether measurements end a training.

        Only those since clients last joined or left count: the earlier ones measure the embeddings of other clients.
        """
        since = measured[-1].get(MEMBERS_SINCE) if measured else None
        return self.is_over([each["test_loss"] for each in measured if each.get(MEMBERS_SINCE) == since])


def add_metrics(path: Path, lines: Sequence[Mapping[str, float | None]]) -> None:
    """Append measurements to a file."""
    if lines:
        with naming(path), path.open("a", encoding="utf-8") as file:
            file.write("".join(json.dumps(line) + "\n" for line in lines))


def sync_metrics(path: Path) -> None:
    """Wait until what was appended is on the disk: a checkpoint counts the evaluations without progress in it."""
    if path.exists():
        with naming(path), path.open("rb+") as file:
            os.fsync(file.fileno())


def cut_metrics(path: Path, n_rounds: int) -> None:
    """Remove measurements of later rounds, which will be repeated."""
    if path.exists():
        kept = [line for line, figures in _lines(path) if figures["n_rounds"] <= n_rounds]
        write_whole(path, b"".join(line + b"\n" for line in kept))


def read_metrics(path: Path) -> list[dict[str, float]]:
    """Return all measurements, NaN for missing figures; lines that cannot be read are skipped.

    Raises InputError if the file has more than 256 MiB, which are half a million evaluations or more.
    """
    return [figures for _, figures in _lines(path)] if path.exists() else []


def least_train_loss(path: Path) -> float | None:
    """Return the least training loss that was measured, None without any; raise InputError as `read_metrics` does."""
    if not path.exists():
        return None
    losses = (figures["train_loss"] for _, figures in _lines(path))
    return min((loss for loss in losses if not math.isnan(loss)), default=None)


def _lines(path: Path) -> Iterator[tuple[bytes, dict[str, float]]]:
    """Yield the lines of measurements, without their ends, and the figures in them."""
    try:
        with opening(path) as (file, size):
            if size > MOST_BYTES:
                raise InputError(f"{path} is too large: it has {size:,} bytes, and at most {MOST_BYTES:,} are read")
            # One by one: a list of all lines takes many times the size of a file of short ones.
            for line in file:
                plain = line.rstrip(b"\r\n")
                if (figures := _figures(plain)) is not None:
                    yield plain, figures
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror}") from None


def _figures(line: bytes) -> dict[str, float] | None:
    """Return the numbers in a line of metrics; None if the line is truncated or not a measurement."""
    try:
        content = read_json(line, "a line of metrics")
        names = [*_ALWAYS, *(name for name in _MEASURED if name in content and name not in _ALWAYS)]
        return {name: np.nan if content[name] is None else float(content[name]) for name in names}
    except (InputError, KeyError, TypeError, ValueError):
        return None


_ALWAYS = ("n_rounds", "train_loss", "test_loss")
_MEASURED = [MEMBERS_SINCE, *(f"{part}_{name}" for name in MEASURES for part in PARTS)]
