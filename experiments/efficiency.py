"""Figure 4: the time of completion and of valuation against clients, rounds and samples."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np
from pydantic import BaseModel, ConfigDict
from threadpoolctl import threadpool_limits

from experiments.experiment import Claim, Experiment, Exponent, Findings, Results, Table, Verdict, two_digits
from experiments.lab import Settings, Trained, split, train_synchronously, uploads_of
from verfedsv import Transcript, complete
from verfedsv.arrays import Floats
from verfedsv.shapley.permutation import default_permutations
from verfedsv.threads import available_threads

if TYPE_CHECKING:
    from matplotlib.figure import Figure

AXES = ("clients", "rounds", "samples")
BATCH = 2837 / 48_842
"""The fraction of the samples in a batch, as on Adult in the paper: about 1/17."""

FLOOR = 0.05
"""Exponents are fitted to times of at least so many seconds: shorter ones are partly fixed costs."""

STABLE, NEARLY_STABLE = (-0.2, 0.2), (-0.5, 0.5)
LINEAR, NEARLY_LINEAR = (0.8, 1.2), (0.5, 1.2)
"""Bands of exponents."""

FEWEST = 3
"""No exponent is fitted to fewer sizes."""


class Axis(BaseModel):
    """Sizes along one axis, and the other sizes; that of the axis itself is ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sizes: tuple[int, ...]
    clients: int = 8
    rounds: int = 360
    samples: int = 48_842


class Sweep(BaseModel):
    """The sizes along each axis."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    clients: Axis
    rounds: Axis
    samples: Axis

    def points(self, axis: str) -> list[dict[str, int]]:
        """Return the sizes along an axis, each with its clients, rounds and samples."""
        along: Axis = getattr(self, axis)
        return [{**along.model_dump(include=set(AXES)), axis: size} for size in along.sizes]


class EfficiencySettings(Settings):
    """Sizes for completion and our valuation, each timed `repeat` times, and for the paper's sampling, timed once."""

    ours: Sweep
    sampling: Sweep
    repeat: int = 3


KINDS: dict[str, Literal["auto", "permutation"]] = {"ours": "auto", "sampling": "permutation"}


def parts(name: str, settings: EfficiencySettings) -> Mapping[str, Callable[[], Findings]]:
    """Return a training and its valuation for each size and method; a size on several axes is measured once."""

    def measure(kind: str, axes: Sequence[str], size: Mapping[str, int]) -> Findings:
        sized = settings.but(
            clients=size["clients"],
            rounds=size["rounds"],
            train=size["samples"],
            test=0,
            batch_size=max(1, round(BATCH * size["samples"])),
        )
        trained = train_synchronously(split(name, sized), sized)
        found = {**size, "axes": list(axes), "batch": sized.batch_size, "threads": available_threads()}
        trained.value(method=KINDS[kind], rows=np.arange(min(64, size["samples"])))  # compile first
        if kind == "sampling":
            timed = trained.value(method=KINDS[kind]).seconds["valuation"]
            return {**found, "valuation": [timed], "permutations": default_permutations(size["clients"])}
        each = times_of_completion(trained, settings.repeat)
        return {
            **found,
            "valuation": [trained.value(method=KINDS[kind]).seconds["valuation"] for _ in range(settings.repeat)],
            "slowest": each.max(axis=1).tolist(),
            "median": np.median(each, axis=1).tolist(),
            "sum": each.sum(axis=1).tolist(),
        }

    todo = {}
    for kind, sweep in (("ours", settings.ours), ("sampling", settings.sampling)):
        for size, axes in _axes_of_sizes(sweep).items():
            label = ", ".join(f"{number} {axis}" for axis, number in zip(AXES, size, strict=True))
            todo[f"{kind}, {label}"] = partial(measure, kind, axes, dict(zip(AXES, size, strict=True)))
    return todo


def _axes_of_sizes(sweep: Sweep) -> dict[tuple[int, ...], list[str]]:
    """Return all sizes of a sweep, and the axes that each is on."""
    found: dict[tuple[int, ...], list[str]] = {}
    for axis in AXES:
        for size in sweep.points(axis):
            found.setdefault(tuple(size[name] for name in AXES), []).append(axis)
    return found


