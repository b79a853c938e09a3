"""Trainings whose server has a head: the time to value one, and how far completion moves the values."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.measure import seconds, table, timed
from benchmarks.trainings import deviation, has, load
from verfedsv import Recorder, ShapleyResult, Valuation, shapley_values, value
from verfedsv.shapley import Method
from verfedsv.shapley.permutation import default_permutations

WIDTH, UNITS, BATCH, N_ROUNDS = 8, 64, 4000, 200

SETTINGS = (("adult", torch.nn.Tanh), ("adult", torch.nn.ReLU), ("covtype", torch.nn.Tanh), ("covtype", torch.nn.ReLU))
N_ROWS = 10_000
"""Samples whose values are compared: all coalitions of all rounds take long."""


@dataclass(frozen=True)
class SplitTraining:
    """A split learning: batches, and the models of the clients and the head as they were in each round.

    `heads` begins with the head before the first round.
    """

    features: list[torch.Tensor]
    labels: NDArray[np.int64]
    loss: str
    batches: list[torch.Tensor]
    models: list[list[torch.nn.Module]]
    heads: list[torch.nn.Module]

    @property
    def clients(self) -> list[str]:
        return [f"client {m + 1}" for m in range(len(self.features))]

    def embeddings(self, t: int, rows: NDArray[np.intp]) -> list[NDArray[np.float64]]:
        """Return those of some samples in a round, of each client (samples, width)."""
        with torch.no_grad():
            own = zip(self.models[t], self.features, strict=True)
            return [model(x[rows]).numpy().astype(np.float64) for model, x in own]

    def rounds(self, rows: NDArray[np.intp]) -> Iterator[tuple[list[NDArray[np.float64]], list[NDArray[np.float64]]]]:
        """Yield the embeddings of some samples before and after each round."""
        before = [np.zeros((len(rows), WIDTH)) for _ in self.features]
        for t in range(len(self.batches)):
            after = self.embeddings(t, rows)
            yield before, after
            before = after

    def shapley_values(
        self,
        t: int,
        before: list[NDArray[np.float64]],
        after: list[NDArray[np.float64]],
        rows: NDArray[np.intp],
        method: Method,
    ) -> ShapleyResult:
        """Return the values of a round, in which the head moved as well."""
        heads = {"head": self.heads[t + 1], "previous_head": self.heads[t]}
        return shapley_values(before, after, self.labels[rows], self.loss, method, **heads)

    def true_values(self, rows: NDArray[np.intp]) -> NDArray[np.float64]:
        """Return the values from all embeddings and all coalitions, (clients and server,): nothing is completed."""
        total = np.zeros(len(self.features) + 1)
        for t, (before, after) in enumerate(self.rounds(rows)):
            found = self.shapley_values(t, before, after, rows, "exact")
            total += [*found.values, found.server_value]
        return total / len(self.batches)

    def record(self) -> Recorder:
        """Record the batches."""
        head = copy.deepcopy(self.heads[0])
        recorder = Recorder(None, self.labels, self.clients, self.loss, head=head)
        for batch, models, following in zip(self.batches, self.models, self.heads[1:], strict=True):
            head.load_state_dict(following.state_dict())
            with torch.no_grad():
                uploads = [model(x[batch]) for model, x in zip(models, self.features, strict=True)]
            recorder.log(batch, dict(zip(self.clients, uploads, strict=True)))
        return recorder


@cache
def train(
    name: str,
    n_clients: int = 4,
    activation: type[torch.nn.Module] = torch.nn.Tanh,
    n_rounds: int = N_ROUNDS,
) -> SplitTraining:
    """Train linear clients and a head together by Adam, the features split into contiguous blocks of the same size."""
    torch.manual_seed(0)
    features, labels = load(name)
    everything = torch.tensor(features.toarray(), dtype=torch.float32)
    edges = np.linspace(0, everything.shape[1], n_clients + 1).astype(int)
    own = [everything[:, a:b].contiguous() for a, b in pairwise(edges)]
    n_classes = 1 if labels.max() == 1 else int(labels.max()) + 1
    models = [torch.nn.Linear(x.shape[1], WIDTH) for x in own]
    head = torch.nn.Sequential(
        torch.nn.Linear(n_clients * WIDTH, UNITS), activation(), torch.nn.Linear(UNITS, n_classes)
    )
    optimizer = torch.optim.Adam([p for part in (head, *models) for p in part.parameters()], lr=1e-3)
    result = SplitTraining(own, labels, "logistic" if n_classes == 1 else "softmax", [], [], [copy.deepcopy(head)])
    targets = torch.tensor(labels)
    while len(result.batches) < n_rounds:
        for batch in torch.split(torch.randperm(len(labels)), BATCH)[: n_rounds - len(result.batches)]:
            result.batches.append(batch)
            result.models.append(copy.deepcopy(models))
            result.heads.append(copy.deepcopy(head))
            scores = head(torch.cat([own_model(x[batch]) for own_model, x in zip(models, own, strict=True)], dim=1))
            if n_classes == 1:
                loss = torch.nn.functional.binary_cross_entropy_with_logits(scores[:, 0], targets[batch].float())
            else:
                loss = torch.nn.functional.cross_entropy(scores, targets[batch])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
    return result


def time_to_value() -> str:
    """Return the table of times to value Adult: by `value`, by all coalitions, and by the paper's permutations."""
    training = train("adult")
    with training.record() as recorder:
        begin = time.process_time()
        result = value(recorder)
        of_value = time.process_time() - begin
    n_samples, n_players = len(training.labels), len(training.features) + 1
    rows = np.arange(0, n_samples, 10)
    before, after = list(training.rounds(rows))[N_ROUNDS // 2]
    scale = n_samples / len(rows) * N_ROUNDS
    took = {}
    methods: tuple[Method, ...] = "exact", "permutation"
    for method in methods:
        begin = time.process_time()
        _, elapsed = timed(lambda method=method: training.shapley_values(N_ROUNDS // 2, before, after, rows, method))
        took[method] = [seconds(scale * each) for each in (elapsed, time.process_time() - begin)]
    n_permutations = default_permutations(n_players)
    print(f"  head: value {result.seconds}, {of_value} of the processor, {took}")
    error = f"{result.estimator_errors.max() / np.abs(result.values).max():.1e}"
    total = [seconds(result.seconds["total"]), seconds(of_value)]
    return table(
        ["how", "time", "time of the processor", "largest stated error of the estimator"],
        [
            ["`value`, completion", seconds(result.seconds["completion"]), "", ""],
            ["`value`, valuation", seconds(result.seconds["valuation"]), "", error],
            ["`value`, in total", *total, error],
            [f"valuation by all {2**n_players} coalitions, by extrapolation", *took["exact"], "rounding"],
            [f"valuation by {n_permutations} permutations a round, by extrapolation", *took["permutation"], ""],
        ],
    )


def deviations() -> str:
    """Return the table of true and stated errors of completed embeddings."""
    rows = []
    for name, activation in SETTINGS:
        if not has(name):
            continue
        training = train(name, activation=activation)
        chosen = np.sort(np.random.default_rng(0).permutation(len(training.labels))[:N_ROWS])
        true = training.true_values(chosen)
        with training.record() as recorder:
            result = value(recorder, rows=chosen)
        rows.append(_errors(f"{name.capitalize()}, {activation.__name__}", result, true))
        print(f"  head: {rows[-1]}")
    header = [
        "data, head",
        "ranks taken",
        "deviation",
        "largest true error",
        "largest stated",
        "within",
        "server off by",
    ]
    return table(header, rows)


def _errors(name: str, result: Valuation, true: NDArray[np.float64]) -> list[str]:
    """Return a row of the table of errors."""
    values, server = true[:-1], true[-1]
    largest, off = np.abs(values).max(), np.abs(result.values - values)
    ranks = sorted({report.rank for report in result.completion or ()})
    within = int((off <= result.errors).sum()) + int(abs(result.server_value - server) <= result.server_error)
    return [
        name,
        f"{ranks[0]} to {ranks[-1]}",
        f"{deviation(result, values):.2%}",
        f"{off.max() / largest:.2%}",
        f"{result.errors.max() / largest:.2%}",
        f"{within} of {len(true)}",
        f"{abs(result.server_value - server) / largest:.2%}",
    ]
