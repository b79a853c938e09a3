"""A slow valuator, written from the definition: the table of all embeddings, and every coalition of every round.

Nothing of the package is used but `complete`, for the embeddings of a client that were not uploaded.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tests.trainings import values_of_rounds
from verfedsv import complete


@dataclass
class Round:
    """Uploads in their order, as (client, samples, embeddings), and the server's own part: constant, or by sample.

    Who joins and who leaves does so before the uploads.
    """

    uploads: list[tuple[str, np.ndarray, np.ndarray]]
    offset: np.ndarray | None = None
    joins: tuple[str, ...] = ()
    leaves: tuple[str, ...] = ()
    absent: tuple[str, ...] = field(default=())


@dataclass
class Story:
    """A training in either mode: `clients` are all that ever take part, in the order in which they join."""

    mode: str
    loss: str
    labels: np.ndarray
    clients: list[str]
    rounds: list[Round]
    n_classes: int = 1

    @property
    def n_samples(self) -> int:
        return len(self.labels)

    def table_of_uploads(self, client: str) -> np.ndarray:
        """Return what the server holds of a client after each round: the last upload of each sample, else zeros."""
        table, tables = np.zeros((self.n_samples, self.n_classes)), []
        for changes in self.rounds:
            for name, samples, embeddings in changes.uploads:
                if name == client:
                    table[samples] = embeddings
            tables.append(table.copy())
        return np.array(tables)

    def table(self, client: str, rank: int) -> np.ndarray:
        """Return the embeddings of a client after each round, (rounds, samples, classes).

        In synchronous training its uploads are completed, unless all of them have the same samples; in a round that it
        missed it is where it was before, and at zero before its first.
        """
        own = [(t, s, e) for t, r in enumerate(self.rounds) for name, s, e in r.uploads if name == client]
        if self.mode == "asynchronous" or len({frozenset(samples) for _, samples, _ in own}) <= 1:
            return self.table_of_uploads(client)
        fitted = complete([s for _, s, _ in own], [e for _, _, e in own], self.n_samples, rank)
        current, tables = np.zeros((self.n_samples, self.n_classes)), []
        when = {t: k for k, (t, _, _) in enumerate(own)}
        for t in range(len(self.rounds)):
            current = fitted.embeddings(when[t]) if t in when else current
            tables.append(current)
        return np.array(tables)

    def offsets(self) -> np.ndarray | None:
        """Return the server's own part after each round, (rounds, samples, classes); zeros until there is one."""
        if all(r.offset is None for r in self.rounds):
            return None
        current, result = np.zeros((self.n_samples, self.n_classes)), []
        for r in self.rounds:
            if r.offset is not None:
                current = np.broadcast_to(r.offset, current.shape)
            result.append(current)
        return np.array(result)

    def rows(self) -> np.ndarray:
        """Return the samples that count: in synchronous training those that anybody ever uploaded."""
        seen = np.unique(np.concatenate([s for r in self.rounds for _, s, _ in r.uploads]))
        return seen if self.mode == "synchronous" else np.arange(self.n_samples)

    def values(self, rank: int = 2) -> np.ndarray:
        """Return the Shapley values of all rounds, (rounds, clients + 1), the server last."""
        rows, offsets = self.rows(), self.offsets()
        tables = np.stack([self.table(client, rank) for client in self.clients], axis=1)
        own = None if offsets is None else offsets[:, rows]
        values = values_of_rounds(tables[:, :, rows], self.labels[rows], self.loss, own)
        return values if offsets is not None else np.pad(values, ((0, 0), (0, 1)))


def tell(mode: str, loss: str = "logistic", *, kind: str = "gaps", offset: str | None = None, seed: int = 0) -> Story:
    """Return a training of four clients over twelve rounds, of rank 2, in which clients join, leave, and miss rounds.

    The founders are a, b and c. Client c misses rounds 1, 2 and 7; d joins before round 4 and misses round 6; b leaves
    before round 8, and is back from round 10 on. Each client uploads samples of its own choice from its own samples:
    always all of them if `kind` is "full", always some if it is "gaps", and if it is "mixed" client a sends all. The
    samples that a and b can send are 0 to 29, those of c are 10 to 39 and those of d are 20 to 49, of 55.
    """
    rng = np.random.default_rng(seed)
    n_samples, n_rounds, n_classes = 55, 12, 3 if loss == "softmax" else 1
    labels = rng.integers(0, 3 if loss == "softmax" else 2, n_samples)
    labels = rng.normal(size=n_samples) if loss == "squared" else labels
    own = {"a": np.arange(30), "b": np.arange(30), "c": np.arange(10, 40), "d": np.arange(20, 50)}
    data = {name: rng.normal(size=(n_samples, 2)) for name in own}
    weights = {name: np.zeros((2, n_classes)) for name in own}
    members, rounds = ["a", "b", "c"], []
    for t in range(n_rounds):
        joins = {4: ("d",), 10: ("b",)}.get(t, ())
        leaves = {8: ("b",)}.get(t, ())
        members = [name for name in [*members, *joins] if name not in leaves]
        absent = {1: ("c",), 2: ("c",), 6: ("d",), 7: ("c",)}.get(t, ())
        uploads = []
        for name in members:
            weights[name] = weights[name] + 0.4 * rng.normal(size=(2, n_classes))
            if name in absent:
                continue
            is_full = kind == "full" or (kind == "mixed" and name == "a")
            for _ in range(1 if mode == "synchronous" else 2):
                chosen = rng.permutation(own[name])[: None if is_full else 15]
                uploads.append((name, chosen, data[name][chosen] @ weights[name]))
        given = {
            None: None,
            "constant": rng.normal(size=n_classes) * 0.3,
            "by sample": rng.normal(size=(n_samples, n_classes)) * 0.3,
        }[offset]
        rounds.append(Round(uploads, None if t in (5, 9) else given, joins, leaves, absent))
    return Story(mode, loss, labels, ["a", "b", "c", "d"], rounds, n_classes)