def times_of_completion(trained: Trained, repeat: int) -> Floats:
    """Return how long the completion of each client takes on one core, (repetitions, clients)."""
    settings, transcript = trained.settings, Transcript.open(trained.path)
    n_samples = len(transcript.labels)
    batches, uploads = uploads_of(transcript)
    found = np.empty((1 + repeat, len(uploads)))
    with threadpool_limits(1):
        for k, m in np.ndindex(found.shape):
            begin = time.perf_counter()
            complete(batches, uploads[m], n_samples, settings.rank, settings.regularization, n_threads=1)
            found[k, m] = time.perf_counter() - begin
    return found[1:]  # the first may compile


def _times(measured: Mapping[str, Findings], kind: str, axis: str, step: str) -> tuple[Floats, Floats]:
    """Return sizes, in rising order, and seconds, (repetitions, sizes)."""
    found = [part for name, part in measured.items() if name.startswith(f"{kind}, ") and axis in part["axes"]]
    found.sort(key=lambda part: int(part[axis]))
    return np.array([part[axis] for part in found], float), np.array([part[step] for part in found]).T


def fit_exponent(sizes: Floats, seconds: Floats) -> Exponent | None:
    """Return a of seconds ~ sizes^a, from the size on from which all times are at least `FLOOR`; None if too few are.

    It is fitted for each repetition, (repetitions, sizes).
    """
    is_short = np.median(seconds, axis=0) < FLOOR
    begin = int(np.flatnonzero(is_short)[-1]) + 1 if is_short.any() else 0
    return Exponent.fit(sizes[begin:], seconds[:, begin:]) if len(sizes) - begin >= FEWEST else None


def quadratic_logarithmic(clients: Floats) -> Floats:
    """Return M² ln M, which the paper's Monte Carlo is said to grow with."""
    return np.asarray(clients**2 * np.log(clients))


CURVES = {
    "completion, slowest client": ("ours", "slowest"),
    "completion, median client": ("ours", "median"),
    "completion, sum over clients": ("ours", "sum"),
    "valuation, ours": ("ours", "valuation"),
    "valuation, Monte Carlo": ("sampling", "valuation"),
}


def tables(results: Results) -> list[Table]:
    """Return the fitted exponents with the spans of sizes and times, and the sizes that were kept fixed."""
    measured = next(iter(results.values()))
    exponents, fixed = [], []
    for title, (kind, step) in CURVES.items():
        row = [title]
        for axis in AXES:
            sizes, seconds = _times(measured, kind, axis, step)
            exponent = fit_exponent(sizes, seconds)
            first, last = np.median(seconds, axis=0)[[0, -1]]
            row.append(
                f"{exponent or '-'}; {sizes[0]:,.0f} to {sizes[-1]:,.0f}: {two_digits(first)} to {two_digits(last)} s"
            )
        exponents.append(row)
    sizes, seconds = _times(measured, "sampling", "clients", "valuation")
    power = fit_exponent(quadratic_logarithmic(sizes), seconds)
    exponents.append(["Monte Carlo in M² ln M", str(power or "-"), "", ""])
    for kind, title in (("ours", "completion and ours"), ("sampling", "Monte Carlo")):
        fixed.append([title, *(_fixed(measured, kind, axis) for axis in AXES)])
    caption = (
        "With 95 % intervals over repeated timings of one training for each size, from the size on from which times "
        f"are at least {FLOOR} s; - for fewer than {FEWEST} sizes. Then the smallest and largest size, and their times:"
    )
    return [
        Table(["exponent of the time in", *AXES], exponents, caption),
        Table(["", *(f"{axis} vary" for axis in AXES)], fixed, "The other sizes, and the number of points:"),
    ]


def _fixed(measured: Mapping[str, Findings], kind: str, axis: str) -> str:
    found = [part for name, part in measured.items() if name.startswith(f"{kind}, ") and axis in part["axes"]]
    others = ", ".join(f"{found[0][other]:,} {other}" for other in AXES if other != axis)
    return f"{others}; {len(found)} points"


