"""The paper's propositions 1 and 3, its bound on sampling, and its closing remark, evaluated on Adult.

The first three are not right as stated; below, "right" is what their proofs give.

**Hoeffding's bound.** What a client adds to a coalition is a difference of two utilities, so it lies in an interval of
length 2 R, with R the range of the utility. By Hoeffding's inequality the mean of K draws is off by more than ε with a
probability of at most 2 exp(-2 K ε² / (2 R)²). So K ≥ (2 R² / ε²) ln(2 / δ) is enough for one client,
K ≥ (2 R² / ε²) ln(2 M / δ) for all clients at once, and K ≥ (2 R² M / ε²) ln(2 M / δ) for the Euclidean norm of all
errors, as then each may be ε / √M: that is the bound of Jia et al., which the paper cites. The paper has ε in place of
ε². That cannot be right: in other units of the loss, R² and ε are scaled differently. As ε is far below 1, it promises
too small an error.

**Proposition 1** bounds the rank by ⌈L ln(T) / ε⌉. Its proof bounds the gradient by the smoothness L, in place of the
Lipschitz constant G (1/4 and 1 for the logistic loss), and the sum of 1/t up to T - 1 by ln T, which it exceeds. It is
false for f(h) = h, which is L-smooth for every L > 0: with T - 1 orthonormal rows, of which round t takes the t-th, the
matrix has rank T - 1 (see the tests). Right is ⌊G (1 + ln T) / ε⌋ + 1: rounds fall into so many groups within ε of each
other.

**Proposition 3.** With two clients, s₁ - s₂ = U({1}) - U({2}) = g(θ₂) - g(θ₁); the proof has twice that. With h(x) =
g(x θ*), a = rho / (1 + rho), b = 1 / (1 + rho) and m = μ ‖θ*‖², strong convexity gives h'(b) ≤ -m (1 - b), as h'(1) =
0, and h(a) - h(b) ≥ h'(b) (a - b) + m (a - b)² / 2 ≥ m (b - a) (1 - b + (b - a) / 2). As a + b = 1, the right bound is
m (b - a) / 2 = μ (1 - rho) / (2 (1 + rho)) ‖θ*‖². It is attained if the Hessian is μ times the identity, so no larger
one holds. The paper's, μ ((1 - rho) / (1 + rho))² ‖θ*‖², is larger for rho < 1/3, twice as large at rho = 0. The proof
also replaces E g(θ) by g(E θ). For a quadratic g with Hessian A that changes nothing: θ₁ + θ₂ = θ*, so g(θ₂) - g(θ₁) =
(θ₁ - θ₂)·A θ* / 2 is linear in the models. For other losses even the right bound only holds for the models at their
means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from experiments.experiment import (
    Claim,
    Experiment,
    Findings,
    Results,
    Table,
    Verdict,
    by_seed,
    seeds_text,
    spread,
    starting,
)
from experiments.lab import Settings, build, run_rounds, schedule, split, train_synchronously, weights_of
from verfedsv import epsilon_rank, rank_bound
from verfedsv.arrays import Array, Floats
from verfedsv.data import ClientData, VerticalData, prepare
from verfedsv.losses import get_loss
from verfedsv.shapley.permutation import default_permutations

SMOOTHNESS, LIPSCHITZ = get_loss("logistic").smoothness, get_loss("logistic").lipschitz

FIRST, WHOLE = "first rounds", "rounds of the whole training"

LEAST_CURVATURE = 0.1
"""The smallest eigenvalue of the correlations of columns that are not nearly dependent."""


class TheorySettings(Settings):
    """Sizes of each part.

    Hoeffding's bound: the first `sampled_rounds` of `sampled_clients`, and as many from the whole training; `draws`
    samplings of each, failure probability `delta`. Proposition 1 at each of `eps`. Proposition 3 on `columns` columns,
    for each of `rhos`, `trainings` each. Client 1 joins `again` times.
    """

    sampled_clients: int = 8
    sampled_rounds: int = 20
    draws: int = 1000
    delta: float = 0.05
    eps: tuple[float, ...] = (1e-3, 1e-2, 0.1)
    columns: int = 10
    rhos: tuple[float, ...] = (0.0, 0.1, 0.2, 1 / 3, 0.5, 0.8, 1.0)
    trainings: int = 200
    again: tuple[int, ...] = (0, 1, 2, 3)


def parts(name: str, settings: TheorySettings) -> Mapping[str, Callable[[], Findings]]:
    """Return one part for each seed and statement; Proposition 3 repeats its draws itself."""

    @cache
    def radii(client: int) -> Floats:
        data = split(name, settings)
        return covering_radii(np.unique(_unit_rows(data.clients[client], data), axis=0))

    def hoeffding(seed: int) -> Findings:
        used = settings.but(clients=settings.sampled_clients, seed=seed)
        return _hoeffding(split(name, used), used)

    def proposition_1(seed: int) -> Findings:
        return _proposition_1(split(name, settings), settings.but(seed=seed), radii)

    def identical(seed: int) -> Findings:
        return _identical(split(name, settings), settings.but(seed=seed))

    return {
        **by_seed(settings.seeds, hoeffding, "Hoeffding, "),
        **by_seed(settings.seeds, proposition_1, "Proposition 1, "),
        "Proposition 3": lambda: _proposition_3(split(name, settings), settings),
        **by_seed(settings.seeds, identical, "identical clients, "),
    }


def utilities(data: VerticalData, settings: Settings, rounds: Collection[int]) -> Floats:
    """Return the utility of every coalition in some rounds, (rounds, 2^clients), from all embeddings.

    Client m is in coalition c if bit m of c is set. Rounds are numbered from 0 and returned in rising order.
    """
    n_clients, loss = len(data.clients), get_loss(data.loss)
    members = (np.arange(2**n_clients)[:, np.newaxis] >> np.arange(n_clients) & 1).astype(float)
    training = build(data, settings)
    labels = loss.encode(training.server.labels[: training.server.n_train], 1)
    previous = current = training.evaluate().embeddings[:, :, 0]
    found = []
    for t, _ in enumerate(run_rounds(training, settings)):  # uploads of a round are embedded before its step
        if t in rounds:
            blocks = np.array_split(members, max(1, len(members) // 16))
            mixed = (previous.sum(axis=0) + block @ (current - previous) for block in blocks)
            losses = np.concatenate([loss.value(x[:, :, np.newaxis], labels).mean(axis=1) for x in mixed])
            found.append(losses[0] - losses)
        previous, current = current, training.evaluate().embeddings[:, :, 0]
    return np.array(found)


def values_of(utility: Floats) -> Floats:
    """Return the Shapley values of a game given by the utilities of all coalitions, (2^clients,)."""
    n_clients = len(utility).bit_length() - 1
    coalitions = np.arange(len(utility))
    values = np.empty(n_clients)
    for m in range(n_clients):
        without = coalitions[coalitions >> m & 1 == 0]
        weights = [1 / (n_clients * math.comb(n_clients - 1, int(c).bit_count())) for c in without]
        values[m] = np.dot(weights, utility[without | 1 << m] - utility[without])
    return values


def sampled_values(utility: Floats, n_permutations: int, rng: np.random.Generator) -> Floats:
    """Return the paper's Monte Carlo values of the same game."""
    n_clients = len(utility).bit_length() - 1
    orders = rng.permuted(np.tile(np.arange(n_clients), (n_permutations, 1)), axis=1)
    chains = np.cumsum(1 << orders, axis=1)
    added = np.diff(utility[chains], axis=1, prepend=utility[0])
    return np.bincount(orders.ravel(), added.ravel(), n_clients) / n_permutations


