"""Figure 4: the time of completion and of valuation against clients, rounds and samples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel

from experiments.experiment import Claim, Experiment, Findings, Results, Table
from experiments.lab import Settings, split, train_synchronously

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = ("clients", "rounds", "samples")


class Sweep(BaseModel):
    """Sizes to vary, one at a time, while the others are those of `base`."""

    clients: tuple[int, ...]
    rounds: tuple[int, ...]
    samples: tuple[int, ...]
    base: dict[str, int]


class EfficiencySettings(Settings):
    """A sweep for our valuation, and a smaller one for the paper's sampling, which would take hours."""

    ours: Sweep
    sampling: Sweep
    repeat: int = 3


METHODS: dict[str, Literal["auto", "permutation"]] = {"ours": "auto", "sampling": "permutation"}


def parts(name: str, settings: EfficiencySettings) -> Mapping[str, Callable[[], Findings]]:
    """Return a training and its valuation for each size and method."""

    def measure(kind: str, size: dict[str, int]) -> Findings:
        # A batch is an eighth of the samples, as on Adult in the paper.
        sized = settings.model_copy(update={**size, "batch_size": size["samples"] // 8})
        trained = train_synchronously(split(name, sized), sized)
        repeat = settings.repeat if kind == "ours" else 1
        runs = [trained.value(method=METHODS[kind], regularization=0.1) for _ in range(repeat)]
        took = {step: float(np.median([run.seconds[step] for run in runs])) for step in ("completion", "valuation")}
        return {**size, **took, "permutations": _n_permutations(size["clients"]) if kind == "sampling" else 0}

    todo = {}
    for kind, sweep in (("ours", settings.ours), ("sampling", settings.sampling)):
        for axis in AXES:
            for number in getattr(sweep, axis):
                size = {**sweep.base, axis: number}
                todo[f"{kind}, {axis} {number}"] = partial(measure, kind, size)
    return todo


def _n_permutations(n_clients: int) -> int:
    """Return how many permutations the paper draws."""
    return int(np.ceil(100 * n_clients * np.log(n_clients)))


def _times(measured: Mapping[str, Findings], kind: str, axis: str, step: str) -> tuple[list[int], list[float]]:
    """Return sizes and seconds."""
    found = [part for name, part in measured.items() if name.startswith(f"{kind}, {axis} ")]
    return [part[axis] for part in found], [part[step] for part in found]


def _exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    return float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0])


CURVES = (("completion", "ours"), ("valuation", "ours"), ("valuation", "sampling"))


def tables(results: Results) -> list[Table]:
    """Return the fitted exponents, and the times themselves."""
    measured = next(iter(results.values()))
    rows = []
    for step, kind in CURVES:
        row = [_title(step, kind)]
        for axis in AXES:
            sizes, seconds = _times(measured, kind, axis, step)
            spans = f"{seconds[0]:.2g} to {seconds[-1]:.2g} s" if len(seconds) > 1 else f"{seconds[0]:.2g} s"
            row.append(f"{_exponent(sizes, seconds):.2f} ({sizes[0]:,} to {sizes[-1]:,}: {spans})")
        rows.append(row)
    return [Table(["exponent of the time in", *AXES], rows)]


def _title(step: str, kind: str) -> str:
    return "completion" if step == "completion" else "valuation, ours" if kind == "ours" else "valuation, sampling"


def claims(results: Results) -> list[Claim]:
    """Return whether our exponents are at most 1.1."""
    measured = next(iter(results.values()))
    made = []
    for step in ("completion", "valuation"):
        for axis in AXES:
            exponent = _exponent(*_times(measured, "ours", axis, step))
            made.append(Claim(f"{step} against {axis}", f"{exponent:.2f}", "at most 1.1", exponent <= 1.1))
    return made


def _draw(results: Results, figure: Figure) -> None:
    measured = next(iter(results.values()))
    figure.set_size_inches(9.6, 3)
    plots = figure.subplots(1, 3, sharey=True)
    for axes, axis in zip(plots, AXES, strict=True):
        for step, kind in CURVES:
            sizes, seconds = _times(measured, kind, axis, step)
            label = f"{_title(step, kind)}: {_exponent(sizes, seconds):.2f}"
            style = "--" if kind == "sampling" else "-"
            axes.loglog(sizes, seconds, style, marker="o", markersize=3, label=label)
        axes.set(xlabel=axis)
        axes.legend(frameon=False, title="exponent", fontsize=6, title_fontsize=6)
    plots[0].set(ylabel="seconds")


EXPERIMENT = Experiment(
    name="efficiency",
    title="Efficiency (Figure 4)",
    about="Adult, synchronous. Time against the number of clients, rounds and samples, one varied at a time. The "
    "paper's sampling (100 M ln M permutations a round, by our compiled implementation) is measured at smaller sizes.",
    settings_type=EfficiencySettings,
    parts=parts,
    tables=tables,
    claims=claims,
    draw=_draw,
)
