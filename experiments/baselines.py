"""VerFedSV and other measures compared with the definition: Shapley values by retraining on every coalition."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache, partial
from itertools import combinations

import numpy as np

from experiments.experiment import Experiment, Findings, Results, Table, by_seed, starting, title_of
from experiments.lab import Settings, Trained, final_loss, split, train_asynchronously, train_synchronously
from experiments.shap import kendalls_tau, shap_scores
from verfedsv.arrays import Array, Floats
from verfedsv.data import ClientData, VerticalData
from verfedsv.data import prepare as prepare_columns
from verfedsv.threads import available_threads

Coalition = frozenset[int]

TITLES = {
    "retraining": "retraining",
    "synchronous": "VerFedSV, synchronous",
    "automatic": "the same, rank and λ automatic",
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
    """Return all measures for each number of clients and seed of the batches."""

    @cache
    def information(n_clients: int) -> Floats:
        return _information(split(name, settings.but(clients=n_clients)), settings.cells)

    def measure(n_clients: int, seed: int) -> Findings:
        used = settings.but(clients=n_clients, seed=seed)
        data = split(name, used)
        trained = train_synchronously(data, used)
        losses = _losses_by_retraining(data, used)
        everybody = frozenset(range(n_clients))
        found = {
            "retraining": shapley_values_of(lambda coalition: -losses[coalition], n_clients),
            "synchronous": trained.value().values,
            "automatic": trained.value(rank="auto", regularization="auto").values,
            "asynchronous": train_asynchronously(data, used).value().values,
            "leave-one-out": np.array([losses[everybody - {m}] - losses[everybody] for m in range(n_clients)]),
            "situational": _situational_importance(trained),
            "information": information(n_clients),
            "shap": shap_scores(data, used, trained),
        }
        return {kind: values.tolist() for kind, values in found.items()}

    todo: dict[str, Callable[[], Findings]] = {}
    for n_clients in settings.splits:
        todo |= by_seed(settings.seeds, partial(measure, n_clients), f"{n_clients} clients, ")
    return todo


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
        # The empty coalition is a client whose only feature is zero: its model learns nothing.
        nobody = ClientData("nobody", np.zeros((len(data.labels), 1)))
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


def _taus(found: Sequence[Findings], kind: str) -> list[float]:
    """Return tau with retraining for each seed."""
    return [kendalls_tau(part["retraining"], part[kind]) for part in found]


def _by_split(measured: Mapping[str, Findings]) -> dict[str, list[Findings]]:
    """Return the findings of all seeds for each number of clients."""
    names = dict.fromkeys(name.rpartition(", seed ")[0] for name in measured)
    return {name: starting(measured, f"{name}, seed ") for name in names}


def tables(results: Results) -> list[Table]:
    """Return tau against retraining for each measure and number of clients, and the shares of one split."""
    kinds = [kind for kind in TITLES if kind != "retraining"]
    groups = {(name, label): part for name, measured in results.items() for label, part in _by_split(measured).items()}
    rows = [
        [f"{title_of(name)}, {label}", *(_range(_taus(found, kind), 2) for kind in kinds)]
        for (name, label), found in groups.items()
    ]
    means = [np.mean([tau for found in groups.values() for tau in _taus(found, kind)]) for kind in kinds]
    rows.append(["mean", *(f"{mean:.2f}" for mean in means)])
    caption = f"Kendall's tau with retraining on every coalition{_over(list(groups.values()))}:"
    made = [Table(["", *(TITLES[kind] for kind in kinds)], rows, caption)]
    for name, measured in results.items():
        label, found = list(_by_split(measured).items())[-1]
        shares = {
            kind: np.array([100 * np.array(part[kind]) / np.sum(part[kind]) for part in found]) for kind in TITLES
        }
        cells = [
            [f"client {m + 1}", *(_range(shares[kind][:, m], 1) for kind in TITLES)]
            for m in range(len(found[0]["retraining"]))
        ]
        caption = f"Shares in percent, {title_of(name)}, {label}{_over([found])}:"
        made.append(Table(["", *TITLES.values()], cells, caption))
    return made


def _over(groups: Sequence[Sequence[Findings]]) -> str:
    """Return how many seeds there are, as a phrase to follow a clause."""
    counts = {len(found) for found in groups}
    if counts == {1}:
        return ", one seed"
    number = "/".join(map(str, sorted(counts)))
    return f", lowest to highest of {number} seeds where they differ"


def _range(values: Iterable[float], digits: int) -> str:
    """Return the lowest and the highest value as text, once if they look the same."""
    ordered = sorted(values)
    return " to ".join(dict.fromkeys(f"{x + 0.0:.{digits}f}" for x in (ordered[0], ordered[-1])))


EXPERIMENT = Experiment(
    name="baselines",
    title="Other measures, and the definition by retraining",
    about="Not in the paper: the definition that it starts from, the loss of a model trained by each coalition alone, "
    "from scratch. Beside it VerFedSV, leave-one-out (by retraining), situational importance (Achen; Wang 2019), "
    "Shapley values of the mutual information (Han 2021; features reduced to cells by k-means, once), and SHAP. "
    "Columns are as in the files, and models have no intercept. With few clients tau has few possible values: one "
    "exchanged pair costs 0.67 with three clients.",
    settings_type=BaselineSettings,
    parts=parts,
    tables=tables,
)