def bounds_of_sampling(width: float, n_clients: int, n_permutations: int, delta: float) -> dict[str, float]:
    """Return ε of K permutations for utilities of range `width`: the paper's, and the right ones."""
    each = 2 * width**2 * math.log(2 * n_clients / delta) / n_permutations
    return {"paper": n_clients * each, "norm": math.sqrt(n_clients * each), "each": math.sqrt(each)}


def _hoeffding(data: VerticalData, settings: TheorySettings) -> Findings:
    n_train, n_sampled = int((~data.is_test).sum()), settings.sampled_rounds
    n_rounds = schedule(n_train, settings).n_rounds
    # Linear models start from zero, so nothing changes in round 0. No fixed stride: an epoch has 18 rounds, whose last
    # batch is short.
    chosen = {
        FIRST: range(1, min(n_sampled, n_rounds - 1) + 1),
        WHOLE: sorted(set(np.linspace(1, n_rounds - 1, n_sampled).astype(int).tolist())),
    }
    numbers = sorted(set().union(*chosen.values()))
    by_round = dict(zip(numbers, utilities(data, settings, numbers), strict=True))
    return {
        label: _sample(np.mean([by_round[t] for t in some], axis=0), settings) | {"rounds": len(some)}
        for label, some in chosen.items()
    }


