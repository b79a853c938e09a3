"""Completion: how far values from completed embeddings are from the true ones, and its speed against cmfrec."""

from __future__ import annotations

import time

import cmfrec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.measure import seconds, table, timed
from benchmarks.trainings import Training, deviation, has, train
from verfedsv import Valuation, shapley_values, value
from verfedsv.completion.complete import HELD_OUT
from verfedsv.completion.factors import CompiledSolver
from verfedsv.completion.observations import Pattern
from verfedsv.completion.parts import Observations
from verfedsv.threads import available_threads

RANK = 5
DATA = ("adult", "web", "covtype")
SETTINGS = (("adult", 3), ("web", 3), ("covtype", 3), ("adult", 8))
RANKS = ("auto", 1, 2, 3, 4, 5, 6, 7, 8, 9, 10)


def true_values(training: Training) -> NDArray[np.float64]:
    """Return the values from all embeddings, (clients,): nothing is completed."""
    previous = np.zeros_like(training.embeddings(0))
    total = np.zeros(len(previous))
    for t in range(len(training.batches)):
        current = training.embeddings(t)
        total += shapley_values(previous, current, training.labels, training.loss, "closed-form").values
        previous = current
    return total / len(training.batches)


def deviations() -> tuple[str, str]:
    """Return the table of deviations against the rank, and that of estimated and true errors."""
    columns, errors = {}, []
    for name, n_clients in SETTINGS:
        if not has(name):
            continue
        training = train(name, n_clients)
        true = true_values(training)
        with training.record(None) as recorder:
            for rank in RANKS if n_clients == 3 else ("auto",):
                result = value(recorder, rank=rank)
                if n_clients == 3:
                    columns[name, rank] = f"{deviation(result, true):.2%}"
                    print(f"  {name}, rank {rank}: deviation {columns[name, rank]}")
                if rank == "auto":
                    errors.append(_errors(f"{name.capitalize()}, {n_clients} clients", result, true))
    rows = [[str(rank), *(columns.get((name, rank), "no data") for name in DATA)] for rank in RANKS]
    header = ["data", "rounds", "ranks taken", "largest true error", "largest estimated", "within", "Prop. 2", "time"]
    return table(["rank", *(name.capitalize() for name in DATA)], rows), table(header, errors)


def _errors(name: str, result: Valuation, true: NDArray[np.float64]) -> list[str]:
    """Return a row of the table of errors."""
    largest, off = np.abs(true).max(), np.abs(result.values - true)
    ranks = sorted({report.rank for report in result.completion or ()})
    return [
        name,
        str(result.n_rounds),
        f"{ranks[0]} to {ranks[-1]}",
        f"{off.max() / largest:.2%}",
        f"{result.completion_errors.max() / largest:.2%}",
        f"{(off <= result.errors).sum()} of {len(true)}",
        f"{(result.guarantee or np.nan) / largest:.2g}",
        seconds(result.seconds["total"]),
    ]


def against_others(rank: int = RANK) -> str:
    """Return the table of completion by cmfrec and from a random start, on Adult with 3 clients."""
    training = train("adult", 3)
    pattern = Pattern.from_batches(training.batches, len(training.labels))
    is_held_out = pattern.hold_out(HELD_OUT, seed=0)
    rows = []
    for m in range(3):
        values = pattern.sort(training.uploads(m), 1, available_threads())
        observations = Observations.in_memory(pattern, values, HELD_OUT, seed=0)
        solver = CompiledSolver(observations, 0.1, 1e-3, 100, available_threads())

        def fit(solver: CompiledSolver = solver) -> float:
            return solver.errors(solver.fit(solver.start(rank), uses_all=False))[1].rmse

        rmse, took = timed(fit, repeat=3)
        random = np.random.default_rng(0).standard_normal((pattern.n_rounds, 1, rank))
        from_random = solver.errors(solver.fit(random, uses_all=False))[1].rmse
        theirs, their_time, n_sweeps = _by_cmfrec(pattern, values, is_held_out, rank, rmse)
        print(f"  client {m + 1}: ours {took:.3f} s, {rmse:.5f}; cmfrec {their_time:.3f} s, {theirs:.5f}")
        reached = "" if theirs <= rmse else " (not reached)"
        rows.append(
            [
                f"client {m + 1}",
                f"{rmse:.5f}",
                seconds(took),
                f"{theirs:.5f}{reached}",
                f"{seconds(their_time)}, {n_sweeps} sweeps",
                f"{their_time / took:.1f}",
                f"{from_random / rmse:.1f}",
            ]
        )
    header = [
        "Adult, 3 clients",
        "our held-out RMSE",
        "our time",
        "cmfrec's RMSE",
        "its time",
        "times ours",
        "random start, times our RMSE",
    ]
    return table(header, rows)


def _by_cmfrec(
    pattern: Pattern, values: NDArray[np.float64], is_held_out: NDArray[np.bool_], rank: int, wanted: float
) -> tuple[float, float, int]:
    """Return held-out RMSE, seconds and sweeps of cmfrec: the fewest sweeps that reach `wanted`, or the best of all."""
    of_sample = np.repeat(np.arange(pattern.n_samples), np.diff(pattern.starts))
    frame = pd.DataFrame({"UserId": pattern.rounds, "ItemId": of_sample, "Rating": values[:, 0]})
    used, held = frame[~is_held_out], frame[is_held_out]
    best = (np.inf, np.inf, 0)
    for n_sweeps in (2, 5, 10, 15, 20, 30, 45, 60, 100):
        # The same objective: no biases, no centring, lambda as ours; exact solves, as ours; double precision.
        model = cmfrec.CMF(
            k=rank,
            lambda_=0.1,
            method="als",
            use_cg=False,
            user_bias=False,
            item_bias=False,
            center=False,
            niter=n_sweeps,
            use_float=False,
            precompute_for_predictions=False,
            nthreads=available_threads(),
        )
        begin = time.perf_counter()
        model.fit(used)
        took = time.perf_counter() - begin
        rmse = float(np.sqrt(np.mean((model.predict(held["UserId"], held["ItemId"]) - held["Rating"]) ** 2)))
        if rmse < best[0]:
            best = (rmse, took, n_sweeps)
        if rmse <= wanted:
            break
    return best
