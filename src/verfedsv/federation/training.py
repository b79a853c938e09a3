"""A training: the server side, and the transport that connects it to the client sides."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from threading import Event, Lock
from types import MappingProxyType
from typing import Any

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.data.preparation import Scale
from verfedsv.data.vertical import VerticalData
from verfedsv.errors import ClientWarning, InputError
from verfedsv.federation.checkpoints import SERVER, client_file
from verfedsv.federation.clients import Client
from verfedsv.federation.evaluation import Evaluation
from verfedsv.federation.heads import Head
from verfedsv.federation.messages import Embed, Gradients, Predict, Request
from verfedsv.federation.models import BuildModel, Linear, Rate, State
from verfedsv.federation.optimizers import BuildOptimizer, PlainDescent
from verfedsv.federation.server import Server
from verfedsv.federation.transports import InProcess, Transport, ask, raise_invalid
from verfedsv.texts import LONGEST_NAME, shortened
from verfedsv.transcript import Recorder

NOTHING: Mapping[str, Any] = MappingProxyType({})

_STEP = 0.2
"""Seconds after which it is seen that a client is away."""


def _warn(request: Request, error: InputError) -> None:
    name = shortened(request.client, LONGEST_NAME)
    warnings.warn(f"round {request.round}: the answer of {name} cannot be used: {error}", ClientWarning, 2)


@dataclass(frozen=True)
class Training:
    """Carries messages between the server and its clients, and keeps nothing but gradients on their way.

    A request without an answer after `timeout` seconds (None: no limit) is sent again, `n_tries` times in all. A client
    that still has not answered is absent from the round. So is one that refuses, or whose answer is invalid:
    `on_invalid` is then called with the request and the error. By default it warns; if it raises, the training ends.
    `on_missing` is called with a request that was not answered, and may raise as well.

    With `defers_steps`, gradients travel with the client's next upload, or are sent before it is asked for anything
    else: a round is one exchange, not two. A client that is absent from that upload does not take the step.

    Clients that are `away` as a training continues need not restore their checkpoints for it to go on: they do when
    they are back, as `on_missing` has to see to.

    With `is_there`, which says whether a client can be reached, nobody waits for another: evaluations leave out clients
    that are away, checkpoints are written when all are there, and only a client's own steps wait for it.
    """

    server: Server
    transport: Transport
    timeout: float | None = None
    n_tries: int = 3
    on_invalid: Callable[[Request, InputError], None] = _warn
    on_missing: Callable[[Request], None] = lambda request: None  # noqa: ARG005
    is_there: Callable[[str], bool] | None = None
    defers_steps: bool = False
    away: Collection[str] = ()
    _steps: dict[str, Gradients] = field(default_factory=dict, init=False, repr=False)  # that were deferred
    _is_over: Event = field(default_factory=Event, init=False, repr=False)
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
        head: Head | None = None,
        recorder: Recorder | None = None,
        checkpoints: Path | None = None,
        rates: Mapping[str, Rate] = NOTHING,
        scales: Mapping[str, Scale] = NOTHING,
        optimizer: BuildOptimizer = PlainDescent,
        class_weights: Floats | None = None,
        members: Sequence[str] | None = None,
    ) -> Training:
        """Return a training on vertically split data, with all parties in this process.

        The `head` is by default the sum, with an `intercept` or not; models are built as wide as it takes embeddings.
        `rates` and `scales` are those of single clients, by name. `optimizer` takes the steps of the server's
        intercept; those of the clients belong to their models. `class_weights` are as for `Server`. `members` take part
        from the start, None for all; the others can join later.

        An invalid answer ends it: within one process, it means too large a learning rate or a bug, not an attack.
        Checkpoints are written to the folder `checkpoints`, if that is given.
        """
        server = build_server(
            data,
            rate=rate,
            intercept=intercept,
            head=head,
            recorder=recorder,
            checkpoints=checkpoints,
            optimizer=optimizer,
            class_weights=class_weights,
            members=members,
        )
        clients = [
            Client.from_columns(
                columns,
                data.is_test,
                width=data.width if head is None else head.width_of(columns.name),
                rate=rates.get(columns.name, rate),
                scale=scales.get(columns.name, scale),
                model=model,
                checkpoint=None if checkpoints is None else checkpoints / client_file(m),
            )
            for m, columns in enumerate(data.clients)
        ]
        return cls(server, InProcess(clients), on_invalid=raise_invalid)

    def set_members(self, clients: Collection[str]) -> None:
        """Let these clients take part from now on, and nobody else; those that already do are not affected."""
        present = self.server.present
        for name in clients:
            if name not in present:
                self.server.join(name)
        for name in present:
            if name not in clients:
                with self._turn_while_there(name) as there:  # not in the middle of its step
                    self._take_steps(there)
                    self.server.leave(name)

    def train_round(self, batch: Array, absent: Collection[str] = ()) -> None:
        """Let all clients but those that are `absent` upload the same batch, and take a step."""
        with self._turn(*self.server.present):
            self._ask([*map(self._with_step, self.server.begin_round(batch, absent))], self.server.receive)
            steps = self.server.end_round()
            if self.defers_steps:
                self._steps.update({step.client: step for step in steps})
            else:
                self._ask(steps)

    def train_client(self, client: str, samples: Array, batch: Array, now: Callable[[], float]) -> None:
        """Let one client upload some samples, and take a step from the gradients of a batch, unless it has left."""
        with self._turn(client):
            if client not in self.server.present:
                return
            request = self._with_step(self.server.request(client, samples))
            receive = partial(self.server.receive, batch=batch, now=now)
            ask = self._ask if self.is_there is None else partial(self._ask_while, self._is_going_on)
            steps = ask([request], receive)
            if self.defers_steps:
                self._steps.update(steps)
            else:
                ask([*steps.values()])

    def _with_step(self, request: Embed) -> Embed:
        """Return a request with the client's deferred gradients, if there are any."""
        step = self._steps.pop(request.client, None)
        return request if step is None else replace(request, gradients=step)

    def _take_steps(self, names: Collection[str]) -> None:
        """Let these clients take the steps that were deferred."""
        steps = [self._steps.pop(name) for name in names if name in self._steps]
        if self.is_there is None:
            self._ask(steps)
        else:
            self._ask_while(self.is_there, steps)

    def end(self) -> None:
        """Let nobody wait any longer for clients that are away."""
        self._is_over.set()

    def _is_going_on(self, _: str) -> bool:
        return not self._is_over.is_set()

    def evaluate(self) -> Evaluation:
        """Return the measures of the model, from embeddings of all samples, of which it asks for a part at a time."""
        with self._turn_while_there(*self.server.present) as names:  # no client takes a step between two parts
            self._take_steps(names)
            parts = self.server.parts()
            # All at once need not be gathered.
            asked = [None] if len(parts) == 1 else parts
            return self.server.evaluate(self._predict(samples, names) for samples in asked)

    def predict(self, samples: Array) -> Floats:
        """Return the scores of some samples, (samples, classes); of amounts, in the units of the labels."""
        with self._turn_while_there(*self.server.present) as names:
            self._take_steps(names)
            return self.server.scores(self._predict(samples, names), samples)

    def _predict(self, samples: Array | None, names: Collection[str]) -> dict[str, Floats]:
        requests = [request for request in self.server.request_all(Predict, samples) if request.client in names]
        use = partial(self.server.embeddings_of, samples=samples)
        return self._ask(requests, use) if self.is_there is None else self._ask_while(self.is_there, requests, use)

    def save(self, extra: State) -> None:
        """Let all parties write a checkpoint, the server's with `extra`.

        A client that has left since the last one is asked too, as it may come back. If one that takes part fails, the
        previous checkpoint stays in force.
        """
        with self._turn_while_there(*self.server.present) as names:
            if not all(name in names for name in self.server.present):
                return
            self._take_steps(names)
            requests = self.server.request_saves()
            saved = self._ask(requests) if self.is_there is None else self._ask_while(self.is_there, requests)
            if all(name in saved for name in self.server.present):
                self.server.save(extra, saved)

    def restore(self, extra: State) -> dict[str, Array] | None:
        """Let all parties restore the last checkpoint; return the arrays that `save` got, or None without a checkpoint.

        `extra` has their names, types and shapes.
        """
        kept = self.server.load(extra)
        self._steps.clear()
        if kept is not None:
            answered = self._ask(self.server.request_restores())
            if missing := set(self.server.present) - set(answered) - {*self.away}:
                raise InputError(f"training cannot continue: no valid answer from {', '.join(sorted(missing))}")
        return kept

    @contextmanager
    def _turn(self, *clients: str) -> Iterator[None]:
        """Keep other threads from asking these clients: messages stay in order, and no step is interrupted."""
        with ExitStack() as held:
            for client in clients:
                held.enter_context(self._turns.setdefault(client, Lock()))
            yield

    @contextmanager
    def _turn_while_there(self, *clients: str) -> Iterator[list[str]]:
        """Like `_turn`, but do not wait for clients that are away; yield the names of the others."""
        names = []
        with ExitStack() as held:
            for client in clients:
                turn = self._turns.setdefault(client, Lock())
                while not (is_held := turn.acquire(timeout=_STEP)):
                    if self.is_there is not None and not self.is_there(client):
                        break
                if is_held:
                    held.callback(turn.release)
                    names.append(client)
            yield [name for name in names if self.is_there is None or self.is_there(name)]

    def _ask_while(
        self,
        is_awaited: Callable[[str], bool],
        requests: Sequence[Request],
        use: Callable[[Any], Any] = lambda answer: answer,
    ) -> dict[str, Any]:
        """Like `_ask`, but wait for a client only while it is awaited; `on_missing` is told of the time limit alone."""
        end = math.inf if self.timeout is None else time.monotonic() + self.timeout
        results, invalid, left = dict[str, Any](), set[str](), [*requests]

        def note(request: Request, error: InputError) -> None:
            invalid.add(request.client)
            self.on_invalid(request, error)

        while left:
            results |= ask(self.transport, left, use, note, max(0.0, min(_STEP, end - time.monotonic())), 1)
            left = [each for each in left if each.client not in results and each.client not in invalid]
            if time.monotonic() >= end:
                for request in left:
                    self.on_missing(request)
                break
            left = [each for each in left if is_awaited(each.client)]
        return results

    def _ask(self, requests: Sequence[Request], use: Callable[[Any], Any] = lambda answer: answer) -> dict[str, Any]:
        """Return what `use` makes of the answers, by client, without those that are missing or invalid."""
        return ask(self.transport, requests, use, self.on_invalid, self.timeout, self.n_tries, self._tell_missing)

    def _tell_missing(self, request: Request) -> None:
        """Tell of a client that did not answer, unless it has left, as it was allowed to."""
        if request.client in self.server.present:
            self.on_missing(request)


def build_server(
    data: VerticalData,
    *,
    rate: Rate,
    intercept: bool = False,
    head: Head | None = None,
    recorder: Recorder | None = None,
    checkpoints: Path | None = None,
    optimizer: BuildOptimizer = PlainDescent,
    class_weights: Floats | None = None,
    members: Sequence[str] | None = None,
) -> Server:
    """Return the server of a training, which takes nothing but labels and names from the data."""
    n_train = int((~data.is_test).sum())
    if n_train == 0:
        raise InputError("there are no samples to train on")
    server = Server(
        data.targets[np.argsort(data.is_test, kind="stable")],
        data.names,
        data.width,
        data.loss,
        n_train=n_train,
        label_scale=data.label_scale,
        intercept=rate if intercept else None,
        head=head,
        checkpoint=None if checkpoints is None else checkpoints / SERVER,
        classes=data.classes,
        optimizer=optimizer,
        class_weights=class_weights,
        members=members,
    )
    if recorder is not None:
        server.record(recorder)
    return server