def _sample(utility: Floats, settings: TheorySettings) -> dict[str, Any]:
    """Return the bounds of the paper's K permutations, relative to the largest value, and the observed errors."""
    true, rng = values_of(utility), np.random.default_rng(settings.seed)
    n_clients, largest = len(true), float(np.abs(true).max())
    n_permutations = default_permutations(n_clients)
    errors = np.array([sampled_values(utility, n_permutations, rng) - true for _ in range(settings.draws)])
    bounds = bounds_of_sampling(float(np.ptp(utility)), n_clients, n_permutations, settings.delta)
    # Permutations for errors of a hundredth of the largest value: ε falls as 1/K in the paper, as 1/√K otherwise.
    ratios = {kind: bound / (0.01 * largest) for kind, bound in bounds.items()}
    return {
        "clients": n_clients,
        "permutations": n_permutations,
        "draws": settings.draws,
        "delta": settings.delta,
        "range": float(np.ptp(utility)),
        "bounds": {kind: bound / largest for kind, bound in bounds.items()},
        "needed": {kind: n_permutations * (x if kind == "paper" else x**2) for kind, x in ratios.items()},
        "error": float(np.quantile(np.abs(errors).max(axis=1), 1 - settings.delta)) / largest,
        "norm": float(np.quantile(np.linalg.norm(errors, axis=1), 1 - settings.delta)) / largest,
        # Of the client that is least often within the bound.
        "within": {kind: float((np.abs(errors) <= bound).mean(axis=0).min()) for kind, bound in bounds.items()},
    }


def _unit_rows(client: ClientData, data: VerticalData) -> Floats:
    return _dense(prepare(client, "unit-rows", ~data.is_test))[~data.is_test]


def _dense(columns: Any) -> Floats:
    return np.asarray(columns.toarray() if isinstance(columns, csr_array) else columns)


def covering_radii(rows: Floats) -> Floats:
    """Return for each number of balls, from 1 on, the radius at which they cover all rows.

    Each ball is around the row farthest from the centres so far, so smaller covers may exist.
    """
    distance, centre, radii = np.full(len(rows), np.inf), 0, list[float]()
    while not radii or radii[-1] > 0:
        distance = np.minimum(distance, np.sqrt(np.square(rows - rows[centre]).sum(axis=1)))
        centre = int(distance.argmax())
        radii.append(float(distance[centre]))
    return np.array(radii)


