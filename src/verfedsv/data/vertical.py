"""Vertically split samples: each client has some columns of all samples, the server has the labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from verfedsv.arguments import as_whole
from verfedsv.data.catalogue import Samples
from verfedsv.data.cautions import caution_untrained, caution_zeros
from verfedsv.data.targets import AskedLoss, LabelArray, LabelScale, LossName, choose_loss
from verfedsv.errors import InputError

Matrix = NDArray[np.float64] | csr_array[Any]


@dataclass(frozen=True, eq=False)
class ClientData:
    """The unprepared columns of one client, (samples, columns).

    `numeric` may be sparse; NaN is a missing value. `categorical` holds text; None is a missing value. `columns` are
    the names of the numeric columns, then of the others; by default, they are numbered: "column 1", "column 2", ...
    """

    name: str
    numeric: Matrix
    categorical: NDArray[np.object_] | None = None
    columns: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        n_columns = int(self.numeric.shape[1]) + (0 if self.categorical is None else self.categorical.shape[1])
        columns = self.columns or tuple(f"column {number}" for number in range(1, n_columns + 1))
        if len({*columns}) < len(columns) or len(columns) != n_columns:
            raise InputError(
                f"{self.name}: there must be a different name for each of the {n_columns} columns; received "
                f"{len(columns)} names, {len({*columns})} of them different"
            )
        object.__setattr__(self, "columns", columns)

    def __len__(self) -> int:
        return int(self.numeric.shape[0])

    def take(self, rows: NDArray[np.intp]) -> ClientData:
        """Return some of the rows."""
        categorical = None if self.categorical is None else self.categorical[rows]
        return replace(self, numeric=self.numeric[rows], categorical=categorical)


@dataclass(frozen=True, eq=False)
class VerticalData:
    """The columns of all clients, samples in the same order, and the labels: 0 to C - 1, or amounts.

    `n_classes` is C, or 1 for amounts, and `classes` are the names of the classes, None if they have none. `is_test`
    marks samples held out of training. `notes` say how the data were read, `cautions` name likely mistakes. `asked` is
    the loss that the user asked for. `elsewhere` are the names of clients whose columns are on other machines.
    """

    clients: tuple[ClientData, ...]
    labels: LabelArray
    n_classes: int
    is_test: NDArray[np.bool_]
    notes: tuple[str, ...] = ()
    cautions: tuple[str, ...] = ()
    classes: tuple[str, ...] | None = None
    asked: AskedLoss = "auto"
    elsewhere: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        return (*(client.name for client in self.clients), *self.elsewhere)

    @cached_property
    def loss(self) -> LossName:
        """The loss to train with: the one asked for, else the usual one for these labels."""
        return choose_loss(self.asked, self.n_classes)

    @property
    def width(self) -> int:
        """How many numbers per sample the loss takes."""
        return self.n_classes if self.loss == "softmax" else 1

    @cached_property
    def label_scale(self) -> LabelScale:
        """The units in which the server trains: of amounts, mean and standard deviation of the training samples."""
        return LabelScale.of(self.labels[~self.is_test]) if self.loss == "squared" else LabelScale()

    @property
    def targets(self) -> LabelArray:
        """The labels that the loss takes: amounts are standardised."""
        return self.label_scale.standardised(self.labels) if self.loss == "squared" else self.labels

    def with_clients(self, *more: ClientData) -> VerticalData:
        """Return these data with more clients."""
        names = [*self.names, *(client.name for client in more)]
        repeated = sorted({name for name in names if names.count(name) > 1})
        if repeated:
            raise InputError(f"the names of the clients must differ; repeated: {', '.join(repeated)}")
        return replace(self, clients=(*self.clients, *more))


def split_features(
    samples: Samples,
    n_clients: int,
    *,
    test: float | None = None,
    seed: int = 0,
    loss: AskedLoss = "auto",
) -> VerticalData:
    """Return a data set with its features split into contiguous blocks of equal size, one per client, as in the paper.

    `test` is the fraction of samples held out of training, drawn with `seed`; by default the data set's own test part
    is held out. `loss` is by default the usual one for the labels.
    """
    edges = split_edges(samples, n_clients)
    by_column = samples.features.tocsc()
    clients = tuple(
        ClientData(
            f"client {m + 1}",
            csr_array(by_column[:, a:b]),
            None,
            tuple(f"feature {k + samples.first_feature}" for k in range(a, b)),
        )
        for m, (a, b) in enumerate(pairwise(edges))
    )
    n_samples = len(samples.labels)
    is_test = np.arange(n_samples) >= n_samples - samples.n_test if test is None else choose_test(n_samples, test, seed)
    cautions = [*samples.cautions, *caution_untrained(samples.labels, samples.classes, is_test)]
    for client in clients:
        cautions += caution_zeros(client.name, csr_array(client.numeric), ~is_test)
    said = samples.notes, tuple(cautions)
    return VerticalData(clients, samples.labels, samples.n_classes, is_test, *said, samples.classes, loss)


def split_edges(samples: Samples, n_clients: int) -> NDArray[np.intp]:
    """Return the edges of the blocks of features, (clients + 1,): client m has those from edge m up to edge m + 1."""
    n_features = int(samples.features.shape[1])
    if as_whole("n_clients", n_clients, at_least=1) > n_features:
        raise InputError(
            f"{samples.name} has {n_features} features for 1 to {n_features} clients; received {n_clients}"
        )
    return np.linspace(0, n_features, n_clients + 1).astype(np.intp)


def choose_test(n_samples: int, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Return a mask of a random fraction of the samples."""
    if not 0 <= fraction < 1:
        raise InputError(f"test must be a fraction, at least 0 and below 1; received {fraction!r}")
    is_test = np.zeros(n_samples, bool)
    is_test[np.random.default_rng([seed, 1]).permutation(n_samples)[: round(fraction * n_samples)]] = True
    return is_test


