"""Table 1, synchronous: clients with random columns N(i, i^2) get next to nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np

from experiments.experiment import Claim, Experiment, Findings, Results, Table
from experiments.lab import Settings, split, train_synchronously
from verfedsv.data import VerticalData, random_client
from verfedsv.valuation import Valuation

PAPER = {
    "adult": (0.01, 0.05, 0.03, 0.01, 0.02),
    "web": (0.02, 0.06, 0.06, 0.07, 0.06),
    "covtype": (0.39, 0.57, 0.91, 0.36, 0.01),
    "rcv1": (1.86, 0.43, 2.37, 0.31, 1.18),
}
"""Percentages that artificial clients 1 to 5 get in the paper."""


class RandomFeatureSettings(Settings):
    """As many artificial clients as there are levels; each random draw of their columns is a part."""

    levels: tuple[float, ...] = (1, 2, 3, 4, 5)
    draws: int = 3


def parts(name: str, settings: RandomFeatureSettings) -> Mapping[str, Callable[[], Findings]]:
    """Return a training for each draw of the random columns."""

    def measure(draw: int) -> Findings:
        trained = train_synchronously(_with_random_clients(split(name, settings), settings, draw), settings)
        return found(trained.value(), len(settings.levels), trained.accuracy)

    return {f"draw {draw}": partial(measure, draw) for draw in range(settings.draws)}


def _with_random_clients(data: VerticalData, settings: RandomFeatureSettings, draw: int) -> VerticalData:
    rng = np.random.default_rng(draw)
    return data.with_clients(
        *(random_client(data.clients[0], f"artificial {i + 1}", x, rng) for i, x in enumerate(settings.levels))
    )


def found(valuation: Valuation, n_artificial: int, accuracy: float) -> Findings:
    """Return the shares of the last clients, which are artificial, in percent, and their errors."""
    shares, errors = 100 * valuation.shares, 100 * valuation.errors / valuation.values.sum()
    return {
        "regular": float(shares[:-n_artificial].sum()),
        "artificial": shares[-n_artificial:].tolist(),
        "errors": errors[-n_artificial:].tolist(),
        "accuracy": accuracy,
        "rounds": valuation.n_rounds,
    }


def tables_against(paper: Mapping[str, tuple[float, ...]]) -> Callable[[Results], list[Table]]:
    """Return what makes the table of shares, ours (the mean over draws) beside the paper's."""

    def tables(results: Results) -> list[Table]:
        header, columns = ["percent of all values"], []
        for name, measured in results.items():
            ours = np.mean([part["artificial"] for part in measured.values()], axis=0)
            theirs = np.array(paper.get(name, [np.nan] * len(ours)))
            header += [f"{name.capitalize()}, ours", "the paper's"]
            columns += [[f"{100 - x.sum():.2f}", *(f"{share:.3f}" for share in x)] for x in (ours, theirs)]
        labels = ["all regular clients", *(f"artificial client {i + 1}" for i in range(len(columns[0]) - 1))]
        rows = [[label, *cells] for label, *cells in zip(labels, *columns, strict=True)]
        return [Table(header, [[cell.replace("nan", "-") for cell in row] for row in rows])]

    return tables


def claims_against(paper: Mapping[str, tuple[float, ...]]) -> Callable[[Results], list[Claim]]:
    """Return what holds the sum of the artificial clients' shares against the paper's."""

    def claims(results: Results) -> list[Claim]:
        made = []
        for name, measured in results.items():
            sums = [sum(part["artificial"]) for part in measured.values()]
            ours = f"{np.mean(sums):.2f} % ({min(sums):.2f} to {max(sums):.2f})"
            if name in paper:
                most = sum(paper[name])
                what = f"{name.capitalize()}: the artificial clients together"
                made.append(Claim(what, ours, f"at most {most:.2f} %", bool(np.mean(sums) <= most)))
        return made

    return claims


EXPERIMENT = Experiment(
    name="random-features",
    title="Random features, synchronous (Table 1, left)",
    about="Five clients with random columns N(i, i²) join the regular ones.",
    settings_type=RandomFeatureSettings,
    parts=parts,
    tables=tables_against(PAPER),
    claims=claims_against(PAPER),
)