def _proposition_1(data: VerticalData, settings: TheorySettings, radii: Callable[[int], Floats]) -> Findings:
    """Return ranks and bounds of each client, in rows of norm 1 and with steps of 1/t."""
    training = build(data, settings.but(scale="unit-rows", rate=1.0, decay="inverse"))
    weights = [weights_of(each) for each in chain([training], run_rounds(training, settings))]
    found = []
    for m, client in enumerate(data.clients):
        # Equal rows have equal embeddings; their number only matters for singular values.
        rows, counts = np.unique(_unit_rows(client, data), axis=0, return_counts=True)
        models = np.stack([of_round[m][:, 0] for of_round in weights[:-1]])
        matrix = models @ rows.T
        steps = np.abs(np.diff(matrix, axis=0)).max(axis=1) * np.arange(1, len(matrix))
        largest = float(np.linalg.norm(models, axis=1).max())
        residuals = truncation_errors(matrix, counts)
        found.append(
            {
                "features": rows.shape[1],
                "relative ranks": [epsilon_rank(matrix * np.sqrt(counts), eps) for eps in settings.eps],
                "ranks": [int((residuals > eps).argmin()) for eps in settings.eps],
                "covering": [int((radii(m) > eps / largest).argmin()) + 1 for eps in settings.eps],
                "largest step": float(steps.max()),  # at most L by the proof
            }
        )
    n_rounds = len(weights) - 1
    return {
        "eps": list(settings.eps),
        "rounds": n_rounds,
        "clients": found,
        "paper": [math.ceil(SMOOTHNESS * math.log(n_rounds) / eps) for eps in settings.eps],
        "right": [rank_bound(eps, n_rounds=n_rounds, lipschitz=LIPSCHITZ) for eps in settings.eps],
    }


def truncation_errors(matrix: Floats, counts: Array) -> Floats:
    """Return the largest entry of a matrix minus its truncated singular value decomposition, for each rank from 0 on.

    Columns occur `counts` times. The last error is 0: that of the full rank.
    """
    left, sizes, _ = np.linalg.svd(matrix * np.sqrt(counts), full_matrices=False)
    residual, errors = matrix.copy(), [np.abs(matrix).max()]
    for direction in left.T[: int((sizes > 1e-12 * sizes[0]).sum())]:
        residual -= np.outer(direction, direction @ matrix)
        errors.append(np.abs(residual).max())
    return np.array([*errors[:-1], 0.0])


def _proposition_3(data: VerticalData, settings: TheorySettings) -> Findings:
    """Return the difference of the values of two clients with the same columns, for each probability of taking part."""
    columns = np.concatenate([_dense(client.numeric) for client in data.clients], axis=1)[~data.is_test]
    labels = np.where(data.labels[~data.is_test] == 1, 1.0, -1.0)
    features = informative_columns(columns, labels, settings.columns)
    hessian, target = features.T @ features / len(features), features.T @ labels / len(features)
    # With whitened columns the Hessian is the identity: the exact example.
    root = np.linalg.cholesky(hessian)
    cases = {
        "standardised": (hessian, np.linalg.solve(hessian, target)),
        "whitened": (np.eye(len(target)), np.linalg.solve(root, target)),
    }
    found: dict[str, Any] = {"rhos": list(settings.rhos), "trainings": settings.trainings, "columns": len(target)}
    for case, (curvature, optimum) in cases.items():
        sizes = np.linalg.eigvalsh(curvature)
        strong = float(sizes[0] * (optimum @ optimum))
        rows, rng = [], np.random.default_rng(0)
        for rho in settings.rhos:
            first, second = frequency_models(curvature, optimum, rho, settings.trainings, rng)
            differences = value_differences(curvature, optimum, first, second)
            rows.append(
                {
                    "mean": float(differences.mean()),
                    "error": float(differences.std(ddof=1) / math.sqrt(len(differences))),
                    "paper": strong * ((1 - rho) / (1 + rho)) ** 2,
                    "right": strong * (1 - rho) / (2 * (1 + rho)),
                }
            )
        found[case] = {"condition": float(sizes[-1] / sizes[0]), "rows": rows}
    return found


