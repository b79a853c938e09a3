"""Table 6: which splits of the features between three clients give the paper's shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, permutations
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from experiments.ablation import PAPER, WITHIN
from experiments.experiment import Experiment, Findings, Results, Table, by_seed, seeds_text, spread, title_of
from experiments.lab import Settings, build, run_rounds, split, weights_of
from verfedsv import shapley_values
from verfedsv.arrays import Array, Floats
from verfedsv.data import prepare
from verfedsv.losses import Loss, get_loss

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Split = Sequence[NDArray[np.intp]]
"""The features of each client."""


class SplitSettings(Settings):
    """Random splits between `split_clients`, of which `checked` are also valued exactly, on `checked_samples` samples.

    `clients` is 1: the joint training does not depend on the split. `kept` splits are kept for the figure.
    """

    splits: int = 1000
    split_clients: int = 3
    checked: int = 10
    checked_samples: int = 5000
    kept: int = 200


def parts(name: str, settings: SplitSettings) -> Mapping[str, Callable[[], Findings]]:
    """Return a training for each order of the batches, with other random splits for each."""
    return by_seed(settings.seeds, partial(_measure, name, settings))


def _measure(name: str, settings: SplitSettings, seed: int) -> Findings:
    joint, rng = Joint.train(name, settings.but(seed=seed)), np.random.default_rng(seed)
    n_features = joint.features.shape[1]
    of_features = joint.first_order_values()
    contiguous = _divide(np.arange(n_features), settings.split_clients)
    drawn = [_divide(rng.permutation(n_features), settings.split_clients) for _ in range(settings.splits)]
    shares = np.array([_shares(_sum_features(of_features, clients)) for clients in drawn])
    return {
        "features": n_features,
        "rounds": len(joint.weights),
        "samples": len(joint.labels),
        "total": 100 * float(of_features.sum()) / joint.decrease(),
        "contiguous": _shares(_sum_features(of_features, contiguous)).tolist(),
        "quartiles": np.quantile(np.sort(shares)[:, ::-1], [0.25, 0.5, 0.75], axis=0).T.tolist(),
        **compare(shares, np.array(PAPER[name])),
        "error": _largest_error(joint, [contiguous, *drawn[: settings.checked]], settings, rng),
        "points": shares[: settings.kept, :2].round(2).tolist(),
    }


@dataclass(frozen=True, eq=False)
class Joint:
    """A training of linear models without intercept, on the features of all clients together.

    Clients change only their own weights, each by its own features, so the joint weights do not depend on the split as
    long as features are not scaled. `features` are (samples, features), `labels` as the loss encoded them, `weights`,
    (rounds, features, classes), those that the uploads of each round were embedded with.
    """

    features: Any
    labels: Array
    loss: Loss
    weights: Floats

    @classmethod
    def train(cls, name: str, settings: SplitSettings) -> Joint:
        """Train a model with all features of a data set."""
        data = split(name, settings)
        training = build(data, settings)
        weights = [weights_of(each)[0] for each in chain([training], run_rounds(training, settings))]
        is_train, loss = ~data.is_test, get_loss(data.loss)
        features: Any = prepare(data.clients[0], settings.scale, is_train)
        labels = loss.encode(data.labels[is_train], weights[0].shape[1])
        # The step of the last round is never uploaded.
        return cls(features[is_train], labels, loss, np.stack(weights[:-1]))

    def take(self, rows: NDArray[np.intp]) -> Joint:
        """Return the same training, valued on some of the samples."""
        return replace(self, features=self.features[rows], labels=self.labels[rows])

    def first_order_values(self) -> Floats:
        """Return the value of each feature to first order, (features,), averaged over rounds.

        In a round it is minus the mean over samples of f'(x) . d, where d is the change of the feature's part of the
        embedding, and x is halfway between the summed embeddings before and after the round.
        """
        total = np.zeros(self.features.shape[1])
        for before, after in zip(self.weights[:-1], self.weights[1:], strict=True):
            slopes = self.loss.gradient(self.features @ ((before + after) / 2), self.labels)
            total -= ((self.features.T @ slopes) * (after - before)).sum(axis=1)
        return np.asarray(total / len(self.labels) / len(self.weights))

    def decrease(self) -> float:
        """Return the decrease of the mean loss, averaged over rounds."""
        first, last = (
            self.loss.value(self.features @ weights, self.labels).mean() for weights in self.weights[[0, -1]]
        )
        return float(first - last) / len(self.weights)

    def exact_values(self, clients: Split) -> Floats:
        """Return the values of clients that share the features, (clients,), from all embeddings."""
        total, columns = np.zeros(len(clients)), [self.features[:, own] for own in clients]

        def embed(weights: Floats) -> Floats:
            return np.stack([x @ weights[own] for x, own in zip(columns, clients, strict=True)])

        previous = embed(self.weights[0])
        for weights in self.weights[1:]:
            current = embed(weights)
            total += shapley_values(previous, current, self.labels, self.loss, "exact").values
            previous = current
        return total / len(self.weights)


def _divide(features: NDArray[np.intp], n_clients: int) -> Split:
    """Return features split into contiguous blocks of equal size."""
    edges = np.linspace(0, len(features), n_clients + 1).astype(np.intp)
    return np.split(features, edges[1:-1])


def _sum_features(of_features: Floats, clients: Split) -> Floats:
    return np.array([of_features[own].sum() for own in clients])


def _shares(values: Floats) -> Floats:
    """Return shares in percent."""
    return np.asarray(100 * values / values.sum())


def compare(shares: Floats, paper: Floats) -> dict[str, Any]:
    """Return where the paper's row, (clients,), lies among the shares of random splits, (splits, clients).

    "unequal" is the percentage of splits at least as far from equal shares; "percentiles" are those of the paper's
    shares among the shares of all clients, which have the same distribution; "nearest" is the least largest difference
    of a share in percentage points, for the clients in order and in any order; "within" is the percentage of splits
    whose shares are all within 2 percentage points, in any order.
    """
    distances = np.abs(shares - paper).max(axis=1)
    # Any order: sorting both gives the smallest largest difference.
    unnamed = np.abs(np.sort(shares) - np.sort(paper)).max(axis=1)
    from_equal = np.square(shares - shares.mean(axis=1, keepdims=True)).sum(axis=1)
    return {
        "unequal": 100 * float(np.mean(from_equal >= np.square(paper - paper.mean()).sum())),
        "percentiles": [100 * float(np.mean(shares <= share)) for share in paper],
        "nearest": [float(distances.min()), float(unnamed.min())],
        "within": 100 * float(np.mean(unnamed <= WITHIN)),
    }


def _largest_error(
    joint: Joint, splits: Sequence[Split], settings: SplitSettings, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the largest difference of a share to first order from the exact one, on the same samples."""
    n_samples = min(settings.checked_samples, len(joint.labels))
    some = joint.take(np.sort(rng.permutation(len(joint.labels))[:n_samples]))
    of_features = some.first_order_values()
    pairs = [(_shares(_sum_features(of_features, clients)), _shares(some.exact_values(clients))) for clients in splits]
    differences = [float(np.abs(first - exact).max()) for first, exact in pairs]
    return {
        "largest": max(differences),
        "contiguous": pairs[0][1].tolist(),
        "samples": n_samples,
        "splits": len(splits),
    }


