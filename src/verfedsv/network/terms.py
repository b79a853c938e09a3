"""How the clients begin a training over a network: what each learns with, and that all have begun."""

from __future__ import annotations

import secrets
from collections.abc import Collection
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from verfedsv.arrays import Array
from verfedsv.data.vertical import ClientData, VerticalData
from verfedsv.errors import InputError, MissingClientError
from verfedsv.federation import Client, Rate
from verfedsv.federation.messages import Done, Refusal
from verfedsv.federation.models import build_model
from verfedsv.federation.optimizers import build_optimizer
from verfedsv.network.hub import Hub
from verfedsv.network.messages import Begin, Learning
from verfedsv.runs.config import ClientSection, Config
from verfedsv.texts import count, shortened

_WIDEST = 2**16
"""Hidden units, and numbers in an embedding, that a server can ask for."""


def learning_of(config: Config, name: str, width: int) -> Learning:
    """Return how a client learns, with embeddings of `width` numbers."""
    section, model = config.training, config.model
    own = {client.name: client for client in config.client}.get(name) or ClientSection(name=name)
    return Learning(
        model.kind,
        model.hidden,
        width,
        section.seed,
        own.rate or section.rate,
        section.decay,
        section.optimizer,
        section.momentum,
        own.scale or config.data.used_scale,
    )


def describe_terms(begin: Begin) -> str:
    """Return what a training is to do, and what of each sample it shows the server."""
    learning = begin.learning
    model = learning.model + (f" of {learning.hidden:,} units" if learning.model == "perceptron" else "")
    return (
        f"training of {count(begin.n_planned, 'round')} on {count(len(begin.samples), 'sample')}, model {model}, rate "
        f"{learning.rate:g}; the server gets {count(learning.width, 'number')} for each sample"
    )


def check_size(learning: Learning) -> None:
    """Raise InputError if a server asks for a model that is too large."""
    if not (1 <= learning.width <= _WIDEST and 1 <= learning.hidden <= _WIDEST):
        raise InputError(
            f"a model with {learning.hidden:,} hidden units and embeddings of {learning.width:,} numbers is not built; "
            f"at most {_WIDEST:,} are"
        )


def client_of(data: ClientData, is_test: NDArray[np.bool_], learning: Learning, checkpoint: Path) -> Client:
    """Return a client with these columns that learns by the terms; see `Client` for `checkpoint`."""
    optimizer = build_optimizer(learning.optimizer, learning.momentum)
    return Client.from_columns(
        data,
        is_test,
        width=learning.width,
        rate=Rate(learning.rate, learning.decay),  # type: ignore[arg-type]  # Rate checks it
        scale=learning.scale,  # type: ignore[arg-type]  # Preparation checks it
        model=build_model(learning.model, learning.hidden, learning.seed, optimizer),
        checkpoint=checkpoint,
    )


def begin_all(
    hub: Hub,
    data: VerticalData,
    samples: Array,
    terms: dict[str, Learning],
    n_planned: int,
    deadline: float,
    away: Collection[str] = (),
) -> str:
    """Let clients begin a training with new models; return its name.

    `samples` are those of the aligned samples that are used. Raises InputError if one refuses, MissingClientError if
    one does not begin within `deadline` seconds. Those that are `away`, and still are, begin when they are back.
    """
    start, is_test = secrets.token_hex(16), data.is_test.astype(np.uint8)
    begin = {name: Begin(name, 0, 1, start, samples, is_test, own, n_planned) for name, own in terms.items()}
    for name in [name for name in away if not hub.is_there(name)]:
        hub.catch_up_later(name, begin.pop(name))
    found = {answer.client: answer for answer in hub.exchange([*begin.values()], deadline)}  # type: ignore[list-item]
    for name in begin:
        answer = found.get(name)
        if isinstance(answer, Refusal):
            raise InputError(f"{name!r} cannot begin: {shortened(answer.reason, 1000)}")
        if not isinstance(answer, Done):
            raise MissingClientError(f"{name!r} did not begin within {deadline:g} seconds")
    return start
