"""A training: the server side, and the transport that connects it to the client sides."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from verfedsv.data.preparation import Scale
from verfedsv.data.vertical import VerticalData
from verfedsv.errors import ClientWarning, InputError
from verfedsv.federation.checkpoints import SERVER, client_file
from verfedsv.federation.clients import BuildModel, Client
from verfedsv.federation.evaluation import Evaluation
from verfedsv.federation.messages import Predict, Request, Restore, Save
from verfedsv.federation.models import Linear, Rate, State
from verfedsv.federation.server import Server
from verfedsv.federation.transports import InProcess, Transport, ask, raise_invalid
from verfedsv.losses import Array, Floats
from verfedsv.texts import LONGEST_NAME, shortened
from verfedsv.transcript import Recorder


def _warn(request: Request, error: InputError) -> None:
    name = shortened(request.client, LONGEST_NAME)
    warnings.warn(f"round {request.round}: the answer of {name} cannot be used: {error}", ClientWarning, 2)


@dataclass(frozen=True)
class Training:
    """Carries messages between the server and its clients, and has no state of its own.

    A request without an answer after `timeout` seconds (None: no limit) is sent again, `n_tries` times in all. A client
    that still has not answered is absent from the round. So is one that refuses, or whose answer is invalid:
    `on_invalid` is then called with the request and the error. By default it warns; if it raises, the training ends.
    """

    server: Server
    transport: Transport
    timeout: float | None = None
    n_tries: int = 3
    on_invalid: Callable[[Request, InputError], None] = _warn
    _turns: dict[str, Lock] = field(default_factory=dict, init=False, repr=False)

    @classmethod
    def in_process(
        cls,
        data: VerticalData,
        *,
        rate: Rate,
        scale: Scale = "none",
        model: BuildModel = Linear,
        intercept: bool = False,
        recorder: Recorder | None = None,
        checkpoints: Path | None = None,
    ) -> Training:
        """Return a training on vertically split data, with all parties in this process.

        An invalid answer ends it: within one process, it means too large a learning rate or a bug, not an attack.
        Checkpoints are written to the folder `checkpoints`, if that is given.
        """
        n_train = int((~data.is_test).sum())
        if n_train == 0:
            raise InputError("there are no samples to train on")
        clients = [
            Client.from_columns(
                columns,
                data.is_test,
                n_classes=data.width,
                rate=rate,
                scale=scale,
                model=model,
                checkpoint=None if checkpoints is None else checkpoints / client_file(m),
            )
            for m, columns in enumerate(data.clients)
        ]
        server = Server(
            data.targets[np.argsort(data.is_test, kind="stable")],
            data.names,
            data.width,
            data.loss,
            n_train=n_train,
            label_scale=data.label_scale,
            intercept=rate if intercept else None,
            checkpoint=None if checkpoints is None else checkpoints / SERVER,
            classes=data.classes,
        )
        if recorder is not None:
            server.record(recorder)
        return cls(server, InProcess(clients), on_invalid=raise_invalid)

    def train_round(self, batch: Array) -> None:
        """Let all clients upload the same batch, and take a step."""
        with self._turn(*self.server.present):
            self._ask(self.server.begin_round(batch), self.server.receive)
            self._ask(self.server.end_round())

    def train_client(self, client: str, samples: Array, batch: Array, now: Callable[[], float]) -> None:
        """Let one client upload some samples, and take a step from the gradients of a batch."""
        with self._turn(client):
            request = self.server.request(client, samples)
            self._ask([*self._ask([request], partial(self.server.receive, batch=batch, now=now)).values()])

    def evaluate(self) -> Evaluation:
        """Return the measures of the model, from embeddings of all samples."""
        return self.server.evaluate(self._predict(None))

    def predict(self, samples: Array) -> Floats:
        """Return the scores of some samples, (samples, classes); of amounts, in the units of the labels."""
        return self.server.scores(self._predict(samples), samples)

    def _predict(self, samples: Array | None) -> dict[str, Floats]:
        with self._turn(*self.server.present):
            requests = self.server.request_all(Predict, samples)
            return self._ask(requests, partial(self.server.embeddings_of, samples=samples))

    def save(self, extra: State) -> None:
        """Let all parties write a checkpoint, the server's with `extra`.

        If a client fails, the previous checkpoint stays in force.
        """
        with self._turn(*self.server.present):
            requests = self.server.request_all(Save, self.server.saved_round)
            if len(self._ask(requests)) == len(requests):
                self.server.save(extra)

    def restore(self, extra: State) -> dict[str, Array] | None:
        """Let all parties restore the last checkpoint; return the arrays that `save` got, or None without a checkpoint.

        `extra` has their names, types and shapes.
        """
        kept = self.server.load(extra)
        if kept is not None:
            requests = self.server.request_all(Restore)
            if missing := {request.client for request in requests} - set(self._ask(requests)):
                raise InputError(f"training cannot continue: no valid answer from {', '.join(sorted(missing))}")
        return kept

    @contextmanager
    def _turn(self, *clients: str) -> Iterator[None]:
        """Keep other threads from asking these clients: messages stay in order, and no step is interrupted."""
        with ExitStack() as held:
            for client in clients:
                held.enter_context(self._turns.setdefault(client, Lock()))
            yield

    def _ask(self, requests: Sequence[Request], use: Callable[[Any], Any] = lambda answer: answer) -> dict[str, Any]:
        """Return what `use` makes of the answers, by client, without those that are missing or invalid."""
        return ask(self.transport, requests, use, self.on_invalid, self.timeout, self.n_tries)