def tables(results: Results) -> list[Table]:
    """Return the shares of splits, and where the paper's lie among them."""
    shares, places = [], []
    for name, measured in results.items():
        title, found, paper = title_of(name), list(measured.values()), PAPER[name]
        shares.append([f"{title}, contiguous thirds", *_each(found, "contiguous")])
        quartiles = np.median([part["quartiles"] for part in found], axis=0)  # (clients, quartiles)
        cells = [f"{middle:.2f} ({low:.2f} to {high:.2f})" for low, middle, high in quartiles]
        shares.append([f"{title}, random thirds, in order of size", *cells])
        shares.append([f"{title}, the paper", *(f"{share:.2f}" for share in paper)])
        places.append(_place(title, found))
    return [
        Table(
            ["percent", "client 1, or the largest", "client 2, or the middle", "client 3, or the smallest"],
            shares,
            "Shares of splits to first order; median and quartiles over random splits:",
        ),
        Table(
            [
                "",
                "random splits at least as unequal, %",
                f"within {WITHIN:g} points in any order, %",
                "nearest, clients in order, points",
                "in any order",
                "percentiles of the paper's shares",
                "largest error to first order, points",
                "sum of first-order values, % of the decrease",
            ],
            places,
            "Where the paper's row lies among random splits, and how exact first-order shares are:",
        ),
    ]


def _each(found: Sequence[Findings], key: str) -> list[str]:
    return [spread(values) for values in np.array([part[key] for part in found]).T]


def _place(title: str, found: Sequence[Findings]) -> list[str]:
    errors = [part["error"] for part in found]
    return [
        f"{title}, {seeds_text(found)}",
        spread([part["unequal"] for part in found]),
        spread([part["within"] for part in found]),
        *_each(found, "nearest"),
        ", ".join(f"{x:.1f}" for x in np.median([part["percentiles"] for part in found], axis=0)),
        f"{max(error['largest'] for error in errors):.4f} ({sum(error['splits'] for error in errors)} splits)",
        f"{np.median([part['total'] for part in found]):.2f}",
    ]


def _draw(results: Results, figure: Figure) -> None:
    figure.set_size_inches(3.2 * len(results), 3.2)
    plots = figure.subplots(1, len(results), squeeze=False)[0]
    for axes, (name, measured) in zip(plots, results.items(), strict=True):
        points = np.array([point for part in measured.values() for point in part["points"]])
        contiguous = np.median([part["contiguous"] for part in measured.values()], axis=0)
        renamed = np.array(list(permutations(PAPER[name]))[1:])
        axes.scatter(*points.T, s=3, alpha=0.4, linewidth=0, rasterized=True, label="random splits")
        axes.plot(*contiguous[:2], "s", color="C1", markersize=5, label="contiguous split")
        axes.plot(*renamed[:, :2].T, "x", color="grey", markersize=4, label="the paper's, clients renamed")
        axes.plot(*PAPER[name][:2], "*", color="black", markersize=8, label="the paper's")
        axes.set(xlabel="share of client 1, %", ylabel="share of client 2, %", title=title_of(name))
    figure.legend(
        *plots[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False, markerscale=1.5
    )


EXPERIMENT = Experiment(
    name="splits",
    title="Which splits of features give the paper's shares (Table 6)",
    about="The paper does not say which features each of the three clients has. Linear models without intercept learn "
    "the same however the features are split, and to first order the value of a client is the sum of those of its "
    "features. So one training gives the shares of any split: here of random ones into three equal parts, drawn anew "
    "for each seed, which also orders the batches. Some of the splits, and the contiguous one, are valued in full on a "
    "part of the samples, to show how accurate that is.",
    settings_type=SplitSettings,
    parts=parts,
    tables=tables,
    draw=_draw,
)