def informative_columns(columns: Floats, labels: Floats, n_columns: int) -> Floats:
    """Return the standardised columns most correlated with the labels, but for those nearly dependent on others."""
    spreads = columns.std(axis=0)
    varied = columns[:, spreads > 0]
    standardised = (varied - varied.mean(axis=0)) / spreads[spreads > 0]
    correlations = standardised.T @ standardised / len(labels)
    chosen: list[int] = []
    for column in np.argsort(-np.abs(standardised.T @ labels), kind="stable"):
        more = [*chosen, int(column)]
        if len(chosen) < n_columns and np.linalg.eigvalsh(correlations[np.ix_(more, more)])[0] > LEAST_CURVATURE:
            chosen = more
    return np.asarray(standardised[:, chosen])


def frequency_models(
    hessian: Floats, optimum: Floats, rho: float, n_trainings: int, rng: np.random.Generator
) -> tuple[Floats, Floats]:
    """Return what two clients with the same data learn by full gradient steps, (trainings, features) each.

    The loss is quadratic in the sum of their models, which start at 0. Client 1 takes every step, client 2 takes each
    with probability rho; both stop at the optimum.
    """
    rate = 0.5 / np.linalg.eigvalsh(hessian)[-1]
    first, second = np.zeros((2, n_trainings, len(optimum)))
    gradient = -np.tile(hessian @ optimum, (n_trainings, 1))
    limit = 1e-12 * np.linalg.norm(gradient[0])
    while np.linalg.norm(gradient, axis=1).max() > limit:
        first -= rate * gradient
        second -= rate * gradient * (rng.random((n_trainings, 1)) < rho)
        gradient = (first + second - optimum) @ hessian
    return first, second


def value_differences(hessian: Floats, optimum: Floats, first: Floats, second: Floats) -> Floats:
    """Return s₁ - s₂ after one valuation at the end, (trainings,), by the definition for two clients."""

    def loss(model: Floats) -> Floats:
        away = model - optimum
        return np.asarray(np.einsum("td,de,te->t", away, hessian, away) / 2)

    start = loss(np.zeros_like(first))
    one, two, both = (start - loss(model) for model in (first, second, first + second))
    return np.asarray((one + both - two) / 2 - (two + both - one) / 2)


def _identical(data: VerticalData, settings: TheorySettings) -> Findings:
    """Return the total of all values, and the share of everybody who is client 1, for each number of clones."""
    first, others = data.clients[0], data.clients[1:]
    half = first.numeric.shape[1] // 2
    halves = [ClientData("half 1", first.numeric[:, :half]), ClientData("half 2", first.numeric[:, half:])]
    groups: dict[str, Sequence[ClientData]] = {
        f"{n} more": [first, *(replace(first, name=f"clone {k + 1}") for k in range(n))] for n in settings.again
    }
    groups["two halves"] = halves
    found = {}
    for label, names in groups.items():
        trained = train_synchronously(replace(data, clients=(*names, *others)), settings)
        result = trained.value()
        found[label] = {
            "total": float(result.values.sum() * result.n_rounds),
            "share": float(100 * result.shares[: len(names)].sum()),
            "loss": trained.evaluation.train_loss,
        }
    return found


def tables(results: Results) -> list[Table]:
    """Return a table for each statement."""
    measured = next(iter(results.values()))
    return [
        _table_of_sampling(starting(measured, "Hoeffding, ")),
        _table_of_ranks(starting(measured, "Proposition 1, ")),
        _table_of_frequencies(measured["Proposition 3"]),
        _table_of_clones(starting(measured, "identical clients, ")),
    ]


BOUNDS = {
    "paper": "the paper's 2 R² M ln(2 M / δ) / ε",
    "norm": "for the norm of all errors, 2 R² M ln(2 M / δ) / ε²",
    "each": "for the largest error, 2 R² ln(2 M / δ) / ε²",
}


