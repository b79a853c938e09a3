"""Table 1: clients with random columns get almost nothing, in both modes and however often they upload."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from experiments.experiment import Claim, Experiment, Findings, Results, Table
from experiments.lab import Settings, Trained, shares_of_last, split, train_asynchronously, train_synchronously
from verfedsv.data import ClientData, random_client

Paper = Mapping[str, tuple[float, ...]]
"""Percentages that artificial clients 1 to 5 get in the paper, by data set."""

PAPER_SYNCHRONOUS: Paper = {
    "adult": (0.01, 0.05, 0.03, 0.01, 0.02),
    "web": (0.02, 0.06, 0.06, 0.07, 0.06),
    "covtype": (0.39, 0.57, 0.91, 0.36, 0.01),
    "rcv1": (1.86, 0.43, 2.37, 0.31, 1.18),
}
PAPER_ASYNCHRONOUS: Paper = {
    "adult": (0.93, 0.06, 0.33, 0.43, 0.35),
    "web": (0.26, 0.31, 0.36, 0.40, 0.28),
    "covtype": (0.35, 0.21, 0.22, 0.25, 0.39),
    "rcv1": (1.66, 1.75, 1.64, 1.50, 1.54),
}


class RandomFeatureSettings(Settings):
    """An artificial client for each level; each random draw of their columns is a part."""

    levels: tuple[float, ...] = (1, 2, 3, 4, 5)
    draws: int = 3


class AsyncRandomFeatureSettings(Settings):
    """Artificial client i uploads every `period` * `slowness[i]` seconds."""

    slowness: tuple[int, ...] = (1, 2, 3, 4, 5)
    draws: int = 1


def _synchronous_parts(name: str, settings: RandomFeatureSettings) -> Mapping[str, Callable[[], Findings]]:
    def measure(draw: int) -> Findings:
        data, rng = split(name, settings), np.random.default_rng(draw)
        more = (random_client(data.clients[0], f"artificial {i + 1}", x, rng) for i, x in enumerate(settings.levels))
        return _found(train_synchronously(data.with_clients(*more), settings), len(settings.levels))

    return {f"draw {draw}": partial(measure, draw) for draw in range(settings.draws)}


def _asynchronous_parts(name: str, settings: AsyncRandomFeatureSettings) -> Mapping[str, Callable[[], Findings]]:
    def measure(draw: int) -> Findings:
        data, rng = split(name, settings), np.random.default_rng(draw)
        shape = data.clients[0].numeric.shape
        more = (ClientData(f"artificial {i}", rng.standard_normal(shape)) for i in settings.slowness)
        trained = train_asynchronously(data.with_clients(*more), settings, settings.slowness)
        return _found(trained, len(settings.slowness))

    return {f"draw {draw}": partial(measure, draw) for draw in range(settings.draws)}


def _found(trained: Trained, n_artificial: int) -> Findings:
    """Return the shares of the last clients, which are artificial, in percent, and their errors."""
    valuation = trained.value()
    shares, errors = shares_of_last(valuation, n_artificial)
    return {
        "regular": float((100 * valuation.shares[:-n_artificial]).sum()),
        "artificial": shares,
        "errors": errors,
        "accuracy": trained.accuracy,
        "rounds": valuation.n_rounds,
    }


def _tables(paper: Paper, results: Results) -> list[Table]:
    """Return the table of shares, ours (the mean over draws) beside the paper's."""
    header, columns = ["percent of all values"], []
    for name, measured in results.items():
        ours = np.mean([part["artificial"] for part in measured.values()], axis=0)
        theirs = np.array(paper.get(name, [np.nan] * len(ours)))
        header += [f"{name.capitalize()}, ours", "the paper's"]
        columns += [[f"{100 - x.sum():.2f}", *(f"{share:.3f}" for share in x)] for x in (ours, theirs)]
    labels = ["all regular clients", *(f"artificial client {i + 1}" for i in range(len(columns[0]) - 1))]
    rows = [[label, *cells] for label, *cells in zip(labels, *columns, strict=True)]
    return [Table(header, [[cell.replace("nan", "-") for cell in row] for row in rows])]


def _claims(paper: Paper, results: Results) -> list[Claim]:
    """Return whether the artificial clients together get at most what they get in the paper."""
    made = []
    for name in (name for name in results if name in paper):
        sums = [sum(part["artificial"]) for part in results[name].values()]
        ours, most = f"{np.mean(sums):.2f} % ({min(sums):.2f} to {max(sums):.2f})", sum(paper[name])
        what = f"{name.capitalize()}: the artificial clients together"
        made.append(Claim(what, ours, f"at most {most:.2f} %", bool(np.mean(sums) <= most)))
    return made


SYNCHRONOUS = Experiment(
    name="random-features",
    title="Random features, synchronous (Table 1, left)",
    about="Five clients with random columns N(i, i²) join the regular ones.",
    settings_type=RandomFeatureSettings,
    parts=_synchronous_parts,
    tables=partial(_tables, PAPER_SYNCHRONOUS),
    claims=partial(_claims, PAPER_SYNCHRONOUS),
)
ASYNCHRONOUS = Experiment(
    name="random-features-async",
    title="Random features, asynchronous (Table 1, right)",
    about="Five clients with random columns N(0, 1) join the regular ones; the i-th uploads every 0.01 i seconds, for "
    "20 seconds with 500 time stamps.",
    settings_type=AsyncRandomFeatureSettings,
    parts=_asynchronous_parts,
    tables=partial(_tables, PAPER_ASYNCHRONOUS),
    claims=partial(_claims, PAPER_ASYNCHRONOUS),
)
