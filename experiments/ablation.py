"""Figure 5 and Table 6: how rank and lambda of the completion change the values, from a random start and from ours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from experiments.experiment import Claim, Experiment, Findings, Results, Table
from experiments.lab import Settings, Trained, split, train_synchronously
from verfedsv import Completion, Transcript, complete, shapley_values
from verfedsv.losses import Array, Floats
from verfedsv.transcript import Upload

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Start = Literal["spectral", "random"]
STARTS: tuple[Start, ...] = ("spectral", "random")
PAPER = {"adult": (46.95, 17.43, 35.62), "web": (57.36, 23.21, 19.43), "covtype": (55.41, 34.54, 10.55)}
"""Table 6: percentages of the true values. (Those of Covtype do not sum to 100 in the paper.)"""


class AblationSettings(Settings):
    """Ranks at `default_lambda`, and lambdas at `default_rank`, each with `seeds` seeds."""

    ranks: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    lambdas: tuple[float, ...] = (1e-3, 1e-2, 0.1, 1.0, 10.0)
    default_rank: int = 5
    default_lambda: float = 0.1
    seeds: int = 5


def parts(name: str, settings: AblationSettings) -> Mapping[str, Callable[[], Findings]]:
    """Return the true shares, and for each setting of the completion the deviations from them over all seeds."""

    @cache
    def training() -> Trained:
        return train_synchronously(split(name, settings), settings, with_truth=True)

    def true_shares() -> Floats:
        truth = training().truth
        shares: Floats = truth / truth.sum()
        return shares

    def measure_truth() -> Findings:
        return {"shares": (100 * true_shares()).tolist(), "accuracy": training().accuracy, "rounds": settings.rounds}

    def measure(start: Start, rank: int, weight: float) -> Findings:
        true, found = true_shares(), []
        for seed in range(settings.seeds):
            values = _values(training(), start, rank, weight, seed)
            found.append(float(np.mean(np.abs(values / values.sum() - true) / true)))
        return {"deviations": found}

    todo: dict[str, Callable[[], Findings]] = {"truth": measure_truth}
    for start in STARTS:
        for rank in settings.ranks:
            todo[f"{start}, rank {rank}"] = partial(measure, start, rank, settings.default_lambda)
        for weight in settings.lambdas:
            todo[f"{start}, lambda {weight:g}"] = partial(measure, start, settings.default_rank, weight)
    return todo


def _values(trained: Trained, start: Start, rank: int, weight: float, seed: int) -> Floats:
    """Return the values from completed embeddings."""
    transcript = Transcript.open(trained.path)
    batches, uploads = _uploads(transcript)
    completions = [
        # Each client has another random start.
        complete(batches, of_client, len(transcript.labels), rank, weight, start=start, seed=97 * seed + m)
        for m, of_client in enumerate(uploads)
    ]
    labels, loss = transcript.labels, transcript.description.loss
    total = np.zeros(len(completions))
    for previous, current in _rounds(completions, len(batches)):
        total += shapley_values(previous, current, labels, loss, "closed-form").values
    return total / len(batches)


def _uploads(transcript: Transcript) -> tuple[list[Array], list[list[Array]]]:
    """Return the batches, and for each client what it uploaded in each."""
    batches: list[Array] = []
    uploads: dict[str, list[Array]] = {name: [] for name in transcript.clients}
    for record in transcript:
        if isinstance(record, Upload):
            uploads[record.client].append(record.embeddings)
            if len(uploads[record.client]) > len(batches):
                batches.append(record.samples)
    return batches, list(uploads.values())


def _rounds(completions: Sequence[Completion], n_rounds: int) -> Iterator[tuple[Floats, Floats]]:
    previous = np.zeros_like(np.stack([completion.embeddings(0) for completion in completions]))
    for t in range(n_rounds):
        current = np.stack([completion.embeddings(t) for completion in completions])
        yield previous, current
        previous = current


def _deviations(measured: Mapping[str, Findings], start: str, kind: str) -> dict[float, list[float]]:
    """Return for each rank or lambda the deviations in percent, over seeds."""
    prefix = f"{start}, {kind} "
    return {
        float(name.removeprefix(prefix)): [100 * x for x in part["deviations"]]
        for name, part in measured.items()
        if name.startswith(prefix)
    }


def tables(results: Results) -> list[Table]:
    """Return the true shares beside the paper's, and median deviations against rank and lambda."""
    header = ["percent", *(cell for name in results for cell in (name.capitalize(), "the paper's"))]
    rows = []
    for m in range(3):
        row = [f"client {m + 1}"]
        for name, measured in results.items():
            row += [f"{measured['truth']['shares'][m]:.2f}", f"{PAPER[name][m]:.2f}" if name in PAPER else "-"]
        rows.append(row)
    found = [Table(header, rows, "Shares from embeddings that are all known (Table 6):")]
    for kind in ("rank", "lambda"):
        columns = {
            f"{name.capitalize()}, {'ours' if start == 'spectral' else start}": _deviations(measured, start, kind)
            for name, measured in results.items()
            for start in STARTS
        }
        settings = next(iter(columns.values()))
        rows = [
            [f"{setting:g}", *(f"{np.median(of_column[setting]):.2f}" for of_column in columns.values())]
            for setting in settings
        ]
        caption = f"Deviation in percent against {kind}, median over seeds (Figure 5):"
        found.append(Table([kind, *columns], rows, caption))
    return found


def claims(results: Results) -> list[Claim]:
    """Return the worst deviation from rank 3 on, ours against the random start's."""
    made = []
    for name, measured in results.items():
        ours, random = (
            max(float(np.median(x)) for rank, x in _deviations(measured, start, "rank").items() if rank >= 3)
            for start in STARTS
        )
        what = f"{name.capitalize()}: largest median deviation at ranks 3 to 10"
        made.append(Claim(what, f"{ours:.2f} %", f"less than a random start's {random:.2f} %", ours < random))
    return made


def _draw(results: Results, figure: Figure) -> None:
    figure.set_size_inches(3.2 * len(results), 5)
    plots = figure.subplots(2, len(results), squeeze=False)
    for column, (name, measured) in enumerate(results.items()):
        for row, kind in enumerate(("rank", "lambda")):
            axes = plots[row, column]
            for start in STARTS:
                found = _deviations(measured, start, kind)
                low, middle, high = np.quantile(list(found.values()), [0.25, 0.5, 0.75], axis=1)
                axes.fill_between(list(found), low, high, alpha=0.25, linewidth=0)
                axes.plot(list(found), middle, marker="o", markersize=3, label="ours" if start == "spectral" else start)
            axes.set(xlabel="rank" if kind == "rank" else "λ", ylabel="deviation, %", yscale="log")
            if kind == "lambda":
                axes.set_xscale("log")
        plots[0, column].set_title(name.capitalize())
    plots[0, 0].legend(frameon=False)


EXPERIMENT = Experiment(
    name="ablation",
    title="Rank and regularisation of the completion (Figure 5, Table 6)",
    about="Three clients. Deviation, the paper's metric: the mean over clients of the relative difference between "
    "shares from completed embeddings and shares from embeddings that are all known. Five seeds: of the random start, "
    "and of the uploads held out.",
    settings_type=AblationSettings,
    parts=parts,
    tables=tables,
    claims=claims,
    draw=_draw,
)
