"""Predictions of rows that were not there in training: the server's part, and the driver that asks the clients.

Each client prepares and embeds its own new rows. What reaches the server is embeddings, of rows in an order that was
agreed on, and which of these rows each client has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from verfedsv.errors import InputError
from verfedsv.federation.checkpoints import read_any_checkpoint
from verfedsv.federation.heads import SumHead
from verfedsv.federation.messages import Predict, Prediction
from verfedsv.federation.server import check_embeddings, split_means
from verfedsv.federation.transports import Transport, ask
from verfedsv.files import MOST_BYTES
from verfedsv.losses import Array, Floats, LogPartitionLoss, Loss, get_loss
from verfedsv.untrusted import read_json


@dataclass(frozen=True, eq=False)
class Predictions:
    """The scores of some rows, (rows, classes), which a loss takes, and what they mean.

    `classes` are the names of the classes, None if the loss has no classes.
    """

    loss: Loss
    scores: Floats
    classes: tuple[str, ...] | None

    @property
    def probabilities(self) -> Floats | None:
        """The probability of each class, (rows, C); None if the loss has no classes."""
        return self.loss.probabilities(self.scores) if isinstance(self.loss, LogPartitionLoss) else None

    @property
    def values(self) -> list[str] | list[float]:
        """The name of the most probable class of each row; the score itself if the loss has no classes."""
        if self.classes is None:
            if self.scores.shape[1] > 1:
                raise InputError(f"loss {self.loss.name!r}: {self.scores.shape[1]} scores per row are not one number")
            return [float(score) for score in self.scores[:, 0]]
        # By the scores, as in evaluation: probabilities of nearly 0.5 or 1 are rounded.
        is_scalar = self.scores.shape[1] == 1
        chosen = (self.scores[:, 0] > 0).astype(int) if is_scalar else self.scores.argmax(axis=1)
        return [self.classes[number] for number in chosen]


@dataclass(frozen=True, eq=False)
class Predictor:
    """What the server keeps for predictions: head, loss, names of classes, and the mean embedding of each client.

    Means, (width,) each, are over the training samples, with the models of the last evaluation. They stand in for
    clients that are absent, and for rows that a client does not have. `units` are mean and standard deviation of
    amounts that were standardised for training. `rounds` are those of the clients' last checkpoints, and `n_records` is
    how many records the training had made.
    """

    means: Mapping[str, Floats]
    head: SumHead
    loss: Loss
    classes: tuple[str, ...] | None
    units: tuple[float, float]
    rounds: Mapping[str, int]
    n_records: int

    @classmethod
    def read(cls, path: Path) -> Predictor:
        """Return that of the server's checkpoint; raise InputError if it is damaged, or from another version."""
        arrays = read_any_checkpoint(path, "the server", leave_out=("table",))
        try:
            about = read_json(arrays["about"].tobytes(), "its description", most=MOST_BYTES)
            clients, loss = [str(name) for name in about["clients"]], get_loss(about["loss"])
            means = split_means(arrays["means"], clients, about["widths"])
            head = SumHead(arrays["intercept"].size, None)
            head.restore(arrays)
            classes = _name_classes(loss, head.scores([*map(np.atleast_2d, means.values())]), about["classes"])
            centre, deviation = map(float, arrays.get("label_scale", (0.0, 1.0)))
            rounds = dict.fromkeys(clients, int(arrays["n_rounds"]))
            if "saved" in arrays:  # a client that left has not changed since; 0 is for one without a checkpoint
                rounds = dict(zip(clients, (arrays["saved"] - 1).tolist(), strict=True))
            return cls(means, head, loss, classes, (centre, deviation), rounds, int(arrays["n_records"]))
        except (KeyError, TypeError, ValueError) as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise InputError(
                f"{path} is not a checkpoint of a server that can predict ({why}): it is damaged, or was written by "
                "another version. Train again"
            ) from None

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.means)

    def requests(self, clients: Mapping[str, Array]) -> list[Predict]:
        """Return a request for the embeddings of all new rows to each of these clients."""
        return [Predict(name, self.rounds[name], 1, None) for name in clients]

    def accept(self, answer: Prediction, rows: Mapping[str, Array]) -> Floats:
        """Return a client's embeddings; raise AnswerError or DivergedError if they cannot be used."""
        name = answer.client
        check_embeddings(name, answer.embeddings, (len(rows[name]), *self.means[name].shape))
        return answer.embeddings

    def predict(self, embeddings: Mapping[str, Floats], rows: Mapping[str, Array], n_rows: int) -> Predictions:
        """Return predictions for rows 0 to `n_rows` - 1, from embeddings of those `rows` that each client has."""
        complete = []
        for name, mean in self.means.items():
            own = np.tile(mean, (n_rows, 1))
            if name in embeddings:
                own[rows[name]] = embeddings[name]
            complete.append(own)
        centre, deviation = self.units
        return Predictions(self.loss, self.head.scores(complete) * deviation + centre, self.classes)


def predict_rows(predictor: Predictor, transport: Transport, rows: Mapping[str, Array], n_rows: int) -> Predictions:
    """Let clients embed the new rows that they have, (rows,) each in increasing order, and the server predict all."""
    embeddings = ask(transport, predictor.requests(rows), partial(predictor.accept, rows=rows))
    if missing := [name for name in rows if name not in embeddings]:
        raise InputError(f"no prediction: no valid answer from {', '.join(missing)}")
    return predictor.predict(embeddings, rows, n_rows)


def _name_classes(loss: Loss, scores: Floats, names: list[str] | None) -> tuple[str, ...] | None:
    """Return the names of the classes, their numbers if they have none; None if the loss has no classes."""
    if not isinstance(loss, LogPartitionLoss):
        return None
    n_classes = loss.probabilities(scores).shape[-1]
    result = tuple(map(str, range(n_classes) if names is None else names))
    if len(result) != n_classes:
        raise InputError(f"{len(result)} classes have names, and the loss has {n_classes}")
    return result
