"""The messages of a network beside those of training: a connection's beginning and end, the terms, files for clients.

    client: Hello                               server: Welcome, or the connection is refused with a reason
    server: Begin(terms)                        client: Done, with a new model
    server: Deliver(name, content)              client: Done
    server: End(reason)

Everything in between is what `federation.messages` and `alignment.messages` have.
"""

from __future__ import annotations

from dataclasses import dataclass

from verfedsv.arrays import Array
from verfedsv.federation.messages import Message

PROTOCOL = 1
"""The version of the protocol that this package speaks; parties with another one are refused."""


@dataclass(eq=False, slots=True)
class Hello(Message):
    """The first message of a client; see consortium.proto for its fields."""

    protocol: int
    version: str
    name: str
    session: str
    time: float
    purpose: str
    start: str
    alignment: str


@dataclass(eq=False, slots=True)
class Welcome(Message):
    """The server's answer to Hello; `about` says in words what will be trained."""

    protocol: int
    version: str
    name: str
    time: float
    about: str


@dataclass(eq=False, slots=True)
class End(Message):
    """The server ends the connection; if the training is not finished, the client may come back."""

    reason: str
    is_finished: bool


@dataclass(frozen=True)
class Learning:
    """How a client learns: its model, with embeddings of `width` numbers, the optimiser, the scale of its columns."""

    model: str
    hidden: int
    width: int
    seed: int
    rate: float
    decay: str
    optimizer: str
    momentum: float
    scale: str


@dataclass(eq=False, slots=True)
class Begin(Message):
    """Begin a training, named `start`, anew; what was learnt before is forgotten, but for checkpoints.

    `samples` are those of the aligned samples that are used, in this order, and `is_test` marks, (samples,), those that
    nobody trains on. `n_planned` rounds are planned.
    """

    start: str
    samples: Array
    is_test: Array
    learning: Learning
    n_planned: int


@dataclass(eq=False, slots=True)
class Deliver(Message):
    """A file for the client, such as its extract or the signed statement."""

    name: str
    content: bytes
