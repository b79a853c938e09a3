"""Table 1: clients with random columns get almost nothing, in both modes and however often they upload."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from experiments.experiment import (
    OTHERWISE,
    Claim,
    Experiment,
    Findings,
    Results,
    Table,
    Verdict,
    by_seed,
    by_variant_and_seed,
    group_of,
    largest_stated,
    of_seeds,
    readings_of,
    seeds_text,
    spread,
    starting,
    title_of,
    variants_of,
)
from experiments.lab import (
    Settings,
    Trained,
    build,
    run_rounds,
    shares_of_last,
    split,
    train_asynchronously,
    train_synchronously,
)
from experiments.proportion import stated
from verfedsv import Valuation
from verfedsv.arrays import Floats
from verfedsv.data import ClientData, VerticalData, random_client
from verfedsv.errors import DivergedError

Paper = Mapping[str, tuple[float, ...]]
"""Percentages of all regular clients and of artificial clients 1 to 5 in the paper, by data set, as printed there."""

PAPER_SYNCHRONOUS: Paper = {
    "adult": (99.88, 0.01, 0.05, 0.03, 0.01, 0.02),
    "web": (99.73, 0.02, 0.06, 0.06, 0.07, 0.06),
    "covtype": (97.77, 0.39, 0.57, 0.91, 0.36, 0.01),
    "rcv1": (93.84, 1.86, 0.43, 2.37, 0.31, 1.18),
}
PAPER_ASYNCHRONOUS: Paper = {
    "adult": (97.91, 0.93, 0.06, 0.33, 0.43, 0.35),
    "web": (98.39, 0.26, 0.31, 0.36, 0.40, 0.28),
    "covtype": (98.57, 0.35, 0.21, 0.22, 0.25, 0.39),
    "rcv1": (91.90, 1.66, 1.75, 1.64, 1.50, 1.54),
}
RAW = "raw columns"
AUTO = {"rank": "auto", "regularization": "auto"}
OF_OTHERS = ("regular", "errors")
"""What is kept of other completions, besides the shares of artificial clients; of some, these alone."""


class RandomFeatureSettings(Settings):
    """An artificial client for each of the `levels`, or, in asynchronous training, of the `slowness`.

    Their columns are drawn anew for each seed. With the first `auto_seeds` seeds, synchronous values are also computed
    with a rank and a lambda that are chosen, and with the first `true_seeds` from all embeddings of all rounds. If
    `halvings` is positive, the rate is halved up to so many times, with raw columns, until training does not diverge.
    """

    levels: tuple[float, ...] = (1, 2, 3, 4, 5)
    slowness: tuple[int, ...] = (1, 2, 3, 4, 5)
    auto_seeds: int = 0
    true_seeds: int = 0
    halvings: int = 0


def _synchronous_parts(name: str, settings: RandomFeatureSettings) -> Mapping[str, Callable[[], Findings]]:
    todo = by_variant_and_seed(_synchronous, name, settings)
    if settings.halvings:
        todo |= by_seed(min(settings.seeds, 5), partial(_highest_rate, name, settings), f"{RAW}, ")
    return todo


def _synchronous(name: str, settings: RandomFeatureSettings, seed: int) -> Findings:
    n_artificial, with_truth = len(settings.levels), seed < settings.true_seeds
    data = _with_random(name, settings, seed)
    trained = train_synchronously(data, settings.but(seed=seed), with_truth=with_truth)
    found = _found(trained, trained.value(), n_artificial)
    others = {"auto": trained.value(**AUTO).shares} if seed < settings.auto_seeds else {}
    if with_truth:
        others["truth"] = trained.truth / trained.truth.sum()
        found["truth, errors"] = (100 * trained.truth_errors[-n_artificial:] / trained.truth.sum()).tolist()
    for kind, shares in others.items():
        found[kind] = (100 * shares[-n_artificial:]).tolist()
        found[f"{kind}, regular"] = (100 * shares[:-n_artificial]).tolist()
    return found


def _asynchronous(name: str, settings: RandomFeatureSettings, seed: int) -> Findings:
    data, rng = split(name, settings), np.random.default_rng(seed)
    shape = data.clients[0].numeric.shape
    more = (ClientData(f"artificial {i}", rng.standard_normal(shape)) for i in settings.slowness)
    trained = train_asynchronously(data.with_clients(*more), settings.but(seed=seed), settings.slowness)
    return _found(trained, trained.value(), len(settings.slowness))


def _with_random(name: str, settings: RandomFeatureSettings, seed: int) -> VerticalData:
    data, rng = split(name, settings), np.random.default_rng(seed)
    more = (random_client(data.clients[0], f"artificial {i + 1}", x, rng) for i, x in enumerate(settings.levels))
    return data.with_clients(*more)


def _found(trained: Trained, valuation: Valuation, n_artificial: int) -> dict[str, Any]:
    """Return the shares of regular clients and of the last ones, which are artificial, in percent."""
    shares, errors = shares_of_last(valuation, n_artificial)
    of_regular = 100 * valuation.errors[:-n_artificial] / valuation.values.sum()
    return {
        "regular": (100 * valuation.shares[:-n_artificial]).tolist(),
        "artificial": shares,
        "errors": errors,
        "regular errors": of_regular.tolist(),
        "accuracy": trained.accuracy,
        "rounds": valuation.n_rounds,
    }


def _highest_rate(name: str, settings: RandomFeatureSettings, seed: int) -> Findings:
    """Return the highest rate that was tried at which training on raw columns does not diverge, and true shares there.

    It diverges if the loss at the end is above that at the start, or too large to be recorded.
    """
    data = _with_random(name, settings, seed)
    n_train = int((~data.is_test).sum())
    start = float(np.log(max(data.n_classes, 2)))
    losses: dict[str, float | None] = {}
    for halving in range(settings.halvings + 1):
        raw = settings.but(scale="none", rate=settings.rate / 2**halving, seed=seed)
        try:
            *_, training = run_rounds(build(data, raw), raw)
            losses[f"{raw.rate:g}"] = training.evaluate().train_loss
        except DivergedError:
            losses[f"{raw.rate:g}"] = None
        last = losses[f"{raw.rate:g}"]
        if last is not None and last < start:
            truth = train_synchronously(data, raw, with_truth=True).truth
            shares = (100 * truth[-len(settings.levels) :] / truth.sum()).tolist()
            return {"artificial": shares, "rate": raw.rate, "losses": losses, "samples": n_train}
    return {"rate": None, "losses": losses, "samples": n_train}


def _sums(found: Sequence[Findings], kind: str = "artificial") -> Floats:
    """Return what the artificial clients get together, in percent, for each seed."""
    return np.array([sum(part[kind]) for part in found])


def _tables(paper: Paper, results: Results) -> list[Table]:
    """Return the table of shares beside the paper's, and that of the variants."""
    header, columns = ["percent of all values"], []
    for name, measured in results.items():
        found = starting(measured, "seed ")
        ours = np.array([[100 - sum(part["artificial"]), *part["artificial"]] for part in found])
        header += [f"{title_of(name)}, {seeds_text(found)}", "the paper's"]
        columns += [[spread(x, 3) for x in ours.T], [f"{x:.2f}" for x in paper[name]]]
    labels = ["all regular clients", *(f"artificial client {i}" for i in range(1, len(columns[0])))]
    shown = [Table(header, [[label, *cells] for label, *cells in zip(labels, *columns, strict=True)])]
    rows = [
        _row(f"{title_of(name)}, {label}", found)
        for name, measured in results.items()
        for label, found in _kinds(measured).items()
    ]
    header = [
        "",
        "seeds",
        "artificial clients together",
        "lowest and highest of one",
        "largest stated error",
        "lowest of a regular one",
        "accuracy",
    ]
    caption = (
        "Other readings, ranks and scales; shares and errors in percent of all values. Seeds in brackets: only so many "
        "have the number."
    )
    shown.append(Table(header, rows, caption))
    rates = [_rate_row(name, found) for name, measured in results.items() if (found := starting(measured, RAW))]
    if rates:
        header = ["", "rate", "loss at the end", "artificial clients together, %", "lowest and highest of one"]
        caption = (
            "Raw columns N(i, i²), the rate halved from the protocol's until the loss at the end is below that at the "
            "start; true shares, from all embeddings:"
        )
        shown.append(Table(header, rates, caption))
    return shown


