"""Figure 3: of clients with the same features, those that upload more often have larger values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.experiment import Claim, Experiment, Findings, Results, Table, plot_each
from experiments.lab import Settings, shares_of_last, split, train_asynchronously
from verfedsv.data import noisy_copy
from verfedsv.losses import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FrequencySettings(Settings):
    """Copy i of client 1 uploads every `period` * `slowness[i]` seconds."""

    slowness: tuple[int, ...] = (1, 2, 3, 4, 5)
    runs: int = 1


def parts(name: str, settings: FrequencySettings) -> Mapping[str, Callable[[], Findings]]:
    """Return a training for each seed of the batches."""

    def measure(seed: int) -> Findings:
        data = split(name, settings)
        copies = (noisy_copy(data.clients[0], f"copy {i}", 0.0, np.random.default_rng()) for i in settings.slowness)
        seeded = settings.model_copy(update={"seed": seed})
        trained = train_asynchronously(data.with_clients(*copies), seeded, settings.slowness)
        valuation = trained.value()
        shares, errors = shares_of_last(valuation, len(settings.slowness))
        return {
            "per_second": [1 / (settings.period * i) for i in settings.slowness],
            "shares": shares,
            "errors": errors,
            "client 1": float(100 * valuation.shares[0]),
            "accuracy": trained.accuracy,
        }

    return {f"seed {seed}": partial(measure, seed) for seed in range(settings.runs)}


def _shares(measured: Mapping[str, Findings]) -> Floats:
    shares: Floats = np.array([part["shares"] for part in measured.values()]).mean(axis=0)
    return shares


def tables(results: Results) -> list[Table]:
    """Return the shares, also relative to the fastest copy's."""
    frequencies = next(iter(next(iter(results.values())).values()))["per_second"]
    rows = []
    for name, measured in results.items():
        shares = _shares(measured)
        cells = (f"{x:.3f} ({x / shares[0]:.2f})" for x in shares)
        rows.append([name.capitalize(), *cells])
    header = ["percent of all values (part of the fastest copy's)", *(f"{x:.0f} uploads/s" for x in frequencies)]
    return [Table(header, rows)]


def claims(results: Results) -> list[Claim]:
    """Return whether shares fall with the frequency, and with which exponent."""
    made = []
    for name, measured in results.items():
        shares, frequencies = _shares(measured), np.array(next(iter(measured.values()))["per_second"])
        falling = bool((np.diff(shares) < 0).all())
        ours = "yes" if falling else "no"
        if (shares > 0).all():
            ours += f"; share ~ frequency^{np.polyfit(np.log(frequencies), np.log(shares), 1)[0]:.2f}"
        made.append(Claim(f"{name.capitalize()}: more often is worth more", ours, "yes", falling))
    return made


def _draw(measured: Mapping[str, Findings], axes: Axes) -> None:
    shares, frequencies = _shares(measured), np.array(next(iter(measured.values()))["per_second"])
    axes.plot(frequencies, shares, marker="o", markersize=4, label="copies of client 1")
    ends = np.array([0, frequencies[0]])
    axes.plot(ends, ends * shares[0] / frequencies[0], linestyle=":", color="gray", label="proportional")
    axes.set(xlabel="uploads per second", ylabel="share, %", ylim=(0, None), xlim=(0, None))
    axes.legend(frameon=False)


EXPERIMENT = Experiment(
    name="frequency",
    title="Communication frequency (Figure 3)",
    about="Five copies of client 1 join; the i-th uploads every 0.01 i seconds, for 20 seconds with 500 time stamps.",
    settings_type=FrequencySettings,
    parts=parts,
    tables=tables,
    claims=claims,
    draw=plot_each(_draw),
)
