"""What the experiments share: data split between clients, trainings of both kinds, and what they are worth."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal
from weakref import finalize

import numpy as np
from pydantic import BaseModel, ConfigDict

from verfedsv import Method, Recorder, Valuation, shapley_values, value
from verfedsv.data import Samples, Scale, VerticalData, load, split_features, take_rows
from verfedsv.federation import (
    AsynchronousSchedule,
    Client,
    InProcess,
    Linear,
    Model,
    Rate,
    SynchronousSchedule,
    Training,
    VirtualClock,
    asynchronous_rounds,
    synchronous_rounds,
)
from verfedsv.losses import Floats

FEW = 8
"""Up to so many clients, true values are enumerated."""


class Setup(BaseModel):
    """How one data set is split and trained in an experiment. Experiments add settings of their own.

    `rounds` are those of synchronous training. In asynchronous training every client uploads each `period` seconds, for
    `duration` seconds, with a time stamp each `stamp_every`. `rank` and `method` are those of the valuation.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    clients: int
    batch_size: int
    rate: float
    rounds: int = 0
    decay: Literal["constant", "inverse"] = "constant"
    scale: Scale = "standardise"
    intercept: bool = True
    model: Literal["linear", "perceptron"] = "linear"
    samples: int | None = None
    test: float | None = None
    period: float = 0.01
    duration: float = 20.0
    stamp_every: float = 0.04
    seed: int = 0
    rank: int | Literal["auto"] = "auto"
    method: Method = "auto"


class _Folder:
    """A temporary folder, removed with this object, or at the end of the process."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="verfedsv-"))
        finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Trained:
    """A training that was recorded in a folder, which goes with this object.

    `truth` are the values from embeddings of all samples in every round, (clients,), and `drop` is the mean decrease of
    the loss in a round, on these; NaN if they were not asked for.
    """

    training: Training
    setup: Setup
    truth: Floats
    drop: float
    _folder: _Folder

    @classmethod
    def without_truth(cls, training: Training, setup: Setup, folder: _Folder) -> Trained:
        """Return a training of which the true values are not known."""
        return cls(training, setup, np.full(len(training.server.clients), np.nan), np.nan, folder)

    @property
    def path(self) -> Path:
        """Where the transcript lies."""
        return self._folder.path / "transcript"

    @property
    def clients(self) -> list[Client]:
        """The client sides, which are in this process."""
        transport = self.training.transport
        return [*transport.clients.values()] if isinstance(transport, InProcess) else []

    @property
    def accuracy(self) -> float:
        """On test samples, at the end; on training samples if there are none to test on."""
        evaluation = self.training.evaluate()
        return evaluation.train_accuracy if np.isnan(evaluation.test_accuracy) else evaluation.test_accuracy

    def value(self, **settings: Any) -> Valuation:
        """Return what each client contributed."""
        return value(self.path, **{"method": self.setup.method, "rank": self.setup.rank, **settings})


@cache
def _load(name: str) -> Samples:
    return load(name)


def split(name: str, setup: Setup) -> VerticalData:
    """Return a data set split between the clients of an experiment."""
    data = split_features(_load(name), setup.clients, test=setup.test)
    if setup.samples is not None and setup.samples < len(data.labels):
        data = take_rows(data, np.sort(np.random.default_rng(0).permutation(len(data.labels))[: setup.samples]))
    return data


def prepare(data: VerticalData, setup: Setup, recorder: Recorder | None = None) -> Training:
    """Return the parties of a training that has not begun."""
    model: Callable[[int, int], Model] = Linear
    if setup.model == "perceptron":
        import torch

        from verfedsv.federation.torch_models import perceptron

        # Models so small gain nothing from threads, and lose much to them when cores are busy.
        torch.set_num_threads(1)
        model = partial(perceptron, seed=setup.seed)
    rate = Rate(setup.rate, setup.decay)
    return Training.in_process(
        data, rate=rate, scale=setup.scale, model=model, intercept=setup.intercept, recorder=recorder
    )


def train_synchronously(data: VerticalData, setup: Setup, *, with_truth: bool = False) -> Trained:
    """Train by FedSGD and record it. With `with_truth`, all samples are embedded in every round, to know the truth."""
    folder = _Folder()
    with _record(data, folder) as recorder:
        training = prepare(data, setup, recorder)
        truth = _Truth(training) if with_truth else None
        for _ in synchronous_rounds(training, SynchronousSchedule(setup.batch_size, setup.rounds, setup.seed)):
            if truth is not None:
                truth.after_round()
    if truth is None:
        return Trained.without_truth(training, setup, folder)
    return Trained(training, setup, truth.values / setup.rounds, truth.drop / setup.rounds, folder)


def train_asynchronously(data: VerticalData, setup: Setup, periods: Sequence[float] | None = None) -> Trained:
    """Train by VAFL on the virtual clock and record it. All clients have the same period unless `periods` are given."""
    folder = _Folder()
    n_clients = len(data.clients)
    schedule = AsynchronousSchedule(
        periods or [setup.period] * n_clients,
        [setup.batch_size] * n_clients,
        setup.stamp_every,
        round(setup.duration / setup.stamp_every),
        setup.seed,
    )
    with _record(data, folder) as recorder:
        training = prepare(data, setup, recorder)
        for _ in asynchronous_rounds(training, schedule, VirtualClock()):
            pass
    return Trained.without_truth(training, setup, folder)


def _record(data: VerticalData, folder: _Folder) -> Recorder:
    loss = "logistic" if data.n_classes == 2 else "softmax"
    n_classes = None if loss == "logistic" else data.n_classes
    return Recorder(folder.path / "transcript", data.labels[~data.is_test], data.names, loss, n_classes=n_classes)


class _Truth:
    """The values of a synchronous training from embeddings of all samples: nothing is completed.

    What is uploaded in a round was embedded before its step, so the embeddings after a step are those of the next one.
    """

    def __init__(self, training: Training) -> None:
        self._training, server = training, training.server
        self._labels = server.labels[: server.n_train]
        self._method: Method = "exact" if len(server.clients) <= FEW else "auto"
        self._next, self._next_offset = self._embed()
        self._previous, self._offset = np.zeros_like(self._next), np.zeros_like(self._next_offset)
        self.values: Floats = np.zeros(len(server.clients))
        self.drop = 0.0

    def after_round(self) -> None:
        loss, current, offset = self._training.server.loss, self._next, self._next_offset
        self.values += shapley_values(
            self._previous, current, self._labels, loss, self._method, offset=offset, previous_offset=self._offset
        ).values
        targets = loss.encode(self._labels, current.shape[2])
        ends = (self._previous, self._offset), (current, offset)
        before, after = (loss.value(x.sum(axis=0) + own, targets).mean() for x, own in ends)
        self.drop += float(before - after)
        self._previous, self._offset = current, offset
        self._next, self._next_offset = self._embed()

    def _embed(self) -> tuple[Floats, Floats]:
        evaluation = self._training.evaluate()
        own = 0.0 if evaluation.intercept is None else evaluation.intercept
        return evaluation.embeddings, np.zeros(evaluation.embeddings.shape[1:]) + own
