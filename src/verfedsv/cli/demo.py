"""`verfedsv demo`: value a recorded round of real data."""

from __future__ import annotations

import json
import time
from typing import Annotated, get_args

import numpy as np
import typer
from rich.console import Console

from verfedsv.data import Round, load_adult_round
from verfedsv.report.terminal import values_table
from verfedsv.shapley import Method, ShapleyResult, shapley_values
from verfedsv.shapley.result import count

_CHECKED_CLIENTS = 20
"""Up to so many clients the demo also enumerates all coalitions, in some ten seconds at most."""


def demo(
    clients: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=123,
            help="Split the features into that many blocks, one a client; by default each attribute is a client.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the values as JSON and nothing else.")] = False,
) -> None:
    """Value one recorded round of training on the Adult census data, which ships with the package.

    48,842 people, one client per attribute. Each client's value is its part of the decrease of the loss in that round.

    Example: verfedsv demo --clients 8
    """
    if as_json:
        training_round = load_adult_round(clients)
        typer.echo(json.dumps(_as_json(training_round, _value(training_round)), indent=2))
    else:
        show(Console(), clients)


def show(console: Console, n_clients: int | None = None) -> None:
    """Value the round and print the table, what it took, and how it compares with the exact values."""
    with console.status("Reading Adult; on the first run also compiling the inner loops ..."):
        training_round = load_adult_round(n_clients)
        for method in get_args(Method):
            _value(training_round, method, n_samples=20)
    begin = time.perf_counter()
    result = _value(training_round)
    took = time.perf_counter() - begin
    n_clients, n_samples = training_round.current.shape
    title = f"Adult, one round of training: {count(n_clients, 'client')}, {count(n_samples, 'sample')}"
    console.print(title, style="bold", highlight=False)
    console.print(values_table(training_round.clients, result, width=console.width))
    largest = np.abs(result.values).max()
    bound = "proven" if result.error_kind == "certified" else "99.9 % confidence"
    console.print(
        f"\nThe loss fell by {result.values.sum():.4e}. Valued in {took * 1e3:.1f} ms ({result.method}). Errors are "
        f"{bound} bounds, at most {result.errors.max() / largest:.0e} of the largest value.",
        highlight=False,
    )
    if n_clients <= _CHECKED_CLIENTS:
        with console.status(f"Checking against all {2**n_clients:,} coalitions ..."):
            begin = time.perf_counter()
            exact = _value(training_round, "exact")
            took = time.perf_counter() - begin
        difference = np.abs(result.values - exact.values).max() / largest
        console.print(
            f"Checked against all {2**n_clients:,} coalitions in {took:.2f} s: the largest difference is "
            f"{difference:.0e} of the largest value.",
            highlight=False,
        )


def _value(training_round: Round, method: Method = "auto", n_samples: int | None = None) -> ShapleyResult:
    """Return the values, of the first samples only if so asked."""
    return shapley_values(
        training_round.previous[:, :n_samples],
        training_round.current[:, :n_samples],
        training_round.labels[:n_samples],
        loss="logistic",
        method=method,
        n_permutations=None if n_samples is None else 10,
    )


def _as_json(training_round: Round, result: ShapleyResult) -> dict[str, object]:
    return {
        "clients": list(training_round.clients),
        "values": result.values.tolist(),
        "shares": result.shares.tolist(),
        "errors": result.errors.tolist(),
        "error_kind": result.error_kind,
        "method": result.method,
        "tolerance_met": result.tolerance_met,
        "n_rounds": 1,
        "n_samples": len(training_round.labels),
    }
