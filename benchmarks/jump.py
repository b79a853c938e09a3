"""A hard game: the whole training of Adult as one round, 20 clients, tolerance 1e-3."""

from __future__ import annotations

import numpy as np

from benchmarks.measure import seconds, table, timed, times
from verfedsv import shapley_values
from verfedsv.data import load_adult_round

TOLERANCE = 1e-3
QUANTILE = 3.29
"""Standard errors in a 99.9 % interval of the normal distribution, for the plain permutations."""


def run() -> tuple[str, dict[str, float]]:
    """Measure, and return the table in Markdown and the ratio that is claimed."""
    jump = load_adult_round(20, jump=True)
    arguments = jump.previous, jump.current, jump.labels
    exact, exact_time = timed(lambda: shapley_values(*arguments, method="exact"))
    largest = np.abs(exact.values).max()
    auto, auto_time = timed(lambda: shapley_values(*arguments, tolerance=TOLERANCE), repeat=5)
    closed, closed_time = timed(lambda: shapley_values(*arguments, method="closed-form"), repeat=21)
    target = TOLERANCE * largest / QUANTILE
    rows = []
    for name, antithetic in (("plain permutations", False), ("antithetic permutations", True)):
        result, took = timed(
            lambda antithetic=antithetic: shapley_values(
                *arguments,
                method="permutation",
                standard_error=target,
                n_permutations=10**7,
                antithetic=antithetic,
            )
        )
        print(f"  {name}: {took:.4g} s")
        rows.append((f"{name}, until 3.29 standard errors are 1e-3", result, took, QUANTILE * result.standard_errors))
    rows = [
        (f"`auto`, tolerance 1e-3 ({auto.method})", auto, auto_time, auto.errors),
        *rows,
        ("`closed-form`", closed, closed_time, closed.errors),
        ("`exact`", exact, exact_time, exact.errors),
    ]
    header = ["method", "time", "utility calls", "reported error", "true error"]
    body = [
        [
            name,
            seconds(took),
            f"{result.n_evaluations:,}",
            f"{errors.max() / largest:.0e}",
            f"{np.abs(result.values - exact.values).max() / largest:.0e}" if result is not exact else "0",
        ]
        for name, result, took, errors in rows
    ]
    ratio = rows[1][2] / auto_time
    print(f"  auto: {auto_time:.4g} s, {times(ratio)} times faster than plain permutations")
    return table(header, body), {
        "`auto` against plain permutations reaching the same error, 20 clients": ratio,
        "`auto` against antithetic permutations reaching the same error": rows[2][2] / auto_time,
    }
