"""One real round of Adult, 14 clients: every method side by side, on time, utility calls and error."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import comb
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from shapiq.approximator import KernelSHAP, PermutationSamplingSV, kADDSHAP

from benchmarks.measure import seconds, table, timed, times
from verfedsv import shapley_values
from verfedsv.data import AdultRound, load_adult_round
from verfedsv.shapley.permutation import default_permutations

BUDGETS = (500, 2_000, 10_000)
SLICE = 8

Utility = Callable[[NDArray[np.bool_]], NDArray[np.float64]]


class Row(NamedTuple):
    """One method: what it is, seconds, utility calls, largest error relative to the largest value."""

    name: str
    seconds: float
    calls: int
    error: float


def vectorised_utility(training_round: AdultRound) -> Utility:
    """Return the utility of a matrix of coalitions, as one would write it in NumPy for speed.

    A matrix product over clients and the loss over coalitions and samples at once, in slices that fit the cache and
    buffers that are reused.
    """
    signs = training_round.labels
    base = training_round.previous.sum(axis=0) * signs
    change = (training_round.current - training_round.previous) * signs
    buffers = np.empty((2, SLICE, len(signs)))

    def mean_loss(margins: NDArray[np.float64]) -> NDArray[np.float64]:
        loss = buffers[1, : len(margins)]
        np.negative(np.abs(margins, out=loss), out=loss)
        np.log1p(np.exp(loss, out=loss), out=loss)
        loss -= np.minimum(margins, 0, out=margins)
        return loss.mean(axis=-1)

    before = mean_loss(base[np.newaxis].copy())

    def utility(coalitions: NDArray[np.bool_]) -> NDArray[np.float64]:
        members = np.atleast_2d(coalitions).astype(np.float64)
        result = np.empty(len(members))
        for first in range(0, len(members), SLICE):
            part = members[first : first + SLICE]
            margins = np.matmul(part, change, out=buffers[0, : len(part)])
            margins += base
            result[first : first + SLICE] = before - mean_loss(margins)
        return result

    return utility


def permutations_by_calls(utility: Utility, n_clients: int, n_permutations: int) -> NDArray[np.float64]:
    """Return the paper's estimate from a utility: the coalitions of each permutation in one vectorised call."""
    rng = np.random.default_rng(0)
    total = np.zeros(n_clients)
    chain = np.tri(n_clients + 1, n_clients, -1, dtype=bool)
    for _ in range(n_permutations):
        order = rng.permutation(n_clients)
        coalitions = np.empty_like(chain)
        coalitions[:, order] = chain
        total[order] += np.diff(utility(coalitions))
    return total / n_permutations


def exact_by_calls(utility: Utility, n_clients: int) -> NDArray[np.float64]:
    """Return the exact values from one vectorised call per 64 coalitions."""
    codes = np.arange(2**n_clients)
    members = (codes[:, None] >> np.arange(n_clients) & 1).astype(bool)
    utilities = np.concatenate([utility(part) for part in np.array_split(members, len(members) // 64)])
    sizes = members.sum(axis=1)
    weights = np.array([1 / (n_clients * comb(n_clients - 1, s)) for s in range(n_clients)])
    values = np.empty(n_clients)
    for m in range(n_clients):
        without = codes[~members[:, m]]
        values[m] = (weights[sizes[without]] * (utilities[without | 1 << m] - utilities[without])).sum()
    return values


def run() -> tuple[str, dict[str, float]]:
    """Measure, and return the table in Markdown and the ratios that are claimed."""
    adult = load_adult_round()
    arguments = adult.previous, adult.current, adult.labels
    n_clients = len(adult.clients)
    utility = vectorised_utility(adult)
    exact, exact_time = timed(lambda: shapley_values(*arguments, method="exact"), repeat=5)
    largest = np.abs(exact.values).max()

    def row(name: str, values: NDArray[np.float64], took: float, calls: int) -> Row:
        print(f"  {name}: {took:.4g} s")
        return Row(name, took, calls, float(np.abs(values - exact.values).max() / largest))

    rows = []
    for method, repeat in (("closed-form", 501), ("auto", 501)):
        result, took = timed(lambda method=method: shapley_values(*arguments, method=method), repeat)
        rows.append(row(f"verfedsv, `{method}`", result.values, took, result.n_evaluations))
    rows.append(row("verfedsv, `exact`", exact.values, exact_time, exact.n_evaluations))
    result, took = timed(lambda: shapley_values(*arguments, method="permutation"), repeat=3)
    rows.append(row("verfedsv, `permutation`, the paper's number", result.values, took, result.n_evaluations))

    values, took = timed(lambda: exact_by_calls(utility, n_clients), repeat=3)
    rows.append(row("exact, by utility calls", values, took, 2**n_clients))
    n_permutations = default_permutations(n_clients)
    values, took = timed(lambda: permutations_by_calls(utility, n_clients, n_permutations))
    rows.append(row("the paper's sampling, by utility calls", values, took, n_permutations * n_clients))
    for estimator in (KernelSHAP, kADDSHAP, PermutationSamplingSV):
        for budget in BUDGETS:
            make = partial(estimator, n=n_clients, random_state=0)
            found, took = timed(lambda make=make, budget=budget: make().approximate(budget, utility), repeat=3)
            values = np.array([found[(m,)] for m in range(n_clients)])
            rows.append(row(f"shapiq {estimator.__name__}, budget {budget:,}", values, took, budget))
    return _render(rows), _ratios(rows)


def _render(rows: list[Row]) -> str:
    fastest = rows[0].seconds
    header = ["method", "time", "times the closed form", "utility calls", "largest error, of the largest value"]
    body = [
        [r.name, seconds(r.seconds), times(r.seconds / fastest), f"{r.calls:,}", f"{r.error:.0e}" if r.error else "0"]
        for r in rows
    ]
    return table(header, body)


def _ratios(rows: list[Row]) -> dict[str, float]:
    by_name = {r.name: r for r in rows}
    closed = rows[0]
    peers = [r for r in rows if r.name.startswith("shapiq")]
    return {
        "closed form against the paper's sampling by utility calls": by_name[
            "the paper's sampling, by utility calls"
        ].seconds
        / closed.seconds,
        "closed form against our own compiled permutation sampling": by_name[
            "verfedsv, `permutation`, the paper's number"
        ].seconds
        / closed.seconds,
        "closed form against the fastest shapiq estimator, budget 2,000": min(
            r.seconds for r in peers if r.calls == 2_000
        )
        / closed.seconds,
        "closed form against the fastest shapiq estimator, budget 500": min(r.seconds for r in peers if r.calls == 500)
        / closed.seconds,
        "exact against one utility call per coalition": by_name["exact, by utility calls"].seconds
        / by_name["verfedsv, `exact`"].seconds,
        "smallest error of a shapiq estimator over that of the closed form": min(r.error for r in peers) / closed.error,
    }