def noisy_copy(
    client: ClientData,
    name: str,
    fraction: float,
    rng: np.random.Generator,
    *,
    of: Literal["columns", "entries"] = "columns",
) -> ClientData:
    """Return a copy of a client with white noise, N(0, 1), added to a fraction of its numbers: figure 2.

    The noise goes to that fraction of the numeric columns, drawn at random, at least one. With `of` "entries", each
    number gets noise with probability `fraction`, which suits clients with few columns. Text is copied unchanged.
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"fraction must be from 0 to 1; received {fraction!r}")
    if of not in ("columns", "entries"):
        raise InputError(f"of must be 'columns' or 'entries'; received {of!r}")
    if fraction == 0:
        # Sparse numbers stay sparse: sums of dense ones are rounded differently.
        return replace(client, name=name)
    numeric = client.numeric.copy() if isinstance(client.numeric, np.ndarray) else client.numeric.toarray()
    n_samples, n_columns = numeric.shape
    if n_columns == 0:
        raise InputError(f"client {client.name!r} has no numeric columns to add noise to; copy it without noise")
    if of == "entries":
        is_noisy = rng.random(numeric.shape) < fraction
        numeric[is_noisy] += rng.standard_normal(int(is_noisy.sum()))
    else:
        noisy = rng.permutation(n_columns)[: max(1, round(fraction * n_columns))]
        numeric[:, noisy] += rng.standard_normal((n_samples, len(noisy)))
    return replace(client, name=name, numeric=numeric)


def random_client(like: ClientData, name: str, level: float, rng: np.random.Generator) -> ClientData:
    """Return a client with random columns N(level, level^2), as many as another has, text included: table 1."""
    n_samples, n_columns = like.numeric.shape
    n_text = 0 if like.categorical is None else like.categorical.shape[1]
    return ClientData(name, rng.normal(level, level, (n_samples, max(1, n_columns + n_text))))


def take_rows(data: VerticalData, rows: Sequence[int] | NDArray[np.intp]) -> VerticalData:
    """Return some of the samples."""
    chosen = np.asarray(rows)
    clients = tuple(client.take(chosen) for client in data.clients)
    return replace(data, clients=clients, labels=data.labels[chosen], is_test=data.is_test[chosen])
