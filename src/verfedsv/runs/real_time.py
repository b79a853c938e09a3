"""What keeps a training on the real clock on time: a rehearsal before it, and a note on rounds without uploads."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Floats
from verfedsv.data.vertical import VerticalData, take_rows
from verfedsv.errors import VerfedsvError
from verfedsv.federation import AsynchronousSchedule, Training, VirtualClock, asynchronous_rounds
from verfedsv.runs.live import LiveShares
from verfedsv.runs.resume import Saver

_N_TRAIN, _N_TEST = 1000, 100
_MANY = 0.05
_ROUNDING = 1e-9

BuildTraining = Callable[[VerticalData, Path], Training]
"""Builds a training on some data, with its checkpoints in a folder."""


def rehearse(build: BuildTraining, data: VerticalData, schedule: AsynchronousSchedule) -> None:
    """Take two steps of each client, with evaluations and a checkpoint, in another training of a few samples.

    What is imported or compiled when first needed is ready then. Within a timed training, it would delay some clients
    more than others, and change what they are credited with: the first step of a network took 0.4 to 1.7 s, and the
    first shares under it 3 s, where clients uploaded every 0.01 s.
    """
    n_clients = len(data.names)
    few = replace(
        schedule,
        periods=(1.0,) * n_clients,
        batch_sizes=tuple(min(size, _N_TRAIN) for size in schedule.batch_sizes),
        stamp_every=1.0,
        n_rounds=2,
        roster=None,
    )
    # What is wrong with a few samples, such as a class without any, says nothing of the training.
    with warnings.catch_warnings(action="ignore"), suppress(VerfedsvError), TemporaryDirectory() as folder:
        training = build(_take_few(data), Path(folder))
        training.set_members(data.names)
        live = LiveShares(training)
        for _ in asynchronous_rounds(training, few, VirtualClock()):
            live.after(training.evaluate())
        Saver(training, live).save()


def _take_few(data: VerticalData) -> VerticalData:
    rows = [
        part[np.unique(np.linspace(0, len(part) - 1, most).astype(np.intp))]
        for part, most in ((np.flatnonzero(~data.is_test), _N_TRAIN), (np.flatnonzero(data.is_test), _N_TEST))
        if len(part)
    ]
    return take_rows(data, np.sort(np.concatenate(rows)))


def describe_idle_rounds(
    schedule: AsynchronousSchedule, clients: tuple[str, ...], n_uploads: NDArray[np.intp], last: int
) -> str:
    """Return a note if many rounds had no upload although some were due, else an empty text.

    `n_uploads`, (rounds,), are those of the recorded rounds up to round `last`. A single round without any does not
    count: where uploads are due about when rounds end, some come just after it.
    """
    numbers = np.arange(last - len(n_uploads), last) + 1
    due = _are_due(schedule, clients, numbers)
    is_idle = n_uploads[due] == 0
    beside = np.zeros(len(is_idle) + 2, bool)
    beside[1:-1] = is_idle
    n_idle = int((is_idle & (beside[:-2] | beside[2:])).sum())
    if n_idle <= _MANY * len(is_idle):
        return ""
    return (
        f"{n_idle:,} of {len(is_idle):,} rounds passed without any upload, although some were due: this machine was "
        "too busy, or too slow for these periods, and values depend on whom that delayed. Set longer periods and a "
        'longer stamp_every, evaluate less often (evaluate_every), or train on the virtual clock (clock = "virtual")'
    )


def _are_due(schedule: AsynchronousSchedule, clients: tuple[str, ...], numbers: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Return in which rounds some client that takes part was to upload, (rounds,)."""
    periods: Floats = np.array(schedule.periods)
    ends = numbers[:, np.newaxis] * schedule.stamp_every
    n_due = [np.floor(at / periods + _ROUNDING) for at in (ends - schedule.stamp_every, ends)]
    due = np.asarray(n_due[1] > n_due[0])
    roster = schedule.roster
    if roster is not None and roster.stays:
        for row, number in zip(due, numbers.tolist(), strict=True):
            there = {*roster.members(number)} - roster.missing(number)
            row &= [name in there for name in clients]
    return np.asarray(due.any(axis=1))
