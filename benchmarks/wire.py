"""Trainings of our own, and all that crosses in them between the server and one client."""

from __future__ import annotations

import bz2
import os
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np

from benchmarks.attacks import Floats, Labels, Numbers
from verfedsv.data import ClientFile, Scale, VerticalData, join_tables, load, prepare, split_features
from verfedsv.data.catalogue import FOLDER_VARIABLE
from verfedsv.federation import (
    Adam,
    InProcess,
    Linear,
    Perceptron,
    Rate,
    SynchronousSchedule,
    Training,
    synchronous_rounds,
)
from verfedsv.federation.messages import Answer, Embed, Gradients, Predict, Request
from verfedsv.federation.torch_heads import TorchHead
from verfedsv.head_layers import mlp_layers

EVERY = 20
"""Rounds between evaluations, the default of `verfedsv run`."""

WIDTH, UNITS, LINEAR_RATE, NETWORK_RATE = 8, 64, 0.02, 0.002


@dataclass(frozen=True)
class Case:
    """A data set, the client to look at, and the batches; epochs of linear models under a sum, and under a network."""

    name: str
    client: str
    batch: int
    epochs: tuple[int, int]
    scale: Scale = "standardise"
    is_in_files: bool = False

    def load(self, seed: int) -> VerticalData:
        """Return the data; test samples are the data set's own, or drawn."""
        if not self.is_in_files:
            return split_features(load(self.name), 4)
        with tempfile.TemporaryDirectory() as folder:
            files = {name: Path(folder) / f"{name}.csv" for name in ("guest", "host")}
            for name, path in files.items():
                found = next((Path(os.environ[FOLDER_VARIABLE]) / self.name).glob(f"*_{name}.csv*"))
                content = found.read_bytes()
                path.write_bytes(bz2.decompress(content) if found.suffix == ".bz2" else content)
            return join_tables(
                {name: ClientFile(path, "id") for name, path in files.items()}, ("guest", "y"), seed=seed
            )


CASES = [
    Case("adult", "client 2", 1000, (20, 5), "none"),
    Case("credit", "host", 500, (20, 10), is_in_files=True),
    Case("breast", "host", 50, (40, 20), is_in_files=True),
]
LETTER, DIABETES = Case("letter", "client 2", 250, (20, 0)), Case("diabetes", "client 2", 50, (20, 0))


@dataclass(frozen=True)
class Parties:
    """What the clients' models and the head are."""

    title: str
    model: Literal["linear", "perceptron"]
    head: Literal["sum", "mlp"]


SUM = Parties("linear, sum", "linear", "sum")
PARTIES = [SUM, Parties("linear, network", "linear", "mlp"), Parties("perceptron, network", "perceptron", "mlp")]


class Tap(InProcess):
    """A transport that keeps what passes; gradients with the samples that they are for, as the client knows them."""

    def __init__(self, inner: InProcess) -> None:
        super().__init__(inner.clients.values())
        self.crossed: list[tuple[Request, Answer]] = []
        self._uploaded: dict[str, Any] = {}

    def exchange(self, requests: Sequence[Request], timeout: float | None = None) -> list[Answer]:
        answers = super().exchange(requests, timeout)
        for asked, answer in zip(requests, answers, strict=True):
            if isinstance(asked, Embed):
                self._uploaded[asked.client] = asked.samples
            if isinstance(asked, Gradients) and asked.samples is None:
                asked = replace(asked, samples=self._uploaded[asked.client])
            self.crossed.append((asked, answer))
        return answers

    def requests(self, kind: type[Request], client: str) -> list[tuple[Any, Any]]:
        """Return the requests of a kind that a client got, and its answers."""
        return [(asked, answer) for asked, answer in self.crossed if type(asked) is kind and asked.client == client]


@dataclass(frozen=True, eq=False)
class View:
    """What crossed between the server and one client, and what attacks are judged by.

    `gradients` and `uploads` are (epochs, training samples, width), and so is `others`: the sum of all other clients'
    embeddings and, under a sum, the intercept. `rounds`, (epochs, training samples), are those of the uploads.
    `evaluations` are the embeddings sent for these, (evaluations, samples, width), training samples first. `columns`,
    (samples, columns), are the client's, prepared. `accuracy` is the consortium's on test samples.
    """

    gradients: Floats
    uploads: Floats
    others: Floats
    rounds: Numbers
    evaluations: Floats
    columns: Floats
    labels: Labels
    accuracy: float

    @property
    def n_train(self) -> int:
        return int(self.gradients.shape[1])


def build(data: VerticalData, parties: Parties, scale: Scale, seed: int) -> Training:
    """Return a training by Adam, with an intercept or with a network at the server."""
    head, rate = None, Rate(LINEAR_RATE if parties.head == "sum" else NETWORK_RATE)
    if parties.head == "mlp":
        widths = dict.fromkeys(data.names, WIDTH)
        head = TorchHead(mlp_layers(sum(widths.values()), [UNITS], data.width), widths, rate, seed=seed)
    options: dict[str, Any] = {"scale": scale, "head": head, "intercept": head is None, "optimizer": Adam}
    if parties.model == "perceptron":
        return Training.in_process(data, rate=rate, model=partial(Perceptron, seed=seed, optimizer=Adam), **options)
    return Training.in_process(data, rate=rate, model=partial(Linear, optimizer=Adam), **options)


def watch(data: VerticalData, case: Case, parties: Parties, seed: int, n_epochs: int | None = None) -> View:
    """Train, and return what crossed between the server and the client of the case."""
    made, n_train = build(data, parties, case.scale, seed), int((~data.is_test).sum())
    tap, head = Tap(cast("InProcess", made.transport)), made.server.head
    training = Training(made.server, tap)
    n_epochs = n_epochs or case.epochs[parties is not SUM]
    schedule = SynchronousSchedule.of_epochs(n_epochs, case.batch, n_train, seed)
    offsets = [head.offset]
    for t in synchronous_rounds(training, schedule):
        offsets.append(head.offset)
        if t % EVERY == 0 or t == schedule.n_rounds:
            evaluation = training.evaluate()

    def by_epoch(kind: type[Request], client: str, content: Callable[[Any, Any], Any]) -> Floats:
        result = np.empty((n_epochs, n_train, head.width_of(client)))
        for asked, answer in tap.requests(kind, client):
            result[(asked.round - 1) * n_epochs // schedule.n_rounds, asked.samples] = content(asked, answer)
        return result

    uploads = {name: by_epoch(Embed, name, lambda _, answer: answer.embeddings) for name in data.names}
    own, own_uploads = data.clients[data.names.index(case.client)], uploads.pop(case.client)
    others = np.sum([*uploads.values()], axis=0)
    if parties.head == "sum":
        others += by_epoch(Embed, case.client, lambda asked, _: offsets[asked.round - 1])
    order = np.argsort(data.is_test, kind="stable")
    columns: Any = prepare(own, case.scale, ~data.is_test)[order]
    return View(
        gradients=by_epoch(Gradients, case.client, lambda asked, _: asked.values),
        uploads=own_uploads,
        others=others,
        rounds=by_epoch(Embed, case.client, lambda asked, _: asked.round)[:, :, 0].astype(np.intp),
        evaluations=np.stack([answer.embeddings for _, answer in tap.requests(Predict, case.client)]),
        columns=columns if isinstance(columns, np.ndarray) else columns.toarray(),
        labels=data.targets[order],
        accuracy=evaluation.test.get("accuracy", np.nan),
    )
