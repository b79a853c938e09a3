"""Figure 1: the embeddings of a client, over all rounds and samples, are nearly of low rank."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.experiment import Claim, Experiment, Findings, Results, Table, plot_each
from experiments.lab import Settings, embeddings_of_rounds, split
from verfedsv import epsilon_rank

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class RankSettings(Settings):
    """The `models` to train in full batches; ranks at `eps`, of as many classes together as `classes` lists."""

    eps: float = 1e-3
    models: tuple[str, ...] = ("linear", "perceptron")
    classes: tuple[int, ...] = (1,)


def parts(name: str, settings: RankSettings) -> Mapping[str, Callable[[], Findings]]:
    """Return a training for each model."""

    def measure(model: str) -> Findings:
        data = split(name, settings)
        embeddings = embeddings_of_rounds(data, settings.model_copy(update={"model": model}))
        n_clients, n_rounds, n_samples, n_classes = embeddings.shape
        counts = [count for count in settings.classes if count <= n_classes]
        ranks = {
            str(count): [
                epsilon_rank(of_client[:, :, :count].swapaxes(1, 2).reshape(-1, n_samples), settings.eps)
                for of_client in embeddings
            ]
            for count in counts
        }
        features = [int(client.numeric.shape[1]) for client in data.clients]
        return {"ranks": ranks, "features": features, "rounds": n_rounds, "samples": n_samples, "clients": n_clients}

    return {model: partial(measure, model) for model in settings.models}


def tables(results: Results) -> list[Table]:
    """Return the ranks for each data set and model, and how they grow with the classes."""
    rows, growth = [], []
    for name, measured in results.items():
        for model, part in measured.items():
            ranks = next(reversed(part["ranks"].values()))
            rows.append(
                [
                    f"{name.capitalize()}, {model}",
                    str(part["clients"]),
                    f"{min(part['features'])} to {max(part['features'])}",
                    f"{part['rounds']} x {len(part['ranks']) and next(reversed(part['ranks']))} x {part['samples']:,}",
                    f"{min(ranks)} to {max(ranks)}",
                    f"{np.median(ranks):.0f}",
                ]
            )
            if len(part["ranks"]) > 1:
                medians = (f"{count}: {np.median(found):.0f}" for count, found in part["ranks"].items())
                growth.append([f"{name.capitalize()}, {model}", "; ".join(medians)])
    header = ["", "clients", "features of each", "rounds x classes x samples", "ε-ranks", "median"]
    found = [Table(header, rows)]
    if growth:
        found.append(Table(["", "median ε-rank by number of classes"], growth, "Growth with the classes:"))
    return found


def claims(results: Results) -> list[Claim]:
    """Return whether ranks are at most a quarter of the largest possible."""
    made = []
    for name, measured in results.items():
        for model, part in measured.items():
            count, ranks = next(reversed(part["ranks"].items()))
            side = min(part["rounds"] * int(count), part["samples"])
            what = f"{name.capitalize()}, {model}: largest rank, of a matrix that could have {side:,}"
            made.append(Claim(what, str(max(ranks)), "low", max(ranks) <= side / 4))
    return made


def _draw(measured: Mapping[str, Findings], axes: Axes) -> None:
    every = {model: Counter(next(reversed(part["ranks"].values()))) for model, part in measured.items()}
    width = 0.8 / len(every)
    for number, (model, counts) in enumerate(every.items()):
        shift = (number - (len(every) - 1) / 2) * width
        axes.bar(np.array(list(counts)) + shift, list(counts.values()), width, label=model)
    axes.set(xlabel="approximated ε-rank, ε = 0.001", ylabel="clients")
    axes.locator_params(axis="y", integer=True)
    axes.legend(frameon=False)


EXPERIMENT = Experiment(
    name="rank",
    title="Rank of the embedding matrices (Figure 1)",
    about="Trained in full batches, so that all embeddings are known. For each client, the number of singular values "
    "of at least 0.001 times the largest.",
    settings_type=RankSettings,
    parts=parts,
    tables=tables,
    claims=claims,
    draw=plot_each(_draw),
)
