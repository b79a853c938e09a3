"""In which settings VerFedSV and SHAP agree: training time, model, averages of SHAP values, background."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from experiments.experiment import Findings, Table, seeds_text, title_of
from experiments.lab import Settings, build, run_asynchronously, run_rounds, schedule, split, weights_of
from experiments.shap_scores import LinearShap, dense, starts_of, train_features
from verfedsv import shapley_values
from verfedsv.arrays import Array, Floats
from verfedsv.data import VerticalData, prepare
from verfedsv.federation import Training

Embed = Callable[[Training], Floats]
"""Returns embeddings of some samples, (clients, samples, classes), at this moment of a training."""

KINDS = ("synchronous", "asynchronous")
MODELS = ("joint", "separate")

ENOUGH = 0.71
"""The accuracy from which a model of Covtype counts as one like the paper's, which has 72 %."""


class GridSettings(Settings):
    """The grid compares values and SHAP after each number of epochs in `grid`, for `grid_seeds` orders of batches.

    True values come from about `grid_rows` of the training rows. Asynchronous training ends after `grid_seconds`.
    Backgrounds of `backgrounds` rows are drawn `draws` times, and all rows are one more background.
    """

    grid: tuple[float, ...] = ()
    grid_seeds: int = 5
    grid_rows: int = 10_000
    grid_seconds: float = 50.0
    backgrounds: tuple[int, ...] = (100, 1000)
    draws: int = 5


@dataclass(frozen=True, eq=False)
class Snapshot:
    """A training at some moment: what clients contributed so far, its weights, (features, classes), its accuracy."""

    values: Floats
    weights: Floats
    accuracy: float


def snapshots(
    training: Training,
    steps: Iterable[Training],
    embed: Embed,
    labels: Array,
    rounds: Sequence[int],
) -> list[Snapshot]:
    """Run a training; return its states after some of its rounds.

    Values are sums over rounds, from the embeddings after each round, (clients, samples, classes), and zeros before the
    first: of the same model that SHAP explains.
    """
    found = []
    previous = np.zeros_like(embed(training))
    values: Floats = np.zeros(len(previous))
    for _ in steps:
        current = embed(training)
        values = values + shapley_values(previous, current, labels, training.server.loss, "closed-form").values
        previous = current
        if training.server.n_rounds in rounds:
            reached = training.evaluate()
            accuracy = reached.train["accuracy"] if np.isnan(reached.test["accuracy"]) else reached.test["accuracy"]
            found.append(Snapshot(values, np.vstack(weights_of(training)), accuracy))
    return found


def embedded(features: Sequence[Floats]) -> Embed:
    """Return a function that returns the embeddings of samples by the clients' linear models as they are."""
    return lambda training: np.stack([x @ w for x, w in zip(features, weights_of(training), strict=True)])


def held(rows: slice) -> Embed:
    """Return a function that returns the embeddings that the server holds, which asynchronous values are from."""
    return lambda training: training.server.state()["table"][:, rows]


def fit_separately(name: str, settings: GridSettings) -> tuple[Floats, float]:
    """Return the weights, (features, classes), of a logistic regression on all features, and its accuracy.

    Fitted as in the authors' script.
    """
    # Imported late: it takes longer than all of this package.
    from sklearn.linear_model import LogisticRegression

    data = split(name, settings)
    joined = np.hstack([dense(prepare(client, settings.scale, ~data.is_test)) for client in data.clients])
    model = LogisticRegression(max_iter=1000).fit(joined[~data.is_test], data.labels[~data.is_test])
    scored = data.is_test if data.is_test.any() else ~data.is_test
    return model.coef_.T, float(model.score(joined[scored], data.labels[scored]))


