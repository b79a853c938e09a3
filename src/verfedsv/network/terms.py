"""What a client learns with in a training over a network, as the server asks. Clients import no compiled loops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from verfedsv.data.vertical import ClientData
from verfedsv.errors import InputError
from verfedsv.federation import Client, Rate
from verfedsv.federation.models import build_model
from verfedsv.federation.optimizers import build_optimizer
from verfedsv.network.messages import Begin, Learning
from verfedsv.texts import count

_WIDEST = 2**16
"""Hidden units, and numbers in an embedding, that a server can ask for."""


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
