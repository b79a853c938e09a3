"""How the server begins a training over a network: what each client learns with, and that all have begun."""

from __future__ import annotations

import secrets
from collections.abc import Collection

import numpy as np

from verfedsv.arrays import Array
from verfedsv.data.vertical import VerticalData
from verfedsv.errors import InputError, MissingClientError
from verfedsv.federation.messages import Done, Refusal
from verfedsv.network.hub import Hub
from verfedsv.network.messages import Begin, Learning
from verfedsv.runs.config import ClientSection, Config
from verfedsv.texts import shortened


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
