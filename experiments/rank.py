"""Figure 1: the embeddings of a client, over all rounds and samples, are nearly of low rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from experiments.experiment import Claim, Experiment, Findings, Results, Table, Verdict, by_seed, plot_each, title_of
from experiments.lab import Settings, build, run_rounds, split, weights_of
from verfedsv import epsilon_rank
from verfedsv.arrays import Floats
from verfedsv.data import VerticalData, prepare

if TYPE_CHECKING:
    from matplotlib.axes import Axes

PAPER = {"adult": 3, "web": 3, "covtype": 5, "rcv1": 10}
"""The rank that the paper completes with, chosen from this figure, which has no numbers (its table 3)."""


class RankSettings(Settings):
    """Ranks at `eps`, after so many rounds in full batches.

    Of a perceptron's embeddings, only every `round_stride`-th round and `sample_stride`-th sample is taken: all of them
    would not fit in memory.
    """

    eps: float = 1e-3
    round_stride: int = 1
    sample_stride: int = 1


def parts(name: str, settings: RankSettings) -> Mapping[str, Callable[[], Findings]]:
    """Return a training for each seed of the perceptrons; linear models start from zero, so one is enough."""

    def measure(seed: int) -> Findings:
        data = split(name, settings)
        full = settings.but(batch_size=int((~data.is_test).sum()), seed=seed)
        matrices = _linear(data, full) if settings.model == "linear" else _sampled(data, full)
        ranks = {kind: [epsilon_rank(matrix, settings.eps) for matrix in of_kind] for kind, of_kind in matrices.items()}
        n_classes = 1 if data.n_classes == 2 else data.n_classes
        shape = (
            (settings.rounds or 0) // settings.round_stride * n_classes,
            -(-full.batch_size // settings.sample_stride),
        )
        return {
            "ranks": ranks,
            "side": min(shape),
            "features": [int(client.numeric.shape[1]) for client in data.clients],
            "rounds": settings.rounds,
            "samples": full.batch_size,
            "classes": n_classes,
        }

    return by_seed(settings.seeds if settings.model == "perceptron" else 1, measure)


Matrices = Mapping[str, Sequence[Floats]]
"""Matrices of all clients: of one class, and of all classes together."""


def _linear(data: VerticalData, settings: RankSettings) -> Matrices:
    """Return small matrices with the singular values of the clients' embeddings.

    Embeddings are weights, (rounds * classes, features), times features; so only the triangular factors of both matter.
    """
    training = build(data, settings)
    weights = [weights_of(each) for each in run_rounds(training, settings)]
    one, every = [], []
    for m, client in enumerate(data.clients):
        features: Any = prepare(client, settings.scale, ~data.is_test)[~data.is_test]
        right: Floats = np.asarray(np.linalg.qr(features, mode="r"))
        of_rounds = np.stack([of_round[m] for of_round in weights])  # (rounds, features, classes)
        one.append(np.asarray(np.linalg.qr(of_rounds[:, :, 0], mode="r")) @ right.T)
        stacked = of_rounds.swapaxes(1, 2).reshape(-1, of_rounds.shape[1])
        every.append(np.asarray(np.linalg.qr(stacked, mode="r")) @ right.T)
    return {"one class": one, "all classes": every}


def _sampled(data: VerticalData, settings: RankSettings) -> Matrices:
    """Return the embeddings of some rounds and samples, (rounds * classes, samples)."""
    kept = []
    for t, training in enumerate(run_rounds(build(data, settings), settings), 1):
        if t % settings.round_stride == 0:
            kept.append(training.evaluate().embeddings[:, :: settings.sample_stride].astype(np.float32))
    one, every = [], []
    for m in range(len(data.clients)):
        of_rounds = np.stack([embeddings[m].T for embeddings in kept])  # (rounds, classes, samples)
        one.append(of_rounds[:, 0])
        every.append(of_rounds.reshape(-1, of_rounds.shape[2]))
    return {"one class": one, "all classes": every}


def _ranks(measured: Mapping[str, Findings], kind: str = "all classes") -> list[int]:
    """Return the ranks of all clients and seeds."""
    return [rank for part in measured.values() for rank in part["ranks"][kind]]


def tables(results: Results) -> list[Table]:
    """Return the ranks of one class and of all."""
    rows = []
    for name, measured in results.items():
        part, ranks, one = next(iter(measured.values())), _ranks(measured), _ranks(measured, "one class")
        rows.append(
            [
                title_of(name),
                f"{len(part['features'])}",
                _range(part["features"]),
                f"{part['rounds']} x {part['classes']} x {part['samples']:,}",
                f"{_range(one)}, {np.median(one):g}",
                f"{_range(ranks)}, {np.median(ranks):g}",
                str(PAPER[name]),
            ]
        )
    header = [
        "",
        "clients",
        "features of each",
        "rounds x classes x samples",
        "ε-ranks of one class, median",
        "of all classes, median",
        "the paper's r",
    ]
    return [Table(header, rows)]


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def claims(results: Results) -> list[Claim]:
    """Return whether ranks are low, and the paper's r is among them."""
    made = []
    for name, measured in results.items():
        part, ranks = next(iter(measured.values())), _ranks(measured)
        most = part["side"]
        verdict: Verdict = (
            "no" if max(ranks) > most / 4 else "yes" if min(ranks) <= PAPER[name] <= max(ranks) else "in trend"
        )
        made.append(
            Claim(
                "Figure 1: ranks",
                name,
                f"ranks, of matrices whose shorter side is {most:,}",
                f"low; {PAPER[name]} is set from them",
                _range(ranks),
                verdict,
            )
        )
    return made


def _draw(measured: Mapping[str, Findings], axes: Axes) -> None:
    from matplotlib.ticker import MaxNLocator

    counts = Counter(_ranks(measured))
    axes.bar(list(counts), [count / len(measured) for count in counts.values()], 0.8)
    axes.set(
        xlabel="approximated ε-rank, ε = 0.001", ylabel="clients" if len(measured) == 1 else "clients, mean of seeds"
    )
    for each in (axes.xaxis, axes.yaxis):
        each.set_major_locator(MaxNLocator(integer=True))


EXPERIMENT = Experiment(
    name="rank",
    title="Rank of the embedding matrices (Figure 1)",
    about="Trained in full batches, so that all embeddings are known. For each client, the number of singular values "
    "of at least 0.001 times the largest. yes: all ranks are at most a quarter of the shorter side of the matrix that "
    "was measured, and the paper's r is among them; in trend: only the former. This is what the paper says, and no "
    "more: the number of a client's features bounds the rank of a linear model, too.",
    settings_type=RankSettings,
    parts=parts,
    tables=tables,
    claims=claims,
    draw=plot_each(_draw),
)
