"""VerFedSV and other measures compared with the definition: Shapley values by retraining on every coalition."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import combinations

import numpy as np

from experiments.experiment import Experiment, Findings, Results, Table
from experiments.lab import Settings, Trained, final_loss, split, train_asynchronously, train_synchronously
from experiments.shap import kendalls_tau, shap_scores
from verfedsv.data import VerticalData
from verfedsv.data import prepare as prepare_columns
from verfedsv.losses import Array, Floats
from verfedsv.shapley.blocks import available_threads

Coalition = frozenset[int]

TITLES = {
    "retraining": "retraining",
    "synchronous": "VerFedSV, synchronous",
    "asynchronous": "VerFedSV, asynchronous",
    "leave-one-out": "leave-one-out",
    "situational": "situational importance",
    "information": "conditional mutual information",
    "shap": "SHAP",
}


class BaselineSettings(Settings):
    """The numbers of clients to split the features between; `clients` itself is not used."""

    clients: int = 0
    splits: tuple[int, ...] = (3, 4, 5, 6)
    cells: int = 6


def parts(name: str, settings: BaselineSettings) -> Mapping[str, Callable[[], Findings]]:
    """Return all measures for each number of clients."""

    def measure(n_clients: int) -> Findings:
        data = split(name, settings.model_copy(update={"clients": n_clients}))
        trained = train_synchronously(data, settings)
        losses = _losses_by_retraining(data, settings)
        everybody = frozenset(range(n_clients))
        found = {
            "retraining": shapley_values_of(lambda coalition: -losses[coalition], n_clients),
            "synchronous": trained.value().values,
            "asynchronous": train_asynchronously(data, settings).value().values,
            "leave-one-out": np.array([losses[everybody - {m}] - losses[everybody] for m in range(n_clients)]),
            "situational": _situational_importance(trained),
            "information": _information(data, settings.cells),
            "shap": shap_scores(data, settings, trained),
        }
        return {kind: values.tolist() for kind, values in found.items()}

    return {f"{n_clients} clients": partial(measure, n_clients) for n_clients in settings.splits}


def shapley_values_of(utility: Callable[[Coalition], float], n_players: int) -> Floats:
    """Return the Shapley values of a game, by the definition."""
    values = np.zeros(n_players)
    for coalition in coalitions(n_players):
        for m in set(range(n_players)) - coalition:
            weight = 1 / (n_players * math.comb(n_players - 1, len(coalition)))
            values[m] += weight * (utility(coalition | {m}) - utility(coalition))
    return values


def coalitions(n_players: int) -> Iterator[Coalition]:
    """Yield every set of players, the empty one first."""
    for size in range(n_players + 1):
        yield from map(frozenset, combinations(range(n_players), size))


def _losses_by_retraining(data: VerticalData, settings: Settings) -> Mapping[Coalition, float]:
    """Return the loss, on all training samples, of a model trained from scratch by each coalition alone."""

    def train(coalition: Coalition) -> float:
        # The empty coalition is a client without features: the server still has its intercept.
        nobody = replace(data.clients[0], name="nobody", numeric=np.zeros((len(data.labels), 1)), categorical=None)
        members = tuple(data.clients[m] for m in sorted(coalition)) or (nobody,)
        return final_loss(replace(data, clients=members), settings)

    every = list(coalitions(len(data.clients)))
    with ThreadPoolExecutor(available_threads()) as pool:
        return dict(zip(every, pool.map(train, every), strict=True))


def _situational_importance(trained: Trained) -> Floats:
    """Return how far each client's embeddings are from their mean, on average: Achen's measure, as in Wang (2019).

    For a linear model, the effect of a client's features in a sample against that of their means.
    """
    embeddings = trained.evaluation.embeddings
    distances: Floats = np.abs(embeddings - embeddings.mean(axis=1, keepdims=True)).mean(axis=(1, 2))
    return distances


def _information(data: VerticalData, n_cells: int) -> Floats:
    """Return the Shapley values of the mutual information between features and labels, after Han (2021).

    A client's marginal value is its information on the labels given that of a coalition. Each client's features are
    reduced to cells by k-means; information is the plug-in estimate with the bias correction of Miller and Madow.
    """
    # Imported late: it takes longer than all of this package.
    from sklearn.cluster import MiniBatchKMeans

    is_train = ~data.is_test
    cells = []
    for client in data.clients:
        features = prepare_columns(client, "standardise", is_train)[is_train]
        cells.append(MiniBatchKMeans(n_cells, n_init=3, random_state=0, batch_size=4096).fit_predict(features))
    labels = data.labels[is_train]

    def information(coalition: Collection[int]) -> float:
        joint = _numbered([cells[m] for m in sorted(coalition)], len(labels))
        return _entropy(labels) + _entropy(joint) - _entropy(_numbered([joint, labels], len(labels)))

    return shapley_values_of(information, len(cells))


def _numbered(columns: Sequence[Array], n_samples: int) -> Array:
    """Return a number for each sample, equal for samples that are equal in all columns."""
    number = np.zeros(n_samples, dtype=np.intp)
    for column in columns:
        number = np.unique(number * (int(column.max()) + 1) + column, return_inverse=True)[1]
    return number


def _entropy(numbers: Array) -> float:
    counts = np.bincount(numbers)
    parts = counts[counts > 0] / len(numbers)
    return float(-(parts * np.log(parts)).sum() + (len(parts) - 1) / (2 * len(numbers)))


def _tau(part: Findings, kind: str) -> float:
    return kendalls_tau(part["retraining"], part[kind])


def tables(results: Results) -> list[Table]:
    """Return tau against retraining for each measure and number of clients, and the shares of one split."""
    kinds = [kind for kind in TITLES if kind != "retraining"]
    rows = [
        [f"{name.capitalize()}, {split_name}", *(f"{_tau(part, kind):.2f}" for kind in kinds)]
        for name, measured in results.items()
        for split_name, part in measured.items()
    ]
    means = [
        np.mean([_tau(part, kind) for measured in results.values() for part in measured.values()]) for kind in kinds
    ]
    rows.append(["mean", *(f"{mean:.2f}" for mean in means)])
    found = [Table(["Kendall's tau with retraining", *(TITLES[kind] for kind in kinds)], rows)]
    for name, measured in results.items():
        split_name, part = list(measured.items())[-1]
        shares = {kind: 100 * np.array(part[kind]) / np.sum(part[kind]) for kind in TITLES}
        cells = [
            [f"client {m + 1}", *(f"{shares[kind][m]:.1f}" for kind in TITLES)] for m in range(len(part["retraining"]))
        ]
        found.append(Table(["percent", *TITLES.values()], cells, f"Shares, {name.capitalize()}, {split_name}:"))
    return found


EXPERIMENT = Experiment(
    name="baselines",
    title="Other measures, and the definition by retraining",
    about="The definition that the paper starts from: the loss of a model trained by each coalition alone, from "
    "scratch. Beside it VerFedSV, leave-one-out (by retraining), situational importance (Achen; Wang 2019), Shapley "
    "values of the mutual information (Han 2021; features reduced to cells by k-means), and SHAP.",
    settings_type=BaselineSettings,
    parts=parts,
    tables=tables,
)