def _kinds(measured: Mapping[str, Findings]) -> dict[str, list[Findings]]:
    """Return the findings of the protocol and of each variant, each followed by those of other completions."""
    kinds: dict[str, list[Findings]] = {}
    for name, found in variants_of(measured).items():
        if name != RAW:
            title = name or "as above"
            kinds[title] = found
            for key, about in (("auto", "rank auto"), ("truth", "all embeddings known")):
                others: list[Findings] = [
                    {**part, "artificial": part[key], **{kind: part.get(f"{key}, {kind}") for kind in OF_OTHERS}}
                    for part in found
                    if key in part
                ]
                kinds[f"{title}, {about}"] = others
    return {title: found for title, found in kinds.items() if found}


def _row(label: str, found: Sequence[Findings]) -> list[str]:
    each = np.array([part["artificial"] for part in found])
    accuracy = f"{np.median([part['accuracy'] for part in found]):.1%}"
    ends = f"{each.min():z.3f} to {each.max():z.3f}"
    regular, errors = ([part[kind] for part in found if part[kind] is not None] for kind in OF_OTHERS)
    lowest = of_seeds(f"{min(map(min, regular)):z.3f}", regular, found) if regular else "-"
    largest = of_seeds(largest_stated(errors), errors, found) if errors else "-"
    return [label, str(len(found)), spread(each.sum(axis=1), 2), ends, largest, lowest, accuracy]


def _rate_row(name: str, found: Sequence[Findings]) -> list[str]:
    known = [part for part in found if part["rate"] is not None]
    if not known:
        return [title_of(name), "none of those tried", "-", "-", "-"]
    rates, each = sorted({part["rate"] for part in known}), np.array([part["artificial"] for part in known])
    losses = [part["losses"][f"{part['rate']:g}"] for part in known]
    ends = f"{each.min():.1f} to {each.max():.1f}"
    shown = ", ".join(f"{rate:g}" for rate in rates)
    return [f"{title_of(name)}, {seeds_text(known)}", shown, spread(losses, 3), spread(_sums(known), 1), ends]