def claims(results: Results) -> list[Claim]:
    """Return whether times grow as the paper says, if they are long enough to tell."""
    (name, measured), made = next(iter(results.items())), []

    def add(item: str, what: str, paper: str, exponent: Exponent | None, judge: Callable[[Exponent], Verdict]) -> None:
        ours = "too short to tell" if exponent is None else f"exponent {exponent}"
        made.append(Claim(item, name, what, paper, ours, None if exponent is None else judge(exponent)))

    item = "Figure 4: completion"
    slowest = partial(_times, measured, "ours", step="slowest")
    add(item, "slowest client against clients", "stable", fit_exponent(*slowest(axis="clients")), is_stable)
    for axis in AXES[1:]:
        exponent = fit_exponent(*slowest(axis=axis))
        add(item, f"slowest client against {axis}", "approximately linear", exponent, is_linear)
    item = "Figure 4: Monte Carlo"
    sizes, seconds = _times(measured, "sampling", "clients", "valuation")
    power = fit_exponent(quadratic_logarithmic(sizes), seconds)
    add(item, "time against M² ln M", "almost quadratic-logarithmic in M", power, is_linear)
    for axis in AXES[1:]:
        exponent = fit_exponent(*_times(measured, "sampling", axis, "valuation"))
        add(item, f"time against {axis}", "nearly linear", exponent, is_linear)
    return made


def is_stable(exponent: Exponent) -> Verdict:
    """Return whether a time does not depend on a size."""
    return _judge(exponent, STABLE, NEARLY_STABLE)


def is_linear(exponent: Exponent) -> Verdict:
    """Return whether a time is proportional to a size, or at least nearly so and grows no faster."""
    return _judge(exponent, LINEAR, NEARLY_LINEAR)


def _judge(exponent: Exponent, band: tuple[float, float], wide: tuple[float, float]) -> Verdict:
    """Return whether the whole interval is within a band, or at least the mean within a wide one.

    What was timed once has an infinite interval.
    """
    if band[0] <= exponent.low and exponent.high <= band[1]:
        return "yes"
    return "in trend" if wide[0] <= exponent.middle <= wide[1] else "no"


def _draw(results: Results, figure: Figure) -> None:
    measured = next(iter(results.values()))
    figure.set_size_inches(9.6, 4)
    plots = figure.subplots(1, 3, sharey=True)
    for axes, axis in zip(plots, AXES, strict=True):
        for title, (kind, step) in CURVES.items():
            sizes, seconds = _times(measured, kind, axis, step)
            exponent = fit_exponent(sizes, seconds)
            label = title if exponent is None else f"{title}: {exponent.middle:.2f}"
            axes.loglog(
                sizes,
                np.median(seconds, axis=0),
                "--" if kind == "sampling" else "-",
                marker="o",
                markersize=3,
                label=label,
            )
        axes.axhline(FLOOR, color="0.8", linewidth=0.5)
        every = _times(measured, "ours", axis, "sum")[0]
        axes.set(xlabel=axis, xticks=every, xticklabels=[f"{size:,.0f}" for size in every])
        axes.xaxis.minorticks_off()
        axes.tick_params("x", labelsize=6)
        axes.legend(
            frameon=False,
            title="exponent",
            fontsize=5,
            title_fontsize=6,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.2),
        )
    plots[0].set(ylabel="seconds")


EXPERIMENT = Experiment(
    name="efficiency",
    title="Efficiency (Figure 4)",
    about="Adult, synchronous, the paper's rank and λ. Time against the number of clients, rounds and samples, one "
    "varied at a time. Clients complete side by side in the paper, so completion is that of the slowest "
    "client, on one core, beside the sum over clients. Valuation, ours and the paper's Monte Carlo (⌈100 M ln M⌉ "
    "permutations a round, by our compiled implementation), is on all cores. Stable, yes: the exponent is -0.2 to 0.2, "
    "with its whole 95 % interval over repetitions; in trend: its mean is -0.5 to 0.5. Linear, and linear in M² ln M, "
    "yes: 0.8 to 1.2, with the whole interval; in trend: its mean is 0.5 to 1.2. Monte Carlo was run once; without an "
    "interval, its verdict is in trend at best.",
    settings_type=EfficiencySettings,
    parts=parts,
    tables=tables,
    claims=claims,
    draw=_draw,
    is_timed=True,
)
