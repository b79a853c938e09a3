"""How often the true error of a completed value is within the stated one, on data not used to tune the estimate."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from experiments.experiment import Experiment, Findings, Results, Table, by_seed, title_of
from experiments.lab import Settings, Trained, train_synchronously
from verfedsv import CompletionWarning, Valuation
from verfedsv.arrays import Floats
from verfedsv.data import Samples, VerticalData, load, split_features
from verfedsv.valuation.verdict import judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TUNED = ("adult",)
"""The data sets here that the estimate of completion's errors was tuned on."""

KINDS = {
    "auto": "Rank and λ chosen automatically, the default",
    "paper": "Rank 3 and λ = 0.1, as in the paper on Adult",
}

ROUNDING = 1e-12
"""True errors below this fraction of the largest value are rounding, and count as 0."""

LEAST_RATIO = 1e-4
"""The left end of the figure; smaller ratios are drawn there."""


class CoverageSettings(Settings):
    """What is drawn for each seed, between the limits given here, both included.

    The numbers of clients, of batches in an epoch, and of epochs, and the rate; `train` rows; and the order of the
    features before they are split. Numbers of batches and rates are drawn evenly on a logarithmic scale. The base
    class's own `clients`, `batch_size`, `rate` and `epochs` are replaced by what was drawn. With `halves`, classes in
    the lower half of the list are told from those in the upper half.
    """

    clients: int = 0
    batch_size: int = 0
    rate: float = 0.0
    n_clients: tuple[int, int] = (3, 8)
    n_batches: tuple[int, int] = (5, 20)
    n_epochs: tuple[int, int] = (2, 10)
    rates: tuple[float, float]
    halves: bool = False


def parts(name: str, settings: CoverageSettings) -> Mapping[str, Callable[[], Findings]]:
    """Return a training for each seed."""
    return by_seed(settings.seeds, partial(_measure, name, settings))


def _measure(name: str, settings: CoverageSettings, seed: int) -> Findings:
    data, drawn = draw_run(name, settings, seed)
    trained = train_synchronously(data, drawn, with_truth=True)
    with warnings.catch_warnings():
        # Unknown errors are counted here.
        warnings.simplefilter("ignore", CompletionWarning)
        automatic = trained.value(rank="auto", regularization="auto")
        fixed = trained.value()
    return {
        "clients": drawn.clients,
        "batch_size": drawn.batch_size,
        "epochs": drawn.epochs,
        "rate": drawn.rate,
        "rounds": automatic.n_rounds,
        "losses": [float(automatic.losses[0]), trained.evaluation.train_loss],
        "auto": compare(trained, automatic),
        "paper": compare(trained, fixed),
    }


@cache
def _load(name: str) -> Samples:
    return load(name)


def draw_run(name: str, settings: CoverageSettings, seed: int) -> tuple[VerticalData, CoverageSettings]:
    """Return the data and settings of a training, drawn from the seed and the name of the data set."""
    rng = np.random.default_rng([seed, *name.encode()])
    samples = _load(settings.source or name)
    rows = rng.permutation(len(samples.labels))[: settings.train]
    order = rng.permutation(samples.features.shape[1])
    labels, n_classes, classes = samples.labels[rows], samples.n_classes, samples.classes
    if settings.halves:
        labels, n_classes, classes = (2 * labels >= n_classes).astype(np.intp), 2, None
    features: Any = samples.features[rows][:, order]
    chosen = replace(
        samples, features=csr_array(features), labels=labels, n_classes=n_classes, n_test=0, classes=classes
    )
    drawn = settings.but(
        clients=int(rng.integers(*settings.n_clients, endpoint=True)),
        batch_size=math.ceil(len(rows) / _log_uniform(rng, *settings.n_batches)),
        epochs=int(rng.integers(*settings.n_epochs, endpoint=True)),
        rate=_log_uniform(rng, *settings.rates),
        seed=seed,
    )
    return split_features(chosen, drawn.clients, test=0.0), drawn


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(math.log(low), math.log(high))))


def compare(trained: Trained, valuation: Valuation) -> Findings:
    """Return the true and the stated errors of all clients, and the verdict on the valuation."""
    true = np.abs(valuation.values - trained.truth)
    true[true < ROUNDING * np.abs(trained.truth).max()] = 0.0
    return {
        "true": true.tolist(),
        "stated": valuation.errors.tolist(),
        "completion": valuation.completion_errors.tolist(),
        "values": valuation.values.tolist(),
        "verdict": judge(valuation).word,
        "unseen": valuation.n_unseen,
    }