def _verdict(found: Sequence[Findings], paper: float) -> Verdict:
    """Return whether artificial clients get what they get in the paper, or at least less than regular ones."""
    below, far_below = (
        all(factor * max(part["artificial"]) < min(part["regular"]) for part in found) for factor in (1, 2)
    )
    agrees = far_below and 0.5 <= np.median(_sums(found)) / paper <= 2
    return "yes" if agrees else "in trend" if below else "no"


def _allowed(found: Sequence[Findings], paper: float) -> set[Verdict]:
    """Return the verdicts on shares anywhere within their stated errors.

    Those of regular clients are taken as estimated where their errors were not kept, as in older results. Conditions
    are tested each by itself, so that a verdict may be too many.
    """
    low, high = (
        [
            {
                **{kind: np.array(part[kind]) + sign * _errors(part, kind) for kind in ("artificial", "regular")},
                "sum": sum(part["artificial"]) + sign * _errors(part, "artificial").sum(),
            }
            for part in found
        ]
        for sign in (-1, 1)
    )

    def is_below(factor: int, artificial: Sequence[Findings], regular: Sequence[Findings]) -> bool:
        pairs = zip(artificial, regular, strict=True)
        return all(factor * one["artificial"].max() < other["regular"].min() for one, other in pairs)

    least, most = (float(np.median([part["sum"] for part in end])) / paper for end in (low, high))
    verdicts: set[Verdict] = set() if is_below(1, high, low) else {"no"}
    if is_below(2, low, high) and least <= 2 and most >= 0.5:
        verdicts.add("yes")
    if is_below(1, low, high) and not (is_below(2, high, low) and least >= 0.5 and most <= 2):
        verdicts.add("in trend")
    return verdicts


def _errors(part: Findings, kind: str) -> Floats:
    """Return the stated errors of shares: infinite if they are unknown, zero if they were not kept."""
    kept = part.get("errors" if kind == "artificial" else "regular errors")
    return np.zeros(len(part[kind])) if kept is None else stated(kept)


def _claims(mode: str, paper: Paper, results: Results) -> list[Claim]:
    """Return whether the artificial clients get what they get in the paper, and less than any regular client."""
    made = []
    for name, measured in results.items():
        for label, found in readings_of(measured).items():
            sums, theirs = _sums(found), 100 - paper[name][0]
            verdict, ratio = _verdict(found, theirs), float(np.median(sums)) / theirs
            side = ", lower" if ratio < 0.5 else ", higher" if ratio > 2 else ""
            if true := [sum(part["truth"]) for part in found if "truth" in part]:
                side += f" (true: {spread(true, 2, ' %')})"
            most, least = max(max(part["artificial"]) for part in found), min(min(part["regular"]) for part in found)
            made.append(
                Claim(
                    f"Table 1, {mode}: random clients{label and OTHERWISE}",
                    name,
                    f"artificial clients together{label and ', '}{label}",
                    f"{theirs:.2f} %, much lower",
                    f"{spread(sums, 2, ' %')}{side}; one at most {most:z.2f} %, a regular one at least {least:z.2f} %",
                    verdict,
                    group_of(label),
                    is_open=_allowed(found, theirs) != {verdict},
                )
            )
    return made


ABOUT = (
    "yes: every artificial client gets less than half of what any regular one gets, for each seed, and together half "
    "to twice what they get in the paper; in trend: every artificial one gets less than any regular one of its seed "
    '(the paper: "much lower valuations than the regular clients"). \\*: shares anywhere within their stated errors '
    "allow another verdict; of regular clients, errors were not kept in older results, and are not examined there."
)
SYNCHRONOUS = Experiment(
    name="random-features",
    title="Random features, synchronous (Table 1, left)",
    about="Five clients with random columns N(i, i²), as many as client 1 has, join the regular ones. All columns are "
    "standardised, or on RCV1 all rows scaled to norm 1. " + ABOUT,
    settings_type=RandomFeatureSettings,
    parts=_synchronous_parts,
    tables=partial(_tables, PAPER_SYNCHRONOUS),
    claims=partial(_claims, "synchronous", PAPER_SYNCHRONOUS),
)
ASYNCHRONOUS = Experiment(
    name="random-features-async",
    title="Random features, asynchronous (Table 1, right)",
    about="Five clients with random columns N(0, 1), as many as client 1 has, join the regular ones; the i-th uploads "
    "every 0.01 i seconds. Columns are not scaled, but on RCV1 all rows to norm 1. " + ABOUT,
    settings_type=RandomFeatureSettings,
    parts=partial(by_variant_and_seed, _asynchronous),
    tables=partial(_tables, PAPER_ASYNCHRONOUS),
    claims=partial(_claims, "asynchronous", PAPER_ASYNCHRONOUS),
)