def _table_of_sampling(found: Sequence[Findings]) -> Table:
    rows = []
    for label in (FIRST, WHOLE):
        parts_of = [part[label] for part in found]
        for kind, title in BOUNDS.items():
            bound = spread([100 * part["bounds"][kind] for part in parts_of], 3)
            observed = spread([100 * part["norm" if kind == "norm" else "error"] for part in parts_of], 3)
            within = "-" if kind == "norm" else f"{100 * min(part['within'][kind] for part in parts_of):.1f} %"
            needed = f"{np.median([part['needed'][kind] for part in parts_of]):,.0f}"
            rows.append([f"{parts_of[0]['rounds']} {label}: {title}", bound, observed, within, needed])
    first = found[0][FIRST]
    caption = (
        f"Hoeffding's bound, {first['clients']} clients, the paper's K = {first['permutations']:,}, δ = "
        f"{first['delta']}, {first['draws']} samplings for each of {seeds_text(found)} of the training; errors in "
        "percent of the largest value:"
    )
    quantile = f"observed, {1 - first['delta']:.0%} quantile"
    return Table(["", "ε", quantile, "within ε, least of all clients and seeds", "K for ε = 1 %"], rows, caption)


def _table_of_ranks(found: Sequence[Findings]) -> Table:
    first, rows = found[0], []
    every = [client for part in found for client in part["clients"]]
    for k, eps in enumerate(first["eps"]):
        cells = [_range(client[kind][k] for client in every) for kind in ("relative ranks", "ranks", "covering")]
        features = _range(client["features"] for client in every)
        rows.append([f"{eps:g}", *cells[:2], features, cells[2], f"{first['paper'][k]:,}", f"{first['right'][k]:,}"])
    caption = (
        f"Proposition 1, {first['rounds']} rounds, {seeds_text(found)}: ranks and bounds, the least and the largest of "
        "all clients. The right bound is at most T, as every round can be a group of its own:"
    )
    header = [
        "ε",
        "singular values ≥ ε times the largest",
        "rank within ε by truncation",
        "d",
        "covering number, at most",
    ]
    return Table([*header, "⌈L ln T / ε⌉, the paper", "⌊G (1 + ln T) / ε⌋ + 1, right"], rows, caption)


def _range(values: Any) -> str:
    known = list(values)
    return f"{min(known):,}" if min(known) == max(known) else f"{min(known):,} to {max(known):,}"


CASES = ("standardised", "whitened")


def _table_of_frequencies(part: Findings) -> Table:
    rows = []
    for k, rho in enumerate(part["rhos"]):
        cells = []
        for case in CASES:
            row = part[case]["rows"][k]
            cells += [f"{row['mean']:.5f} ± {row['error']:.1g}", f"{row['paper']:.5f}", f"{row['right']:.5f}"]
        rows.append([f"{rho:.2g}", *cells])
    conditions = " and ".join(f"{part[case]['condition']:.3g}" for case in CASES)
    caption = (
        f"Proposition 3, {part['columns']} columns, squared loss, {part['trainings']} trainings: mean of s₁ - s₂ and "
        f"its standard error. L / μ is {conditions}:"
    )
    header = [cell for case in CASES for cell in (f"s₁ - s₂, {case} columns", "the paper's bound", "right bound")]
    return Table(["rho", *header], rows, caption)


def _table_of_clones(found: Sequence[Findings]) -> Table:
    rows = []
    for label in found[0]:
        cells = [spread([part[label][key] for part in found], digits) for key, digits in (("total", 4), ("share", 2))]
        rows.append([label, *cells, spread([part[label]["loss"] for part in found], 4)])
    header = ["client 1 joins as", "total of all values", "its share with all its names, percent", "loss at the end"]
    return Table(header, rows, f"Identical clients, {seeds_text(found)} of batches:")


FALSE = ("Hoeffding's bound", "Proposition 1", "Proposition 3")
"""What is not right as printed."""


