"""Figure 2: the more a copy of a client differs from it, the more their values differ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from experiments.experiment import Claim, Experiment, Findings, Results, Table, plot_each
from experiments.lab import Settings, split, train_synchronously
from verfedsv.data import noisy_copy
from verfedsv.losses import Floats

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class SimilarFeatureSettings(Settings):
    """A copy of client 1 for each fraction of columns, or entries, with white noise, drawn anew in each part."""

    fractions: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4)
    noise_on: Literal["columns", "entries"] = "columns"
    draws: int = 5


def parts(name: str, settings: SimilarFeatureSettings) -> Mapping[str, Callable[[], Findings]]:
    """Return a training for each draw of the noise."""

    def measure(draw: int) -> Findings:
        data = split(name, settings)
        # The same random numbers for each copy: the columns with noise of one are among those of the next.
        copies = (
            noisy_copy(data.clients[0], f"copy {x:.0%}", x, np.random.default_rng(draw), of=settings.noise_on)
            for x in settings.fractions
        )
        trained = train_synchronously(data.with_clients(*copies), settings)
        valuation = trained.value()
        first, others = valuation.values[0], valuation.values[-len(settings.fractions) :]
        return {
            "fractions": list(settings.fractions),
            "differences": (np.abs(others - first) / first).tolist(),
            "share": float(valuation.shares[0]),
            "accuracy": trained.accuracy,
        }

    return {f"draw {draw}": partial(measure, draw) for draw in range(settings.draws)}


def _differences(measured: Mapping[str, Findings]) -> Floats:
    return np.array([part["differences"] for part in measured.values()])


def tables(results: Results) -> list[Table]:
    """Return the medians over draws."""
    fractions = next(iter(next(iter(results.values())).values()))["fractions"]
    rows = [
        [name.capitalize(), *(f"{x:.2%}" if x else "0" for x in np.median(_differences(measured), axis=0))]
        for name, measured in results.items()
    ]
    return [Table(["relative difference to client 1", *(f"noise {x:.0%}" for x in fractions)], rows)]


def claims(results: Results) -> list[Claim]:
    """Return whether exact copies have exactly the same value, and medians rise with the noise."""
    made = []
    for name, measured in results.items():
        largest = float(_differences(measured)[:, 0].max())
        medians = np.median(_differences(measured), axis=0)
        rising = bool((np.diff(medians) > 0).all())
        made.append(Claim(f"{name.capitalize()}: difference of an exact copy", f"{largest:.0e}", "0", largest == 0))
        made.append(Claim(f"{name.capitalize()}: rises with the noise", "yes" if rising else "no", "yes", rising))
    return made


def _draw(measured: Mapping[str, Findings], axes: Axes) -> None:
    differences, fractions = 100 * _differences(measured), next(iter(measured.values()))["fractions"]
    low, middle, high = np.quantile(differences, [0.25, 0.5, 0.75], axis=0)
    axes.fill_between(np.multiply(100, fractions), low, high, alpha=0.25, linewidth=0)
    axes.plot(np.multiply(100, fractions), middle, marker="o", markersize=4)
    axes.set(xlabel="features with noise, %", ylabel="relative difference of value, %", ylim=(0, None))


EXPERIMENT = Experiment(
    name="similar-features",
    title="Similar features (Figure 2)",
    about="Five copies of client 1 join, with white noise on 0 to 40 % of its features. Differences |s - sᵢ| / s, "
    "where s is the value of client 1 and sᵢ that of copy i: median and quartiles over draws of the noise.",
    settings_type=SimilarFeatureSettings,
    parts=parts,
    tables=tables,
    claims=claims,
    draw=plot_each(_draw),
)
