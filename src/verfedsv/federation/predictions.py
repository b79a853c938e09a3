"""Predictions of rows that were not there in training: the server's part, and the driver that asks the clients.

Each client prepares and embeds its own new rows. What reaches the server is embeddings, of rows in an order that was
agreed on, and which of these rows each client has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv.arguments import as_whole
from verfedsv.arrays import LARGEST_EMBEDDING, Array, Floats, is_usable
from verfedsv.errors import DivergedError, InputError
from verfedsv.federation.checkpoints import pick, pick_numbers, read_any_checkpoint
from verfedsv.federation.heads import Head, read_head
from verfedsv.federation.messages import Predict, Prediction
from verfedsv.federation.models import State
from verfedsv.federation.server import check_embeddings, split_means
from verfedsv.federation.transports import Transport, ask
from verfedsv.files import MOST_BYTES
from verfedsv.losses import LogPartitionLoss, Loss, get_loss
from verfedsv.untrusted import read_json

_ABOUT = "its description"


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

    @classmethod
    def joined(cls, parts: Sequence[Predictions]) -> Predictions:
        """Return predictions of some rows and those of the rows after them, by one predictor, as one."""
        return cls(parts[0].loss, np.concatenate([part.scores for part in parts]), parts[0].classes)


@dataclass(frozen=True, eq=False)
class Predictor:
    """What the server keeps for predictions: head, loss, names of classes, and the mean embedding of each client.

    Means, (width,) each, are over the training samples, with the models of the last evaluation. They stand in for
    clients that are absent, and for rows that a client does not have. `units` are mean and standard deviation of
    amounts that were standardised for training. `rounds` are those of the clients' last checkpoints, and `n_records` is
    how many records the training had made.
    """

    means: Mapping[str, Floats]
    head: Head
    loss: Loss
    classes: tuple[str, ...] | None
    units: tuple[float, float]
    rounds: Mapping[str, int]
    n_records: int

    @classmethod
    def read(cls, path: Path) -> Predictor:
        """Return that of the server's checkpoint; raise InputError if it is damaged, or from another version."""
        arrays = read_any_checkpoint(path, "the server", leave_out=("table", "torch"))
        try:
            about = read_json(arrays["about"].tobytes(), _ABOUT, most=MOST_BYTES)
            widths, loss = _read_widths(about), get_loss(pick(about, "loss", _ABOUT))
            clients = tuple(widths)
            means = split_means(_pick_usable(arrays, "means", sum(widths.values())), clients, [*widths.values()])
            head = _read_head(pick(about, "head", _ABOUT), arrays, widths)
            of_means = head.scores({name: mean[np.newaxis] for name, mean in means.items()})
            if not np.isfinite(of_means).all():
                raise InputError("the scores of the mean embeddings are not finite")
            classes = _name_classes(loss, of_means, pick(about, "classes", _ABOUT))
            units = _read_units(arrays, loss)
            rounds = dict.fromkeys(clients, int(pick_numbers(arrays, "n_rounds", (), "i")))
            if "saved" in arrays:  # a client that left has not changed since; 0 is for one without a checkpoint
                saved = pick_numbers(arrays, "saved", (len(clients),), "i")
                rounds = dict(zip(clients, (saved - 1).tolist(), strict=True))
            return cls(means, head, loss, classes, units, rounds, int(pick_numbers(arrays, "n_records", (), "i")))
        except (KeyError, TypeError, ValueError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(
                f"{path} is not a checkpoint of a server that can predict ({why}): it is damaged, or was written by "
                "another version. Train again"
            ) from None

    @property
    def clients(self) -> tuple[str, ...]:
        return tuple(self.means)

    @property
    def n_numbers(self) -> int:
        """How many numbers per row it computes with, at most: all embeddings, and the layers of its head."""
        return sum(map(len, self.means.values())) + self.head.n_numbers

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
        complete = {}
        for name, mean in self.means.items():
            own = np.tile(mean, (n_rows, 1))
            if name in embeddings:
                own[rows[name]] = embeddings[name]
            complete[name] = own
        centre, deviation = self.units
        scores = self.head.scores(complete) * deviation + centre
        if not np.isfinite(scores).all():
            raise DivergedError("the scores of some rows are not finite: the head has parameters that are too large")
        return Predictions(self.loss, scores, self.classes)


def predict_rows(predictor: Predictor, transport: Transport, rows: Mapping[str, Array], n_rows: int) -> Predictions:
    """Let clients embed the new rows that they have, (rows,) each in increasing order, and the server predict all."""
    embeddings = ask(transport, predictor.requests(rows), partial(predictor.accept, rows=rows))
    if missing := [name for name in rows if name not in embeddings]:
        raise InputError(f"no prediction: no valid answer from {', '.join(missing)}")
    return predictor.predict(embeddings, rows, n_rows)


def _read_widths(about: Any) -> dict[str, int]:
    """Return the width of each client's embeddings."""
    names, widths = (pick(about, part, _ABOUT) for part in ("clients", "widths"))
    if not _are_names(names) or not names:
        raise InputError("the names of the clients must be different texts, at least one")
    if not isinstance(widths, list) or len(widths) != len(names):
        raise InputError(f"there must be a width for each of the {len(names)} clients")
    own = zip(names, widths, strict=True)
    return {name: as_whole(f"the width of {name!r}", width, at_least=1) for name, width in own}


def _read_head(about: Any, arrays: State, widths: Mapping[str, int]) -> Head:
    """Return the head; raise InputError, before it takes any memory, unless it takes the clients' embeddings."""
    if about is None:
        n_scores, *others = {*widths.values()}
        if others:
            raise InputError("the embeddings of clients have different widths, and are to be summed")
        _pick_usable(arrays, "intercept", n_scores)
    else:
        taken = [(name, width) for name, width in pick(about, "widths", "the head")]
        if len(taken) != len(widths) or dict(taken) != widths:
            raise InputError("the head takes embeddings of other clients or widths than there are")
    return read_head(about, arrays)


def _pick_usable(arrays: State, name: str, length: int) -> Floats:
    """Return an array of numbers that can be computed with."""
    array: Floats = pick_numbers(arrays, name, (length,))
    if not is_usable(array):
        raise InputError(f"{name} must be finite and below {LARGEST_EMBEDDING:g} in size")
    return array


def _read_units(arrays: State, loss: Loss) -> tuple[float, float]:
    """Return mean and standard deviation of the amounts, 0 and 1 for classes."""
    if "label_scale" not in arrays:
        return 0.0, 1.0
    centre, deviation = pick_numbers(arrays, "label_scale", (2,)).tolist()
    if deviation <= 0 or (isinstance(loss, LogPartitionLoss) and (centre, deviation) != (0, 1)):
        raise InputError(f"label_scale cannot be {centre:g} and {deviation:g} under loss {loss.name!r}")
    return centre, deviation


def _are_names(names: Any) -> bool:
    """Return whether these are different texts."""
    return isinstance(names, list) and all(isinstance(name, str) for name in names) and len({*names}) == len(names)


def _name_classes(loss: Loss, scores: Floats, names: list[str] | None) -> tuple[str, ...] | None:
    """Return the names of the classes, their numbers if they have none; None if the loss has no classes."""
    if names is not None and not _are_names(names):
        raise InputError("the names of the classes must be different texts")
    if not isinstance(loss, LogPartitionLoss):
        if names is not None:
            raise InputError(f"loss {loss.name!r} has no classes, and {len(names)} have names")
        return None
    n_classes = loss.probabilities(scores).shape[-1]
    result = tuple(map(str, range(n_classes) if names is None else names))
    if len(result) != n_classes:
        raise InputError(f"{len(result)} classes have names, and the loss has {n_classes}")
    return result
