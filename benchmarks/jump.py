"""A hard game: the whole training of Adult as one round, 20 clients, tolerance 1e-3."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from benchmarks.measure import seconds, table, timed, times
from verfedsv import shapley_values
from verfedsv.data import load_adult_round

TOLERANCE = 1e-3
QUANTILE = 3.29
"""Standard errors in a 99.9 % interval of the normal distribution, for the plain permutations."""
N_PERMUTATIONS = 20_000


class Row(NamedTuple):
    """One method: seconds, utility calls, reported and true error relative to the largest value."""

    name: str
    seconds: float
    calls: float
    reported: float
    true: float
    missing: str = "0"


def run() -> tuple[str, dict[str, float]]:
    """Measure, and return the table in Markdown and the ratios that are claimed."""
    jump = load_adult_round(20, jump=True)
    arguments = jump.previous, jump.current, jump.labels
    exact, exact_time = timed(lambda: shapley_values(*arguments, method="exact"))
    largest = np.abs(exact.values).max()

    def true_error(values: np.ndarray) -> float:
        return float(np.abs(values - exact.values).max() / largest)

    rows = []
    auto, took = timed(lambda: shapley_values(*arguments, tolerance=TOLERANCE), repeat=5)
    reported = auto.errors.max() / largest
    name = f"`auto`, tolerance 1e-3 ({auto.method})"
    rows.append(Row(name, took, auto.n_evaluations, reported, true_error(auto.values)))
    for kind in ("plain", "antithetic"):
        result, took = timed(
            lambda antithetic=kind == "antithetic": shapley_values(
                *arguments, method="permutation", n_permutations=N_PERMUTATIONS, antithetic=antithetic
            )
        )
        print(f"  {N_PERMUTATIONS:,} {kind} permutations: {took:.4g} s")
        reported = QUANTILE * result.standard_errors.max() / largest
        name = f"{N_PERMUTATIONS:,} {kind} permutations"
        rows.append(Row(name, took, result.n_evaluations, reported, true_error(result.values)))
        factor = (reported / TOLERANCE) ** 2
        calls = result.n_evaluations * factor
        rows.append(Row(f"{kind} permutations to 1e-3, extrapolated", took * factor, calls, TOLERANCE, 0.0, missing=""))
    closed, took = timed(lambda: shapley_values(*arguments, method="closed-form"), repeat=21)
    reported = closed.errors.max() / largest
    rows.append(Row("`closed-form`", took, closed.n_evaluations, reported, true_error(closed.values)))
    rows.append(Row("`exact`", exact_time, exact.n_evaluations, exact.errors.max() / largest, 0.0))
    print(f"  auto: {rows[0].seconds:.4g} s, {times(rows[2].seconds / rows[0].seconds)} times faster than permutations")
    ratios = {
        "`auto` against plain permutations reaching 1e-3, 20 clients (extrapolated)": rows[2].seconds / rows[0].seconds,
        "`auto` against antithetic permutations reaching 1e-3 (extrapolated)": rows[4].seconds / rows[0].seconds,
    }
    return _render(rows), ratios


def _render(rows: list[Row]) -> str:
    header = ["method", "time", "utility calls", "reported error", "true error"]
    body = [
        [r.name, seconds(r.seconds), f"{r.calls:,.0f}", f"{r.reported:.0e}", f"{r.true:.0e}" if r.true else r.missing]
        for r in rows
    ]
    return table(header, body)
