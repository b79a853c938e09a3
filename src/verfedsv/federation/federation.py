"""The parties of a training, and what both ways of training are made of: upload, record, query, learn, evaluate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from threading import RLock
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from verfedsv.data.preparation import Scale, prepare
from verfedsv.data.vertical import VerticalData
from verfedsv.errors import InputError
from verfedsv.federation.clients import Client
from verfedsv.federation.models import Linear, Model, Rate, State
from verfedsv.federation.server import Server, Transport
from verfedsv.federation.tape import Tape
from verfedsv.losses import Array, Floats

BuildModel = Callable[[int, int], Model]
"""Makes a client's model from its numbers of features and classes."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How well the model does after a number of rounds; the test figures are NaN if there is nothing to test on.

    `embeddings` are those of all clients and training samples, (clients, samples, classes); `intercept` is the server's
    own part, (classes,), or None if it has none.
    """

    n_rounds: int
    time: float
    train_loss: float
    train_accuracy: float
    test_loss: float
    test_accuracy: float
    embeddings: Floats
    intercept: Floats | None = None

    def metrics(self) -> dict[str, float | None]:
        """Return the figures without the embeddings; None for what there is not."""
        figures = {name: value for name, value in vars(self).items() if name not in ("embeddings", "intercept")}
        return {name: None if value != value else value for name, value in figures.items()}


class Moment(NamedTuple):
    """A point of a training: how many rounds are done, and when that was."""

    n_rounds: int
    time: float


@dataclass
class Federation:
    """Clients and a server. Clients reach the server through `transport` alone, which may be the server itself.

    When clients are threads, whoever holds `lock` finds no step half done: uploads, records, queries and steps of
    models are under it; embedding a client's own batch is not. `labels` are those of the training samples, then those
    of samples to test on.
    """

    clients: Sequence[Client]
    server: Server
    labels: NDArray[np.intp]
    n_train: int
    transport: Transport
    tape: Tape = field(default_factory=lambda: Tape(None))
    lock: RLock = field(default_factory=RLock)

    def upload(self, client: Client, samples: Array) -> Floats:
        """Let a client embed some samples and upload them; return what it uploaded."""
        embeddings = client.embed(samples)
        self.receive(client, samples, embeddings)
        return embeddings

    def receive(self, client: Client, samples: Array, embeddings: Floats) -> None:
        """Bring a client's embeddings to the server."""
        self.transport.upload(client.name, samples, embeddings)

    def learn(self, client: Client, samples: Array) -> None:
        """Let a client ask for the gradients of some samples and take a step."""
        with self.lock:
            client.learn(samples, self.transport.query(client.name, samples))

    def offset(self, n_samples: int) -> Floats | None:
        """Return the server's own part for that many samples, or None if it has none."""
        own = self.server.intercept
        return None if own is None else np.tile(own, (n_samples, 1))

    def evaluate(self, n_rounds: int, time: float) -> Evaluation:
        """Return how well the model does, from embeddings of all samples."""
        with self.lock:
            own = self.server.intercept
        embeddings = np.stack([self._embed_all(client) for client in self.clients])
        total = embeddings.sum(axis=0) + (0.0 if own is None else own)
        train = self._score(total[: self.n_train], self.labels[: self.n_train])
        test = self._score(total[self.n_train :], self.labels[self.n_train :])
        return Evaluation(n_rounds, time, *train, *test, embeddings[:, : self.n_train], own)

    def _embed_all(self, client: Client) -> Floats:
        # The lock is let go between clients: evaluation takes long, and the others train on.
        with self.lock:
            return client.embed(slice(None))

    def _score(self, x: Floats, labels: NDArray[np.intp]) -> tuple[float, float]:
        """Return mean loss and accuracy of summed embeddings."""
        if len(labels) == 0:
            return np.nan, np.nan
        loss = self.server.loss.value(x, self.server.loss.encode(labels, self.server.n_classes))
        guess = x.argmax(axis=1) if self.server.n_classes > 1 else x[:, 0] > 0
        return float(loss.mean()), float(np.mean(guess == labels))

    def state(self) -> dict[str, Array]:
        """Return a copy of everything that `restore` needs to go on exactly from here."""
        with self.lock:
            parts = {"server": self.server.state(), **{f"client {m}": c.state() for m, c in enumerate(self.clients)}}
        return {f"{part}/{name}": value for part, state in parts.items() for name, value in state.items()}

    def restore(self, state: Mapping[str, Array]) -> None:
        """Take up a state."""
        self.server.restore(_part(state, "server"))
        for m, client in enumerate(self.clients):
            client.restore(_part(state, f"client {m}"))


def _part(state: Mapping[str, Array], prefix: str) -> State:
    return {name.removeprefix(f"{prefix}/"): value for name, value in state.items() if name.startswith(f"{prefix}/")}


def federate(
    data: VerticalData,
    *,
    rate: Rate,
    scale: Scale = "none",
    model: BuildModel = Linear,
    loss: str | None = None,
    intercept: bool = False,
    transport: Callable[[Server], Transport] | None = None,
    tape: Tape | None = None,
) -> Federation:
    """Return the parties of a training on vertically split data, each client preparing its own columns.

    The loss is logistic for two classes and softmax for more, unless said otherwise.
    """
    order = np.concatenate([np.flatnonzero(~data.is_test), np.flatnonzero(data.is_test)])
    n_train = int((~data.is_test).sum())
    if n_train == 0:
        raise InputError("there are no samples to train on")
    loss = loss or ("logistic" if data.n_classes == 2 else "softmax")
    n_classes = 1 if loss == "logistic" else data.n_classes
    clients = []
    for client in data.clients:
        features: Any = prepare(client, scale, ~data.is_test)[order]
        clients.append(Client(client.name, features, model(int(features.shape[1]), n_classes), rate))
    labels = data.labels[order]
    server = Server(labels[:n_train], data.names, n_classes, loss, intercept=rate if intercept else None)
    reached = server if transport is None else transport(server)
    return Federation(clients, server, labels, n_train, reached, tape or Tape(None))