@dataclass(frozen=True, eq=False)
class Pairs:
    """True and stated errors, one of each for every training and client, (pairs,); NaN where an error is unknown.

    `completion` is the part of the stated error that is due to completion. `run` numbers the trainings, and `is_sound`
    tells whether the valuation was called sound.
    """

    true: Floats
    stated: Floats
    completion: Floats
    run: NDArray[np.intp]
    is_sound: NDArray[np.bool_]

    @classmethod
    def of(cls, found: Iterable[Findings]) -> Pairs:
        """Return the pairs of some trainings."""
        columns = [
            (true, stated, completion, run, part["verdict"] == "sound")
            for run, part in enumerate(found)
            for true, stated, completion in zip(part["true"], part["stated"], part["completion"], strict=True)
        ]
        # JSON has None for what is not finite, which becomes NaN.
        true, stated, completion, run, is_sound = np.array(columns, float).reshape(-1, 5).T
        return cls(true, stated, completion, run.astype(np.intp), is_sound > 0)

    @property
    def is_known(self) -> NDArray[np.bool_]:
        """Whether the stated error is finite."""
        return np.isfinite(self.stated)

    @property
    def is_within(self) -> NDArray[np.bool_]:
        """Whether the true error is at most the stated one; False where that is unknown."""
        return np.asarray(self.is_known & (self.true <= self.stated))

    @property
    def ratios(self) -> Floats:
        """True over stated errors where these are known; 0 where the true error is 0."""
        true, stated = self.true[self.is_known], self.stated[self.is_known]
        ratios = np.full(len(true), np.inf)
        np.divide(true, stated, out=ratios, where=stated > 0)
        ratios[true == 0] = 0.0
        return ratios

    def row(self) -> list[str]:
        """Return the cells of a table."""
        known, within, ratios = self.is_known, self.is_within, self.ratios
        outside = known & ~within
        runs = np.unique(self.run[known])
        return [
            f"{len(np.unique(self.run))}",
            f"{len(known)}",
            f"{(~known).sum()}",
            _part(within.sum(), known.sum()),
            _part((known & (self.true <= self.completion)).sum(), known.sum()),
            f"{np.median(ratios):.2g}" if len(ratios) else "-",
            f"{ratios.max():.3g}" if len(ratios) else "-",
            f"{len(runs) - len(np.unique(self.run[outside]))} of {len(runs)}",
            f"{(outside & self.is_sound).sum()} of {outside.sum()}",
            f"{self.is_sound.sum()}",
        ]


def _part(some: int, every: int) -> str:
    return f"{some} of {every} ({100 * some / every:.1f} %)" if every else "-"


def _pairs(results: Results, kind: str, names: Sequence[str]) -> Pairs:
    return Pairs.of(part[kind] for name in names for part in results[name].values())


def tables(results: Results) -> list[Table]:
    """Return how often stated errors hold, with an automatic rank and with the paper's."""
    header = [
        "",
        "trainings",
        "pairs",
        "error unknown",
        "within, of the known",
        "within completion's part alone",
        "median true / stated",
        "largest",
        "trainings with no client outside",
        "outside and called sound",
        "pairs called sound",
    ]
    held_out = [name for name in results if name not in TUNED]
    found = []
    for kind, title in KINDS.items():
        rows = [[title_of(name), *_pairs(results, kind, [name]).row()] for name in held_out]
        if len(held_out) > 1:
            rows.append(["all of these", *_pairs(results, kind, held_out).row()])
        rows += [
            [f"{title_of(name)}, used in tuning", *_pairs(results, kind, [name]).row()]
            for name in results
            if name in TUNED
        ]
        found.append(Table(header, rows, f"{title}:"))
    return [*found, _drawn(results)]


def _drawn(results: Results) -> Table:
    """Return the range of what was drawn."""
    rows = []
    for name, measured in results.items():
        found = list(measured.values())
        ends = [_range([part[key] for part in found]) for key in ("clients", "batch_size", "epochs", "rounds", "rate")]
        fell = [100 * (1 - part["losses"][1] / part["losses"][0]) for part in found]
        rows.append([title_of(name), *ends, f"{_range(fell)} %"])
    header = ["", "clients", "batch size", "epochs", "rounds", "rate", "decrease of the loss"]
    return Table(header, rows, "What was drawn:")


def _range(values: Sequence[float]) -> str:
    low, high = (f"{x:,}" if isinstance(x, int) else f"{x:.2g}" for x in (min(values), max(values)))
    return f"{low} to {high}"


def draw(results: Results, figure: Figure) -> None:
    """Draw the distribution functions of true over stated errors."""
    figure.set_size_inches(7.2, 3.0)
    for axes, (kind, title) in zip(figure.subplots(1, 2, sharey=True), KINDS.items(), strict=True):
        for name in results:
            ratios = np.sort(np.maximum(_pairs(results, kind, [name]).ratios, LEAST_RATIO))
            steps = np.arange(1, len(ratios) + 1) / max(1, len(ratios))
            is_tuned = name in TUNED
            label = f"{title_of(name)}, used in tuning" if is_tuned else title_of(name)
            axes.step(ratios, steps, where="post", label=label, linestyle=":" if is_tuned else "-")
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set(xscale="log", xlabel="true / stated error", title=title, ylim=(0, 1.02))
        axes.set_xlim(left=LEAST_RATIO)
    figure.axes[0].set_ylabel("fraction of (training, client) pairs")
    figure.axes[0].legend(frameon=False, fontsize=6)


EXPERIMENT = Experiment(
    name="coverage",
    title="How often the stated errors of completion hold",
    about="Not in the paper. A pair is a training and one of its clients: its true error is the distance of its value "
    "from the one computed from the embeddings of all samples in every round, and the stated one is that of the "
    "valuation, of which a part is due to completion. Every training has other rows, another order of the features, "
    "and another number of clients, batch size, number of epochs and rate, drawn once. The estimate was tuned on "
    "Adult, Web, Covtype and small random trainings; Adult is here for comparison only. Unknown errors are left out of "
    "fractions and figure; such values are never called sound. Pairs of one training are not independent.",
    settings_type=CoverageSettings,
    parts=parts,
    tables=tables,
    draw=draw,
)
