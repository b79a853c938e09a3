"""What the experiments share: data split between clients, trainings of both kinds, and their values.

The only module of the experiments that builds and runs trainings. Settings are flat, unlike the sections of
`verfedsv.runs.config`: they are written into each result file and decide whether its results are still valid.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, Literal, Self
from weakref import finalize

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from verfedsv import Method, Recorder, Transcript, Valuation, shapley_values, value
from verfedsv.arrays import Array, Floats
from verfedsv.data import Samples, Scale, VerticalData, load, split_features, take_rows
from verfedsv.federation import (
    AsynchronousSchedule,
    Evaluation,
    InProcess,
    Rate,
    SynchronousSchedule,
    Training,
    VirtualClock,
    asynchronous_rounds,
    synchronous_rounds,
)
from verfedsv.federation.models import build_model
from verfedsv.runs.execute import record_training
from verfedsv.transcript import Upload

FEW = 8
"""True values are enumerated up to this many clients; of more, the closed form is taken."""


class Settings(BaseModel):
    """How one data set is split, trained and valued in an experiment; experiments add their own settings.

    `source` is the data set in the catalogue, if it has another name there. All rows are trained on, or `train` of them
    and `test` others held out. Synchronous training takes `epochs`, or exactly `rounds`. In asynchronous training every
    client uploads each `period` seconds, for `duration` seconds, with a time stamp each `stamp_every` seconds. `rank`,
    `regularization` and `method` are for the valuation. `seed` seeds batches and initial weights; `seeds` is how often
    an experiment repeats what is random. `variants` are changes of these settings that are measured besides, by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    clients: int
    batch_size: int
    rate: float
    source: str | None = None
    epochs: float = 20
    rounds: int | None = None
    decay: Literal["constant", "inverse"] = "constant"
    scale: Scale = "none"
    intercept: bool = False
    model: Literal["linear", "perceptron"] = "linear"
    train: int | None = None
    test: int = 0
    period: float = 0.01
    duration: float = 20.0
    stamp_every: float = 0.04
    seed: int = 0
    seeds: int = 1
    rank: int | Literal["auto"] = "auto"
    regularization: float | Literal["auto"] = "auto"
    method: Method = "auto"
    variants: dict[str, dict[str, Any]] = Field(default_factory=dict)

    def but(self, **changes: Any) -> Self:
        """Return these settings with some changed."""
        return type(self).model_validate({**self.model_dump(), **changes})

    def with_variants(self) -> dict[str, Self]:
        """Return these settings, under an empty name, and those of all variants, by name."""
        return {"": self, **{name: self.but(**changes) for name, changes in self.variants.items()}}


class _Folder:
    """A temporary folder, removed with this object or at the end of the process."""

    def __init__(self) -> None:
        self.path = Path(mkdtemp(prefix="verfedsv-"))
        finalize(self, shutil.rmtree, self.path, ignore_errors=True)


@dataclass(frozen=True, eq=False)
class Trained:
    """A recorded training, whose folder is removed with this object.

    `truth` has the values from the embeddings of all samples in every round, (clients,), NaN unless requested, and
    `truth_errors` their errors.
    """

    training: Training
    settings: Settings
    folder: _Folder
    truth: Floats = field(default_factory=lambda: np.array(np.nan))
    truth_errors: Floats = field(default_factory=lambda: np.array(np.nan))

    @property
    def path(self) -> Path:
        """The folder of the transcript."""
        return self.folder.path

    @cached_property
    def evaluation(self) -> Evaluation:
        """The trained model on all samples: accuracy, embeddings, intercept."""
        return self.training.evaluate()

    @property
    def accuracy(self) -> float:
        """The accuracy on test samples, or on training samples if there are no others."""
        test = self.evaluation.test["accuracy"]
        return self.evaluation.train["accuracy"] if np.isnan(test) else test

    def value(self, **options: Any) -> Valuation:
        """Return the values of all clients, with the settings' rank and lambda unless others are given."""
        used = self.settings
        defaults = {"method": used.method, "rank": used.rank, "regularization": used.regularization}
        return value(self.path, **{**defaults, **options})


def states_of(training: Training) -> list[dict[str, Floats]]:
    """Return what each client's model has learnt."""
    transport = training.transport
    assert isinstance(transport, InProcess)  # noqa: S101  # `build` makes no others
    return [dict(client.state()) for client in transport.clients.values()]


def weights_of(training: Training) -> list[Floats]:
    """Return the weights of each client's linear model, (features, classes)."""
    return [state["weights"] for state in states_of(training)]


def shares_of_last(valuation: Valuation, n_clients: int) -> tuple[list[float], list[float]]:
    """Return the shares of the last clients in percent, and their errors."""
    errors = 100 * valuation.errors[-n_clients:] / valuation.values.sum()
    return (100 * valuation.shares[-n_clients:]).tolist(), errors.tolist()


def uploads_of(transcript: Transcript) -> tuple[list[Array], list[list[Array]]]:
    """Return the batches of a synchronous training, and for each client what it uploaded in each."""
    batches: list[Array] = []
    uploads: dict[str, list[Array]] = {name: [] for name in transcript.clients}
    for record in transcript:
        if isinstance(record, Upload):
            uploads[record.client].append(record.embeddings)
            if len(uploads[record.client]) > len(batches):
                batches.append(record.samples)
    return batches, list(uploads.values())


