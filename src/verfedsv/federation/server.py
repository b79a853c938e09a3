"""The server: labels, the loss, the latest embeddings of all clients, and optionally an intercept of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike

from verfedsv.federation.batches import keep, same
from verfedsv.federation.models import Rate, State
from verfedsv.losses import Array, Floats, Loss, get_loss


class Transport(Protocol):
    """What clients can ask of the server. Nothing else crosses between them."""

    def upload(self, client: str, samples: Array, embeddings: Floats) -> None:
        """Give the server the embeddings of some samples."""

    def query(self, client: str, samples: Array) -> Floats:
        """Return the gradients of the loss by the summed embeddings of some samples, (samples, classes)."""


class Server:
    """Holds the labels of the training samples and the latest embeddings of all clients, zeros at first.

    With an `intercept`, the server learns a number per class that is added to every summed embedding, by steps of that
    rate: one for each batch that gradients are asked for after an upload.
    """

    def __init__(
        self,
        labels: ArrayLike,
        clients: Sequence[str],
        n_classes: int,
        loss: str | Loss = "logistic",
        *,
        intercept: Rate | None = None,
    ) -> None:
        self.loss = get_loss(loss)
        self.clients = tuple(clients)
        self.n_classes = n_classes
        self._labels = self.loss.encode(np.asarray(labels), n_classes)
        self._number = {name: m for m, name in enumerate(self.clients)}
        self._table = np.zeros((len(self.clients), len(self._labels), n_classes))
        self._intercept, self._rate = np.zeros(n_classes), intercept
        self._n_steps = 0
        self._answered: tuple[Array, Floats] | None = None
        self._summed: tuple[Array, Floats, int] | None = None

    @property
    def intercept(self) -> Floats | None:
        """The server's own part, (classes,), or None if it has none."""
        return None if self._rate is None else self._intercept.copy()

    def upload(self, client: str, samples: Array, embeddings: Floats) -> None:
        """Take the embeddings of some samples from a client."""
        number = self._number[client]
        self._table[number, samples] = embeddings
        self._answered = None
        # In a synchronous round all clients upload the same samples, one after the other: their sum is kept on the way.
        if number == 0:
            self._summed = keep(samples), np.array(embeddings, dtype=np.float64), 1
        elif self._summed is not None and self._summed[2] == number and same(self._summed[0], samples):
            batch, total, _ = self._summed
            total += embeddings
            self._summed = batch, total, number + 1
        else:
            self._summed = None

    def query(self, client: str, samples: Array) -> Floats:  # noqa: ARG002  # the same for every client
        """Return the gradients of the loss by the summed embeddings of some samples, (samples, classes), read-only."""
        # In a synchronous round all clients ask the same.
        if self._answered is not None and same(self._answered[0], samples):
            return self._answered[1]
        gradient = self.loss.gradient(self._sums(samples), self._labels[samples])
        gradient.flags.writeable = False  # the next client gets the same array
        self._answered = keep(samples), gradient
        if self._rate is not None:
            self._n_steps += 1
            self._intercept -= self._rate.at(self._n_steps) * gradient.mean(axis=0)
        return gradient

    def state(self) -> State:
        """Return a copy of everything that `restore` needs to go on exactly from here."""
        return {"table": self._table.copy(), "intercept": self._intercept.copy(), "n_steps": np.array(self._n_steps)}

    def restore(self, state: State) -> None:
        """Take up a state."""
        self._table[:] = state["table"]
        self._intercept = np.array(state["intercept"])
        self._n_steps = int(state["n_steps"])
        self._answered = self._summed = None

    def _sums(self, samples: Array) -> Floats:
        if self._summed is not None:
            batch, total, n_clients = self._summed
            if n_clients == len(self.clients) and same(batch, samples):
                return total + self._intercept
        result: Floats = self._table[:, samples].sum(axis=0) + self._intercept
        return result