def claims(results: Results) -> list[Claim]:
    """Return whether each statement holds on Adult."""
    (name, measured), made = next(iter(results.items())), []

    def add(item: str, what: str, paper: str, ours: str, verdict: Verdict) -> None:
        made.append(Claim(item, name, what, paper, ours, verdict, "false" if item in FALSE else "statement"))

    found = starting(measured, "Hoeffding, ")
    for label in (FIRST, WHOLE):
        within, wanted = min(part[label]["within"]["paper"] for part in found), 1 - found[0][label]["delta"]
        what = f"error within ε, {found[0][label]['rounds']} {label}: least often of all clients and seeds"
        verdict: Verdict = "yes" if within >= wanted else "no"
        add("Hoeffding's bound", what, f"at least {wanted:.0%}", f"{100 * within:.1f} %", verdict)

    found = starting(measured, "Proposition 1, ")
    ratios = [
        client["ranks"][k] / part["paper"][k]  # smaller than the other two bounds for the largest ε only
        for part in found
        for client in part["clients"]
        for k in range(len(part["eps"]))
    ]
    ours, what = f"at most {max(ratios):.2f} of ⌈L ln T / ε⌉", "rank within ε, by truncation"
    add("Proposition 1", what, "at most the bound", ours, "yes" if max(ratios) <= 1 else "no")
    step = max(client["largest step"] for part in found for client in part["clients"])
    what, paper = "its proof: t times the change of an embedding in round t", f"at most L = {SMOOTHNESS:g}"
    add("Proposition 1", what, paper, f"at most {step:.2f}", "yes" if step <= SMOOTHNESS else "no")

    part = measured["Proposition 3"]
    for case in CASES:
        broken = [rho for rho, row in zip(part["rhos"], part[case]["rows"], strict=True) if is_below(row, "paper")]
        ours = f"less for rho = {', '.join(f'{rho:.2g}' for rho in broken)}" if broken else "at least the bound"
        what = f"s₁ - s₂, {case} columns"
        add("Proposition 3", what, "at least the bound, for all rho", ours, "no" if broken else "yes")

    found = starting(measured, "identical clients, ")
    labels = [label for label in found[0] if label.endswith(" more")]
    totals = np.array([[part[label]["total"] for label in labels] for part in found])
    rises, ends_higher = (np.diff(totals, axis=1) > 0).all(), (totals[:, -1] > totals[:, 0]).all()
    verdict = "yes" if rises else "in trend" if ends_higher else "no"
    ours = " to ".join(f"{x:.3f}" for x in np.median(totals, axis=0)[[0, -1]])
    add("Conclusion: identical clients", f"total, from {labels[0]} to {labels[-1]}", "increases", ours, verdict)
    return made


def is_below(row: Findings, bound: str) -> bool:
    """Return whether a mean is below a bound by more than two standard errors and rounding."""
    return bool(row["mean"] + 2 * row["error"] < row[bound] * (1 - 1e-9))


EXPERIMENT = Experiment(
    name="theory",
    title="Propositions 1 and 3, Hoeffding's bound",
    about="What the paper proves, evaluated on Adult. Three statements are not right as printed; "
    "`experiments/theory.py` derives the right ones.\n\n"
    "- Hoeffding's bound has ε where ε² belongs. yes: errors of the paper's K are within its ε as often as it says.\n"
    "- Proposition 1 bounds the gradient by the smoothness L in place of the Lipschitz constant G, and the sum of 1/t "
    "by ln T, which is smaller. yes: no rank is above the paper's ⌈L ln T / ε⌉, and no step above the proof's L.\n"
    "- Proposition 3 doubles s₁ - s₂: right is μ (1 - rho) / (2 (1 + rho)) ‖θ*‖², which the paper's bound exceeds for "
    "rho < 1/3. It also replaces E g(θ) by g(E θ), which is harmless for a quadratic loss only. Two clients have the "
    "same columns, client 2 takes each step with probability rho; with whitened columns L = μ. no: the mean is below "
    "the paper's bound by more than two standard errors.\n"
    "- The closing remark: client 1 joins again under other names, or as two clients with half of its columns each. "
    "yes: the total rises with every name, for every seed; in trend: from the first to the last.",
    settings_type=TheorySettings,
    parts=parts,
    tables=tables,
    claims=claims,
)
