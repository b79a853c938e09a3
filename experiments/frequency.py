"""Figure 3: of clients with the same features, those that upload more often have larger values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from experiments.experiment import (
    OTHERWISE,
    Claim,
    Experiment,
    Exponent,
    Findings,
    Results,
    Table,
    Verdict,
    by_variant_and_seed,
    middle_and_ends,
    plot_each,
    readings_of,
    seeds_text,
    spread,
    starting,
    title_of,
    two_digits,
    variants_of,
)
from experiments.lab import Settings, shares_of_last, split, train_asynchronously
from verfedsv.arrays import Floats
from verfedsv.data import noisy_copy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


class FrequencySettings(Settings):
    """Copy i of client 1 uploads every `period` * `slowness[i]` seconds, batches of `batch_size` / `divisors[i]`.

    Without `divisors`, their batches are those of the others.
    """

    slowness: tuple[int, ...] = (1, 2, 3, 4, 5)
    divisors: tuple[int, ...] | None = None  # none, so that older results are those of these settings


def _measure(name: str, settings: FrequencySettings, seed: int) -> Findings:
    data, divisors = split(name, settings), settings.divisors or (1,) * len(settings.slowness)
    pace = [i * k for i, k in zip(settings.slowness, divisors, strict=True)]
    copies = (noisy_copy(data.clients[0], f"copy {m + 1}", 0.0, np.random.default_rng()) for m in range(len(pace)))
    trained = train_asynchronously(data.with_clients(*copies), settings.but(seed=seed), settings.slowness, divisors)
    valuation = trained.value()
    shares, errors = shares_of_last(valuation, len(settings.slowness))
    return {
        "per_second": [1 / (settings.period * i) for i in pace],
        "shares": shares,
        "errors": errors,
        "client 1": float(100 * valuation.shares[0]),
        "accuracy": trained.accuracy,
    }


def _shares(found: Sequence[Findings]) -> Floats:
    """Return the shares of the copies, (seeds, copies)."""
    return np.array([part["shares"] for part in found])


def tables(results: Results) -> list[Table]:
    """Return the shares, their errors, and the exponents in the frequency."""
    frequencies = next(iter(next(iter(results.values())).values()))["per_second"]
    rows = []
    for name, measured in results.items():
        for label, found in variants_of(measured).items():
            shares = _shares(found)
            cells = [f"{spread(x, 3)}" for x in shares.T]
            cells.append(two_digits(np.max([part["errors"] for part in found])))
            exponent = Exponent.fit(frequencies, shares)
            cells += [str(exponent or "-"), f"{np.median([part['accuracy'] for part in found]):.1%}"]
            rows.append([f"{title_of(name)}{label and ', '}{label}, {seeds_text(found)}", *cells])
    header = ["percent of all values", *(f"{x:.0f} uploads/s" for x in frequencies)]
    return [Table([*header, "largest stated error", "exponent (95 % over seeds)", "accuracy"], rows)]


def claims(results: Results) -> list[Claim]:
    """Return whether shares are proportional to the frequency."""
    made = []
    for name, measured in results.items():
        for label, found in readings_of(measured).items():
            exponent, verdict = _judge(found)
            made.append(
                Claim(
                    f"Figure 3: frequency{label and OTHERWISE}",
                    name,
                    f"share against frequency{label and ', '}{label}",
                    "proportional",
                    f"frequency^{exponent}" if exponent else "no power: some are negative",
                    verdict,
                    is_open=any(_judge(found, tilt)[1] != verdict for tilt in (-1, 1)),
                )
            )
    return made


def _judge(found: Sequence[Findings], tilt: int = 0) -> tuple[Exponent | None, Verdict]:
    """Return exponent and verdict, if the shares of the fastest client were off by `tilt` stated errors.

    Those of the slowest are off by -`tilt` errors then, and those between by less, in steps.
    """
    errors = np.array([part["errors"] for part in found], float)
    shares = _shares(found) + errors * np.linspace(tilt, -tilt, errors.shape[1])
    falling = bool((np.diff(np.median(shares, axis=0)) < 0).all())
    exponent = Exponent.fit(np.array(found[0]["per_second"]), shares)
    if exponent and exponent.is_proportional and falling:
        return exponent, "yes"
    return exponent, "in trend" if falling else "no"


def _draw(measured: Mapping[str, Findings], axes: Axes) -> None:
    found = starting(measured, "seed ")
    frequencies = np.array(found[0]["per_second"])
    low, middle, high = middle_and_ends(_shares(found))
    axes.fill_between(frequencies, low, high, alpha=0.25, linewidth=0)
    axes.plot(frequencies, middle, marker="o", markersize=4, label="copies of client 1")
    ends = np.array([0, frequencies[0]])
    axes.plot(ends, ends * middle[0] / frequencies[0], linestyle=":", color="gray", label="proportional")
    axes.set(xlabel="uploads per second", ylabel="share, %", ylim=(0, None), xlim=(0, None))
    axes.legend(frameon=False)


def _about(settings: Sequence[FrequencySettings]) -> str:
    """Return what is measured; data sets can have other durations."""
    spans = dict.fromkeys((x.duration, round(x.duration / x.stamp_every)) for x in settings)
    lasts = " or ".join(f"{seconds:g} seconds with {n} time stamps" for seconds, n in spans)
    periods = " or ".join(dict.fromkeys(f"{x.period:g}" for x in settings))
    return (
        f"Five copies of client 1 join; the i-th uploads every {periods} i seconds, for {lasts}. "
        "yes: the exponent of the share in the frequency is 1 within 0.25: its whole 95 % interval over seeds is; in "
        "trend: shares only rise with the frequency."
    )


EXPERIMENT = Experiment(
    name="frequency",
    title="Communication frequency (Figure 3)",
    about=_about,
    settings_type=FrequencySettings,
    parts=partial(by_variant_and_seed, _measure),
    tables=tables,
    claims=claims,
    draw=plot_each(_draw),
)