def measure_grid(name: str, settings: GridSettings, fit: Callable[[], tuple[Floats, float]], seed: int) -> Findings:
    """Return tau for each cell of the grid, from one training of each kind; `fit` returns the separate model."""
    longest = settings.but(seed=seed, epochs=max(settings.grid), duration=settings.grid_seconds)
    data = split(name, longest)
    features, labels = [dense(x) for x in train_features(data, longest)], data.labels[~data.is_test]
    # Every so many rows: the samples are in the order of the file.
    rows = slice(None, None, max(1, len(labels) // settings.grid_rows))
    valued = [np.ascontiguousarray(x[rows]) for x in features]

    rounds = [schedule(len(labels), longest.but(epochs=epochs)).n_rounds for epochs in settings.grid]
    # The time in which asynchronous clients take as many steps.
    stamps = [max(1, round(n * settings.period / settings.stamp_every)) for n in rounds]
    stamps = [k for k in stamps if k * settings.stamp_every <= settings.grid_seconds + 1e-9]

    first, second = build(data, longest), build(data, longest)
    found = {
        "synchronous": snapshots(first, run_rounds(first, longest), embedded(valued), labels[rows], rounds),
        "asynchronous": snapshots(second, run_asynchronously(second, longest), held(rows), labels[rows], stamps),
    }
    separate, accuracy = fit()
    accuracies = {kind: [moment.accuracy for moment in moments] for kind, moments in found.items()}
    return {
        "epochs": list(settings.grid),
        "seconds": [k * settings.stamp_every for k in stamps],
        "rows": len(labels[rows]),
        "accuracy": {**accuracies, "separate": accuracy},
        "tau": _compare(found, separate, _explain(data, features, settings, seed)),
    }


def _explain(
    data: VerticalData, features: Sequence[Floats], settings: GridSettings, seed: int
) -> dict[str, list[LinearShap]]:
    """Return explanations of all training samples for each size of the background, one for each draw of it."""
    rng, joined, labels = np.random.default_rng(seed), np.hstack(features), data.labels[~data.is_test]
    drawn = {
        f"{size:,} rows": [joined[rng.choice(len(joined), size, replace=False)] for _ in range(settings.draws)]
        for size in settings.backgrounds
    }
    return {
        size: [LinearShap.on(joined, labels, data.n_classes, starts_of(features), background) for background in of_size]
        for size, of_size in {**drawn, "all rows": [joined]}.items()
    }


def _compare(
    found: Mapping[str, Sequence[Snapshot]], separate: Floats, explained: Mapping[str, Sequence[LinearShap]]
) -> dict[str, list[list[float]]]:
    """Return tau after each number of epochs and for each draw, by kind of values, model, average and background.

    The joint model is that of the synchronous training, for asynchronous values too.
    """
    taus: dict[str, list[list[float]]] = {}
    for kind, moments in found.items():
        joint = [moment.weights for moment in found["synchronous"][: len(moments)]]
        for model, weights in zip(MODELS, (joint, [separate] * len(moments)), strict=True):
            for size, draws in explained.items():
                for w, moment in zip(weights, moments, strict=True):
                    of_draws = [x.taus(w, moment.values) for x in draws]
                    for average in of_draws[0]:
                        key = f"{kind}; {model}; {average}; {size}"
                        taus.setdefault(key, []).append([of_draw[average] for of_draw in of_draws])
    return taus


def _combinations(grid: Sequence[Findings], kind: str, model: str) -> dict[str, Floats]:
    """Return tau for each average and background, (epochs, seeds * draws)."""
    start = f"{kind}; {model}; "
    return {
        key.removeprefix(start).replace("; ", ", "): np.hstack([np.array(part["tau"][key], float) for part in grid])
        for key in sorted(grid[0]["tau"], key=lambda key: key.split("; ")[:3])
        if key.startswith(start)
    }


def _accuracies(grid: Sequence[Findings], kind: str) -> Floats:
    """Return the median accuracy over seeds after each number of epochs."""
    middle: Floats = np.median([part["accuracy"][kind] for part in grid], axis=0)
    return middle


def _moments(grid: Sequence[Findings], kind: str, accuracies: Floats) -> list[str]:
    """Return after how much training values and SHAP were compared, each with an accuracy of the same training."""
    return [f"{end}, {100 * accuracy:.1f} %" for end, accuracy in zip(_ends(grid, kind), accuracies, strict=True)]


def _ends(grid: Sequence[Findings], kind: str) -> list[str]:
    """Return after how much training values and SHAP were compared."""
    if kind == "synchronous":
        return [f"{x:g} epoch{'' if x == 1 else 's'}" for x in grid[0]["epochs"]]
    return [f"{x:g} s" for x in grid[0]["seconds"]]


def _range(values: Floats) -> str:
    """Return the median and, of different values, the smallest and largest, as text; "-" for NaN."""
    if np.isnan(values).any():
        return "-"
    text = f"{np.median(values):.2f}"
    return text if np.ptp(values) < 0.005 else f"{text} ({values.min():.2f} to {values.max():.2f})"


def grid_tables(name: str, grid: Sequence[Findings], paper: Sequence[float]) -> list[Table]:
    """Return where in the grid the paper's tau with both kinds of values is reached, and all of its cells."""
    reached = [_reached(list(_grid_cells(grid, kind)), kind, tau) for kind, tau in zip(KINDS, paper, strict=True)]
    header = [
        "the paper's tau",
        f"settings whose median reaches it, accuracy at least {ENOUGH:.0%}",
        "the largest median of these",
        "the largest tau of a single draw",
        "the largest median at any accuracy",
    ]
    caption = (
        f"Other settings, {title_of(name)}: the length of training, the model that is explained, how SHAP values are "
        f"averaged, the size of the background. Medians of tau are over {seeds_text(grid)} of batches and draws of "
        f"the background. Values are those of {grid[0]['rows']:,} training rows, from all embeddings, or in "
        "asynchronous training from those at the server. A signed average is w (mean - mean of the background): zero, "
        'shown as "-", if all rows are the background, else the noise of its draw. As plain sums over classes are zero '
        "too, absolute values are added up over classes, or each sample counts with its own class only "
        '("true class"). The joint model is that of the synchronous training after as many steps, whose accuracy is '
        "in this table; in those below, it is that of the training that the values are of."
    )
    return [Table(header, reached, caption), *(_cells(name, grid, kind, model) for kind in KINDS for model in MODELS)]


def _cells(name: str, grid: Sequence[Findings], kind: str, model: str) -> Table:
    combinations = _combinations(grid, kind, model)
    rows = [
        [moment, *(_range(taus[number]) for taus in combinations.values())]
        for number, moment in enumerate(_moments(grid, kind, _accuracies(grid, kind)))
    ]
    what = {
        "joint": "the joint model of the synchronous training after as many steps",
        "separate": f"a separate logistic regression (accuracy {100 * grid[0]['accuracy']['separate']:.1f} %)",
    }
    caption = (
        f"{title_of(name)}: median and range of tau of {kind} values and SHAP on {what[model]}; rows: the length of "
        f"the {kind} training, and its accuracy"
    )
    return Table(["", *combinations], rows, caption, is_detail=True)


class _Cell(NamedTuple):
    """Tau of all seeds and draws in one setting of the grid."""

    middle: float
    largest: float
    setting: str
    is_accurate: bool


def _grid_cells(grid: Sequence[Findings], kind: str) -> Iterator[_Cell]:
    # Of the synchronous training after as many steps, whose model is explained; in as many digits as are shown.
    accuracies = _accuracies(grid, "synchronous")
    ends = _ends(grid, kind)
    reached = accuracies[: len(ends)]
    moments = [f"{end}, joint model at {100 * accuracy:.1f} %" for end, accuracy in zip(ends, reached, strict=True)]
    is_accurate = np.round(reached, 3) >= ENOUGH
    for model in MODELS:
        for combination, taus in _combinations(grid, kind, model).items():
            for moment, enough, draws in zip(moments, is_accurate, taus, strict=True):
                if not np.isnan(draws).any():
                    setting = f"{model} model, {combination}, {moment}"
                    yield _Cell(float(np.median(draws)), float(draws.max()), setting, bool(enough))


def _reached(cells: Sequence[_Cell], kind: str, paper: float) -> list[str]:
    accurate = [cell for cell in cells if cell.is_accurate]
    # The paper rounds to two digits.
    reaching = [cell.setting for cell in accurate if round(cell.middle, 2) >= paper]
    single = "-"
    if accurate:
        largest = f"{max(cell.largest for cell in accurate):.2f}"
        single = f"{largest} ({'; '.join(cell.setting for cell in accurate if f'{cell.largest:.2f}' == largest)})"
    return [
        f"{kind} values, {paper:.2f}",
        "; ".join(reaching) or "none",
        _best(accurate),
        single,
        _best(cells),
    ]


def _best(cells: Sequence[_Cell]) -> str:
    if not cells:
        return "-"
    best = max(cells, key=lambda cell: cell.middle)
    return f"{best.middle:.2f} ({best.setting})"
