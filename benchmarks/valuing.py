"""Valuing a whole training: from factors against NumPy, against the paper's Monte Carlo, live, and at full size."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import seconds, table, timed, times
from benchmarks.one_round import permutations_by_calls, vectorised_utility
from benchmarks.trainings import has, train
from verfedsv import value
from verfedsv.completion.factors import Factors
from verfedsv.data import AdultRound
from verfedsv.losses import get_loss
from verfedsv.shapley.closed_form import ClosedForm
from verfedsv.shapley.permutation import default_permutations
from verfedsv.shapley.plan import Plan
from verfedsv.threads import available_threads, ordered_map, split
from verfedsv.valuation.backends import CompiledLoops
from verfedsv.valuation.budget import Budget
from verfedsv.valuation.chunks import Change, Chunk

N_ROUNDS, N_CLIENTS, N_SAMPLES, RANK = 500, 8, 48_842, 5


def from_factors() -> tuple[str, float]:
    """Return the table of valuation from factors against reconstruction by NumPy, and the ratio to its plain form."""
    factors, labels = random_factors()
    _, ours = timed(lambda: value_factors(factors, labels, "logistic"), repeat=5)
    whole = np.empty((N_ROUNDS, N_SAMPLES))

    def reconstruct() -> None:
        for rounds, samples in factors:
            np.matmul(rounds[:, 0], samples.T, out=whole)

    def reconstruct_in_cache() -> None:
        def of_part(part: slice) -> None:
            buffer = np.empty((N_ROUNDS, part.stop - part.start))
            for rounds, samples in factors:
                np.matmul(rounds[:, 0], samples[part].T, out=buffer)

        list(ordered_map(of_part, split(N_SAMPLES, 2048), available_threads()))

    _, plain = timed(reconstruct, repeat=5)
    _, cached = timed(reconstruct_in_cache, repeat=5)
    print(f"  from factors {ours:.3f} s; NumPy {plain:.3f} s, in cache {cached:.3f} s")
    rows = [
        ["values of all rounds from factors, with errors", seconds(ours), "1"],
        ["NumPy, embeddings only: a matrix product for each client", seconds(plain), f"{ours / plain:.1f}"],
        ["NumPy, embeddings only: blocks that fit the cache, on all threads", seconds(cached), f"{ours / cached:.1f}"],
    ]
    return table(
        [
            f"{N_ROUNDS} rounds x {N_CLIENTS} clients x {N_SAMPLES:,} samples, rank {RANK}",
            "time",
            "we take so many times as long",
        ],
        rows,
    ), ours / plain


def random_factors() -> tuple[list[Factors], NDArray[Any]]:
    """Return random factors of all clients, and labels."""
    rng = np.random.default_rng(0)
    labels = get_loss("logistic").encode(rng.integers(0, 2, N_SAMPLES), 1)
    factors = [
        Factors(0.002 * np.cumsum(rng.normal(size=(N_ROUNDS, 1, RANK)), axis=0), rng.normal(size=(N_SAMPLES, RANK)))
        for _ in range(N_CLIENTS)
    ]
    return factors, labels


def value_factors(factors: list[Factors], labels: NDArray[Any], loss: str) -> NDArray[np.float64]:
    """Return the values of all rounds, (rounds, clients), by the closed form."""
    n_rounds, n_classes, _ = factors[0].rounds.shape
    rounds = [[Change(m, None, f.rounds[t]) for m, f in enumerate(factors)] for t in range(n_rounds)]
    table = np.zeros((len(factors), len(labels), n_classes))

    chunk = Chunk(get_loss(loss), labels, len(factors), table, rounds, {m: f.samples for m, f in enumerate(factors)})
    plan = Plan(ClosedForm(), len(labels), n_permutations=1)
    return CompiledLoops().value_rounds(chunk, plan, Budget(1e-3), available_threads()).values[:, :-1]


def against_monte_carlo(n_rounds: int = 3, n_permutations: int = 5) -> tuple[str, float]:
    """Return a sentence on Web, 500 rounds x 20 clients, and how many times slower the paper's Monte Carlo is."""
    training = train("web", 20, 500)
    with training.record(None) as recorder:
        result = value(recorder)
    by_paper, total = default_permutations(20), 0.0
    for t in range(1, 500, 500 // n_rounds):
        before, after = training.embeddings(t - 1)[..., 0], training.embeddings(t)[..., 0]
        utility = vectorised_utility(AdultRound((), before, after, np.where(training.labels > 0, 1.0, -1.0)))
        _, took = timed(lambda utility=utility: permutations_by_calls(utility, 20, n_permutations), repeat=3)
        total += took / n_permutations / n_rounds
    monte_carlo = total * by_paper * 500
    ours = result.seconds["valuation"]
    print(f"  Web: valuation {ours:.2f} s, all {result.seconds['total']:.1f} s, Monte Carlo {monte_carlo:.0f} s")
    return (
        f"Web, 500 rounds x 20 clients x {result.n_samples:,} samples: completed in "
        f"{seconds(result.seconds['completion'])}, valued in {seconds(ours)}, errors included. The paper's Monte "
        f"Carlo, {by_paper:,} permutations in each round by vectorised utility calls, takes "
        f"{monte_carlo / 3600:.0f} hours (extrapolated from {n_permutations} permutations in {n_rounds} rounds): "
        f"{times(monte_carlo / ours)} times as long, and {times(monte_carlo / result.seconds['total'])} times as long "
        "as completion and valuation together."
    ), monte_carlo / ours


def watched() -> str:
    """Return a sentence on valuing a growing training: warm against cold."""
    training = train("adult", 8)
    n_rounds = len(training.batches)
    with training.record(None, last=n_rounds - 18) as recorder:
        earlier = value(recorder)
        training.record(None, recorder=recorder, first=n_rounds - 18)
        warm, cold = value(recorder, since=earlier), value(recorder)
    largest = np.abs(cold.values).max()
    difference = np.abs(warm.values - cold.values).max() / largest
    print(f"  watched: warm {warm.seconds['total']:.2f} s, cold {cold.seconds['total']:.2f} s, {difference:.2g}")
    return (
        f"Adult, 8 clients, {n_rounds - 18} rounds valued, then one more epoch of 18 rounds: with `since` "
        f"{seconds(warm.seconds['total'])}, from scratch {seconds(cold.seconds['total'])}. The values differ by at "
        f"most {difference:.1g} of the largest; the estimated error of completion is "
        f"{cold.completion_errors.max() / largest:.1g} of it."
    )


def full_size() -> str:
    """Return a sentence on Covtype at full size, valued in a process of its own so that its peak is its own."""
    code = (
        "import json, sys\n"
        "from benchmarks.memory import peak\n"
        "from verfedsv import value\n"
        "result = value(sys.argv[1])\n"
        "print(json.dumps([peak(), result.n_rounds, result.n_samples, dict(result.seconds), result.method,\n"
        "    float(result.estimator_errors.max() / abs(result.values).max()),\n"
        "    float(result.completion_errors.max() / abs(result.values).max())]))\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run"
        train("covtype full", 14, 500).record(path, np.float32).close()
        size = sum(file.stat().st_size for file in path.iterdir())
        train.cache_clear()
        done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)  # noqa: S603
    peak, n_rounds, n_samples, took, method, estimator, completion = json.loads(done.stdout)
    print(f"  Covtype: {peak / 1e9:.2f} GB, {took}")
    return (
        f"Covtype, {n_samples:,} samples, 7 classes, 14 clients, {n_rounds} rounds ({size / 1e9:.1f} GB of "
        f"transcript): completed in {seconds(took['completion'])}, valued in {seconds(took['valuation'])} "
        f"({method}), at a peak of {peak / 1e9:.1f} GB, pages of the mapped transcript included. All embeddings at "
        f"once would be {8 * 14 * 7 * n_rounds * n_samples / 1e9:,.0f} GB. Errors, of the largest value: estimator "
        f"{estimator:.1g}, completion {completion:.1g}."
    )


def run() -> tuple[str, dict[str, float]]:
    """Measure, and return the text in Markdown and the ratios for the top of the page."""
    factors, slower = from_factors()
    parts, ratios = (
        [factors],
        {"whole training, 8 clients, in multiples of the time NumPy takes to reconstruct the embeddings": slower},
    )
    if has("web"):
        text, ratio = against_monte_carlo()
        parts.append(text)
        ratios["whole training of Web, 20 clients, against the paper's Monte Carlo (extrapolated)"] = ratio
    parts.append(watched())
    if has("covtype"):
        parts.append(full_size())
    return "\n\n".join(parts), ratios
