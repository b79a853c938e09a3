"""Figure 2: the more a copy of a client differs from it, the more their values differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Literal

import numpy as np

from experiments.experiment import (
    OTHERWISE,
    Claim,
    Experiment,
    Findings,
    Results,
    Table,
    by_variant_and_seed,
    group_of,
    largest_stated,
    magnitude,
    middle_and_ends,
    of_seeds,
    plot_each,
    readings_of,
    seeds_text,
    spread,
    title_of,
    variants_of,
)
from experiments.lab import Settings, split, train_synchronously
from experiments.proportion import allowed, judge, stated
from verfedsv.arrays import Floats
from verfedsv.data import ClientData, noisy_copy

if TYPE_CHECKING:
    from matplotlib.axes import Axes


FULL = 0.05
"""Sparse columns with more non-zero numbers than this fraction are made dense: products take a tenth of the time."""

FEWEST = 3
"""With fewer numbers of noisy columns, nothing is said of a proportion."""

NEARLY = 0.01
"""A relative difference that is nearly 0."""

TITLES = {"paper": "the paper's rank", "auto": "rank auto"}


class SimilarFeatureSettings(Settings):
    """A copy of client 1 for each fraction of columns with white noise, drawn anew for each seed.

    The noise is N(0, 1), or as large as each column's spread. With the first `auto_seeds` seeds, values are also
    computed with a rank and a lambda that are chosen.
    """

    fractions: tuple[float, ...] = (0.0, 0.1, 0.2, 0.3, 0.4)
    noise: Literal["unit", "column"] = "unit"
    auto_seeds: int = 0


def _measure(name: str, settings: SimilarFeatureSettings, seed: int) -> Findings:
    data = split(name, settings)
    first = data.clients[0]
    # The same random numbers for each copy: the columns with noise of one are among those of the next.
    copies = [_copy(first, f"copy {x:.0%}", x, settings.noise, seed) for x in settings.fractions]
    trained = train_synchronously(data.with_clients(*copies), settings.but(seed=seed))
    found = {
        "fractions": list(settings.fractions),
        "columns": int(first.numeric.shape[1]),
        "accuracy": trained.accuracy,
    }
    for kind, options in {"paper": {}, "auto": {"rank": "auto", "regularization": "auto"}}.items():
        if kind == "auto" and seed >= settings.auto_seeds:
            continue
        valuation = trained.value(**options)
        own, others = valuation.values[0], valuation.values[-len(settings.fractions) :]
        found[kind] = {
            # The paper divides by s, which can be negative.
            "differences": (np.abs(others - own) / np.abs(own)).tolist(),
            "errors": (valuation.errors[-len(others) :] / np.abs(own)).tolist(),
            "shares": valuation.shares.tolist(),
        }
    return found


def _copy(client: ClientData, name: str, fraction: float, noise: str, seed: int) -> ClientData:
    rng = np.random.default_rng(seed)
    if noise == "unit" or fraction == 0:
        copy = noisy_copy(client, name, fraction, rng)
        sparse = copy.numeric
        # An exact copy is multiplied as the client itself, so that both have the same bits.
        if fraction == 0 or isinstance(sparse, np.ndarray) or sparse.nnz <= FULL * sparse.shape[0] * sparse.shape[1]:
            return copy
        return replace(copy, numeric=sparse.toarray())
    dense = np.asarray(client.numeric.toarray() if not isinstance(client.numeric, np.ndarray) else client.numeric)
    spreads = np.maximum(dense.std(axis=0), 1e-12)
    noisy = np.asarray(noisy_copy(ClientData(name, dense / spreads), name, fraction, rng).numeric)
    return ClientData(name, noisy * spreads)


def _differences(found: Sequence[Findings], kind: str = "paper") -> Floats:
    """Return the differences, (seeds, fractions)."""
    return np.array([part[kind]["differences"] for part in found])


def tables(results: Results) -> list[Table]:
    """Return medians and quartiles over seeds."""
    fractions = next(iter(next(iter(results.values())).values()))["fractions"]
    rows = []
    for name, measured in results.items():
        for label, found in variants_of(measured).items():
            for kind in (kind for kind in TITLES if kind in found[0]):
                about, some = label or TITLES[kind], [part for part in found if kind in part]
                cells = [spread(100 * x, 1) if x.any() else "0" for x in _differences(some, kind).T]
                errors = [100 * np.array(part[kind]["errors"], float) for part in some if "errors" in part[kind]]
                largest = of_seeds(largest_stated(errors), errors, some) if errors else "-"
                accuracy = f"{np.median([part['accuracy'] for part in some]):.1%}"
                rows.append([f"{title_of(name)}, {about}, {seeds_text(some)}", *cells, largest, accuracy])
    header = ["difference to client 1, percent of its value", *(f"noise {x:.0%}" for x in fractions)]
    caption = (
        "The largest stated error is that of a copy's value, in percent of client 1's. Seeds in brackets: only so many "
        "have one."
    )
    return [Table([*header, "largest stated error", "accuracy"], rows, caption)]


def claims(results: Results) -> list[Claim]:
    """Return whether exact copies have the same value, and whether differences are proportional to the noise."""
    return [
        claim
        for name, measured in results.items()
        for label, found in readings_of(measured).items()
        for claim in (_claim_equal(name, label, found), _claim_proportional(name, label, found))
    ]


def _claim_equal(name: str, label: str, found: Sequence[Findings]) -> Claim:
    """Return whether an exact copy has the same value; stated errors of both are the same, and do not matter here."""
    largest = float(_differences(found)[:, 0].max())
    is_equal = largest == 0 if name == "adult" else largest < NEARLY
    item, what = f"Figure 2: equal clients{label and OTHERWISE}", f"difference of an exact copy{label and ', '}{label}"
    wanted = "exactly 0" if name == "adult" else "nearly 0"
    return Claim(item, name, what, wanted, magnitude(largest), "yes" if is_equal else "no", "check")


def _claim_proportional(name: str, label: str, found: Sequence[Findings]) -> Claim:
    """Return whether differences are proportional to the noise."""
    item, what = f"Figure 2: proportional{label and OTHERWISE}", f"difference against noise{label and ', '}{label}"
    # Few columns: some fractions of them are the same number, which counts once.
    counts = n_noisy(found[0])
    sizes = sorted(set(counts))
    if len(sizes) <= FEWEST:
        text = "too few numbers of noisy columns to tell"
        return Claim(item, name, what, "proportional", text, None, group_of(label))

    def of_sizes(differences: Floats) -> Floats:
        return np.stack([differences[:, np.equal(counts, size)].mean(axis=1) for size in sizes], axis=1)

    exponent, verdict = judge(sizes, of_sizes(_differences(found)))
    is_open = any(allowed(sizes, *map(of_sizes, ends)) != {verdict} for ends in _ranges(found))
    text = f"noise^{exponent}{', not rising' if verdict == 'no' else ''}" if exponent else "no power: some are 0"
    return Claim(item, name, what, "proportional", text, verdict, group_of(label), is_open)


def _ranges(found: Sequence[Findings]) -> Iterator[tuple[Floats, Floats]]:
    """Yield least and largest differences, (seeds, fractions), if copies' values are anywhere within stated errors.

    Client 1's value is as estimated, or at either end of its own error, which is that of the exact copy: the two values
    are equal whatever they are. Seeds without errors are given the largest of the others.
    """
    n_copies = len(found[0]["fractions"])
    ratios = np.array([np.divide(part["paper"]["shares"], part["paper"]["shares"][0])[-n_copies:] for part in found])
    known = [stated(part["paper"]["errors"]) for part in found if "errors" in part["paper"]]
    largest = np.max(known, axis=0) if known else np.full(n_copies, np.inf)
    errors = stated([part["paper"].get("errors", largest) for part in found])
    for own in (np.ones((len(found), 1)), 1 - errors[:, :1], 1 + errors[:, :1]):
        is_known = (own > 0) & np.isfinite(own) & np.isfinite(errors)
        finite, divisor = np.where(is_known, errors, 0.0), np.where(is_known, own, 1.0)
        low, high = ((ratios + sign * finite) / divisor - 1 for sign in (-1, 1))
        least = np.where(is_known & (low * high > 0), np.minimum(np.abs(low), np.abs(high)), 0.0)
        most = np.where(is_known, np.maximum(np.abs(low), np.abs(high)), np.inf)
        least[:, 0] = most[:, 0] = _differences(found)[:, 0]
        yield least, most


def n_noisy(part: Findings) -> list[int]:
    """Return how many columns of each copy have noise: `noisy_copy` rounds, but gives noise to at least one."""
    return [max(1, round(x * part["columns"])) if x else 0 for x in part["fractions"]]


def _fractions(measured: Mapping[str, Findings]) -> list[float]:
    found: list[float] = next(iter(measured.values()))["fractions"]
    return found


def _draw(measured: Mapping[str, Findings], axes: Axes) -> None:
    fractions = np.multiply(100, _fractions(measured))
    for label, found in variants_of(measured).items():
        low, middle, high = middle_and_ends(100 * _differences(found))
        axes.fill_between(fractions, low, high, alpha=0.25, linewidth=0)
        axes.plot(fractions, middle, marker="o", markersize=4, label=label or TITLES["paper"])
    axes.set(xlabel="features with noise, %", ylabel="relative difference of value, %", ylim=(0, None))
    axes.legend(frameon=False, fontsize=6)


EXPERIMENT = Experiment(
    name="similar-features",
    title="Similar features (Figure 2)",
    about="Five copies of client 1 join, with white noise on 0 to 40 % of its features. Columns are not scaled, but on "
    "RCV1 all rows of a client to norm 1, for 512 rounds. Differences |s - sᵢ| / |s|, "
    "where s is the value of client 1 and sᵢ that of copy i (the paper divides by s, which can be negative): median "
    "and quartiles over draws of the noise. Proportional, yes: medians rise, and the exponent of the difference in "
    "the number of columns with noise is 1 within 0.25, with its whole 95 % interval over seeds; in trend: they only "
    "rise. \\*: values of copies, and of client 1, anywhere within their stated errors allow another verdict; seeds "
    "without such errors are given the largest of the others.",
    settings_type=SimilarFeatureSettings,
    parts=partial(by_variant_and_seed, _measure),
    tables=tables,
    claims=claims,
    draw=plot_each(_draw),
)
