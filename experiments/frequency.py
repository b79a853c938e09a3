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
    by_variant_and_seed,
    group_of,
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
from experiments.proportion import allowed, judge, stated
from verfedsv.arrays import Floats
from verfedsv.data import noisy_copy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SMALLER = "batches of 1 to 1/5"
"""The variant in which copies upload as often as the others, but smaller batches."""


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
    caption = (
        f"In rows of {SMALLER}, all copies upload {frequencies[0]:.0f} times a second, the first batches of the usual "
        "size, the second of half of it, and so on, in the order of the columns."
    )
    is_told = any(SMALLER in row[0] for row in rows)
    header += ["largest stated error", "exponent (95 % over seeds)", "accuracy"]
    return [Table(header, rows, caption if is_told else "")]


def claims(results: Results) -> list[Claim]:
    """Return whether shares are proportional to the frequency, and to the size of batches."""
    made = []
    for name, measured in results.items():
        judged = [*readings_of(measured), SMALLER]
        for label, found in variants_of(measured).items():
            if label not in judged:
                continue
            # In rising frequencies.
            frequencies, shares = found[0]["per_second"][::-1], _shares(found)[:, ::-1]
            errors = stated([part["errors"] for part in found])[:, ::-1]
            what = "size" if label == SMALLER else "frequency"
            exponent, verdict = judge(frequencies, shares)
            made.append(
                Claim(
                    "Section 6: size of batches" if label == SMALLER else f"Figure 3: frequency{label and OTHERWISE}",
                    name,
                    f"share against {what}{label and ', '}{label}",
                    "proportional",
                    f"{what}^{exponent}" if exponent else "no power: some are negative",
                    verdict,
                    group_of("" if label == SMALLER else label),
                    is_open=allowed(frequencies, shares - errors, shares + errors) != {verdict},
                )
            )
    return made


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
        "trend: shares only rise with the frequency. Likewise for copies that upload smaller batches instead. \\*: "
        "shares anywhere within their stated errors allow another verdict."
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