@cache
def _load(name: str) -> Samples:
    return load(name)


def split(name: str, settings: Settings) -> VerticalData:
    """Return a data set split between the clients of an experiment, its training rows first."""
    data = split_features(_load(settings.source or name), settings.clients, test=0.0)
    if settings.train is None:
        return data
    n_used = min(len(data.labels), settings.train + settings.test)
    chosen = np.random.default_rng(0).permutation(len(data.labels))[:n_used]
    data = take_rows(data, np.concatenate([np.sort(chosen[: settings.train]), np.sort(chosen[settings.train :])]))
    data.is_test[settings.train :] = True
    return data


def build(data: VerticalData, settings: Settings, recorder: Recorder | None = None) -> Training:
    """Return a training before its first round."""
    return Training.in_process(
        data,
        rate=Rate(settings.rate, settings.decay),
        scale=settings.scale,
        model=build_model(settings.model, 32, settings.seed),
        intercept=settings.intercept,
        recorder=recorder,
    )


def schedule(n_train: int, settings: Settings) -> SynchronousSchedule:
    """Return the batches of synchronous training on some samples."""
    if settings.rounds is not None:
        return SynchronousSchedule(settings.batch_size, settings.rounds, settings.seed)
    return SynchronousSchedule.of_epochs(settings.epochs, settings.batch_size, n_train, settings.seed)


def run_rounds(training: Training, settings: Settings) -> Iterator[Training]:
    """Train by FedSGD, yielding the training after each round."""
    for _ in synchronous_rounds(training, schedule(training.server.n_train, settings)):
        yield training


def run_asynchronously(
    training: Training, settings: Settings, slowness: Sequence[int] = (), divisors: Sequence[int] = ()
) -> Iterator[Training]:
    """Train by VAFL on the virtual clock, yielding the training after each time stamp.

    All clients have the same period and batch size; for the last ones, periods are multiplied by their `slowness`, and
    batch sizes divided by their `divisors`.
    """
    n_clients = len(training.server.clients)
    plan = AsynchronousSchedule(
        [settings.period * i for i in [1] * (n_clients - len(slowness)) + [*slowness]],
        [settings.batch_size // i for i in [1] * (n_clients - len(divisors)) + [*divisors]],
        settings.stamp_every,
        round(settings.duration / settings.stamp_every),
        settings.seed,
    )
    for _ in asynchronous_rounds(training, plan, VirtualClock()):
        yield training


def final_loss(data: VerticalData, settings: Settings) -> float:
    """Train by FedSGD without recording; return the loss on all training samples at the end."""
    *_, training = run_rounds(build(data, settings), settings)
    return training.evaluate().train_loss


def train_synchronously(data: VerticalData, settings: Settings, *, with_truth: bool = False) -> Trained:
    """Train by FedSGD and record it; with `with_truth`, embed all samples in every round for the true values."""
    folder = _Folder()
    n_rounds = 0
    with record_training(folder.path, data) as recorder:
        training = build(data, settings, recorder)
        truth = _Truth(training) if with_truth else None
        for _ in run_rounds(training, settings):
            n_rounds += 1
            if truth is not None:
                truth.add_round()
    if truth is None:
        return Trained(training, settings, folder)
    return Trained(training, settings, folder, truth.values / n_rounds, truth.errors / n_rounds)


def train_asynchronously(
    data: VerticalData, settings: Settings, slowness: Sequence[int] = (), divisors: Sequence[int] = ()
) -> Trained:
    """Train by VAFL and record it; see `run_asynchronously`."""
    folder = _Folder()
    with record_training(folder.path, data) as recorder:
        training = build(data, settings, recorder)
        for _ in run_asynchronously(training, settings, slowness, divisors):
            pass
    return Trained(training, settings, folder)


class _Truth:
    """The values of a synchronous training from the embeddings of all training samples, without completion.

    Uploads of a round are embedded before its step, so the embeddings after a step are those of the next round.
    """

    def __init__(self, training: Training) -> None:
        self._training = training
        self._labels = training.server.labels[: training.server.n_train]
        self._method: Method = "exact" if len(training.server.clients) <= FEW else "closed-form"
        self._next = self._embed()
        self._previous, self._offset = map(np.zeros_like, self._next)
        self.values, self.errors = np.zeros((2, len(training.server.clients)))

    def add_round(self) -> None:
        loss, (current, offset) = self._training.server.loss, self._next
        found = shapley_values(
            self._previous, current, self._labels, loss, self._method, offset=offset, previous_offset=self._offset
        )
        self.values, self.errors = self.values + found.values, self.errors + found.errors
        self._previous, self._offset = current, offset
        self._next = self._embed()

    def _embed(self) -> tuple[Floats, Floats]:
        evaluation = self._training.evaluate()
        intercept = 0.0 if evaluation.intercept is None else evaluation.intercept
        return evaluation.embeddings, np.zeros(evaluation.embeddings.shape[1:]) + intercept
