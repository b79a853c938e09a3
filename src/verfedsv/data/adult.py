"""The Adult data set, which ships with the package, and a recorded training on it.

Adult: 48,842 people of the United States census of 1994, whether each earned more than 50,000 dollars, and 14
attributes in 123 binary features (LIBSVM's a9a and a9a.t together). Source and licence: data/files/NOTICE.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from verfedsv.arguments import as_whole
from verfedsv.data.catalogue import CATALOGUE, INCLUDED, load
from verfedsv.errors import InputError

N_FEATURES = 123

ATTRIBUTES = CATALOGUE["adult"].attributes
"""The attributes and how many binary features each was turned into, in the order of the features."""


@dataclass(frozen=True, eq=False)
class AdultRound:
    """A round of vertical training: embeddings before and after it, (clients, samples), and labels, -1 or +1."""

    clients: tuple[str, ...]
    previous: NDArray[np.float64]
    current: NDArray[np.float64]
    labels: NDArray[np.float64]


@cache
def load_adult() -> tuple[csr_array[Any], NDArray[np.float64]]:
    """Return the features, (48842, 123), 0 or 1, and the labels, -1 or +1."""
    samples = load("adult")
    return samples.features, np.where(samples.labels == 1, 1.0, -1.0)


def load_adult_round(n_clients: int | None = None, *, jump: bool = False) -> AdultRound:
    """Return a recorded round of training a linear model on Adult.

    Each client holds one of the 14 attributes, or, with `n_clients`, one of that many contiguous blocks of features,
    larger ones first (`split_features` spreads them). The round is the 41st of 360 of the training in
    scripts/record_adult_weights.py; with `jump`, it is the whole training, from zero to the trained model.
    """
    names, edges = _split_features(n_clients)
    before, after, trained = np.loadtxt(INCLUDED / "adult_weights.csv", delimiter=",", skiprows=1).T
    if jump:
        before, after = np.zeros(N_FEATURES), trained
    features, labels = load_adult()
    by_column = features.tocsc()
    parts = [(by_column[:, a:b], slice(a, b)) for a, b in pairwise(edges)]
    previous, current = (np.stack([x @ model[part] for x, part in parts]) for model in (before, after))
    return AdultRound(names, previous, current, labels)


def _split_features(n_clients: int | None) -> tuple[tuple[str, ...], NDArray[np.intp]]:
    """Return the names of the clients and the edges of their blocks of features."""
    if n_clients is None:
        return tuple(ATTRIBUTES), np.cumsum([0, *ATTRIBUTES.values()])
    if as_whole("n_clients", n_clients, at_least=1) > N_FEATURES:
        raise InputError(f"Adult has {N_FEATURES} features for 1 to {N_FEATURES} clients; received {n_clients} clients")
    sizes = [len(block) for block in np.array_split(np.arange(N_FEATURES), n_clients)]
    edges = np.cumsum([0, *sizes])
    return tuple(f"features {a + 1}-{b}" for a, b in pairwise(edges)), edges
