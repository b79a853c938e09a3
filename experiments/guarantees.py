"""The fairness theorem and Proposition 2 on real trainings: how far each is from holding exactly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
from scipy.sparse import csr_array

from experiments.experiment import Claim, Experiment, Findings, Results, Table
from experiments.lab import Settings, Trained, split, train_asynchronously, train_synchronously
from verfedsv import Recorder, Transcript, Valuation, value
from verfedsv.data import ClientData, VerticalData, noisy_copy
from verfedsv.losses import Array, Floats, get_loss
from verfedsv.transcript import Stamp, Upload

MODES = ("synchronous", "asynchronous")
ROUNDING = 1e-10
"""Limit of residuals, relative to the largest value, that come from rounding alone."""


def parts(name: str, settings: Settings) -> Mapping[str, Callable[[], Findings]]:
    """Return the residuals of a synchronous and of an asynchronous training, and the error of completion."""

    @cache
    def synchronous() -> Trained:
        return train_synchronously(_data(name, settings), settings, with_truth=True)

    def measure_synchronous() -> Findings:
        trained = synchronous()
        result = trained.value(method="exact")
        return _residuals(trained, result, _drop_of_completed(trained, result))

    def measure_asynchronous() -> Findings:
        trained = train_asynchronously(_data(name, settings), settings)
        found = _residuals(trained, trained.value(method="exact"), _drop_of_table(trained))
        return {**found, "residuals": {**found["residuals"], "symmetry": _asymmetry_of_twins(trained)}}

    def measure_completion() -> Findings:
        trained = synchronous()
        result, truth = trained.value(), trained.truth
        largest = float(np.abs(truth).max())
        return {
            "true": float(np.abs(result.values - truth).max() / largest),
            "estimated": float(result.errors.max() / largest),
            "within": int((np.abs(result.values - truth) <= result.errors).sum()),
            "clients": len(truth),
            "proposition": float((result.guarantee or np.nan) / largest),
        }

    return {
        "synchronous": measure_synchronous,
        "asynchronous": measure_asynchronous,
        "completion": measure_completion,
    }


def _data(name: str, settings: Settings) -> VerticalData:
    """Return the data with an exact copy of client 1 and a client of zeros."""
    data = split(name, settings)
    copy = noisy_copy(data.clients[0], "copy", 0.0, np.random.default_rng())
    zeros: Any = csr_array((len(data.labels), 2))
    return data.with_clients(copy, ClientData("zeros", zeros))


def _residuals(trained: Trained, result: Valuation, drop: float) -> Findings:
    """Return how far a valuation is from each requirement, relative to its largest value."""
    largest = float(np.abs(result.values).max())
    n_samples = trained.evaluation.embeddings.shape[1]
    halves = [np.arange(0, n_samples, 2), np.arange(1, n_samples, 2)]
    # The utility is a mean over samples, so it is the weighted sum of those of two halves.
    of_halves = [len(rows) / n_samples * trained.value(rows=rows, method="exact").values for rows in halves]
    middle = result.n_rounds // 2
    periods = result.per_round[:middle].sum(axis=0), result.per_round[middle:].sum(axis=0)
    found = {
        "balance": abs(result.values.sum() + result.server_value - drop),
        "symmetry": abs(result.values[0] - result.values[-2]),
        "zero element": abs(result.values[-1]),
        "additivity": np.abs(sum(of_halves) - result.values).max(),
        "periodic additivity": np.abs(sum(periods) / result.n_rounds - result.values).max(),
    }
    return {"residuals": {name: float(x / largest) for name, x in found.items()}, "method": result.method}


def _asymmetry_of_twins(trained: Trained) -> float:
    """Return how differently two clients are valued that upload the same at the same times.

    A copy of a client draws batches of its own, and is another player; so what was recorded of client 1 is recorded
    again, each time once more in the name of a twin.
    """
    transcript = Transcript.open(trained.path)
    first, *others = transcript.clients
    names = [first, "twin", *others[:-2]]
    loss = transcript.description.loss
    n_classes = transcript.description.n_classes if loss == "softmax" else None
    with Recorder(None, transcript.labels, names, loss, n_classes=n_classes) as recorder:
        for record in transcript:
            if isinstance(record, Stamp):
                recorder.stamp(record.offset, time=record.time)
            elif isinstance(record, Upload) and record.client in names:
                for name in names[: 2 if record.client == first else 0] or [record.client]:
                    recorder.update(name, record.samples, record.embeddings, time=record.time)
        result = value(recorder, method="exact")
    return float(abs(result.values[0] - result.values[1]) / np.abs(result.values).max())


def _drop_of_completed(trained: Trained, result: Valuation) -> float:
    """Return the mean decrease of the loss in a round, from the factors of the completion, added up by hand."""
    known = result.factorisation
    assert known is not None  # noqa: S101  # mini-batches are completed
    labels = Transcript.open(trained.path).labels
    loss = get_loss(result.loss)
    end = np.sum([completion.embeddings(-1) for completion in known.completions.values()], axis=0)
    targets = loss.encode(labels, end.shape[1])
    before, after = (loss.value(x, targets).mean() for x in (np.zeros_like(end), end))
    return float(before - after) / result.n_rounds


def _drop_of_table(trained: Trained) -> float:
    """Return the mean decrease of the loss between time stamps, from what the server had, kept by hand."""
    transcript = Transcript.open(trained.path)
    loss = get_loss(transcript.description.loss)
    tables: dict[str, Array] = {}
    before: Floats | None = None
    total, n_stamps = 0.0, 0
    n_classes = trained.evaluation.embeddings.shape[2]
    targets = loss.encode(transcript.labels, n_classes)
    for record in transcript:
        if isinstance(record, Upload):
            table = tables.setdefault(record.client, np.zeros((len(transcript.labels), n_classes)))
            table[record.samples] = record.embeddings.reshape(-1, n_classes)
            continue
        own = record.offset if isinstance(record, Stamp) and record.offset is not None else 0.0
        after = sum(tables.values(), np.zeros((len(transcript.labels), n_classes))) + own
        start = np.zeros_like(after) if before is None else before
        total += float((loss.value(start, targets) - loss.value(after, targets)).mean())
        before, n_stamps = after, n_stamps + 1
    return total / n_stamps


def tables(results: Results) -> list[Table]:
    """Return the residuals, and errors of completion beside their bounds."""
    columns = {
        f"{name.capitalize()}, {mode}": measured[mode]["residuals"]
        for name, measured in results.items()
        for mode in MODES
    }
    kinds = next(iter(columns.values()))
    residuals = [[kind, *(f"{of_column[kind]:.0e}" for of_column in columns.values())] for kind in kinds]
    errors = []
    for name, measured in results.items():
        part = measured["completion"]
        found = ["-" if part[kind] is None else f"{part[kind]:.2g}" for kind in ("true", "estimated", "proposition")]
        errors.append([name.capitalize(), *found[:2], f"{part['within']} of {part['clients']}", found[2]])
    return [
        Table(["residual / largest value", *columns], residuals, "Fairness (Theorem 1):"),
        Table(
            ["in multiples of the largest value", "true error", "our estimate", "clients within it", "Proposition 2"],
            errors,
            "Completion:",
        ),
    ]


def claims(results: Results) -> list[Claim]:
    """Return whether residuals are rounding errors, and whether errors are below their bounds."""
    made = []
    for name, measured in results.items():
        for mode in MODES:
            worst = max(measured[mode]["residuals"].values())
            made.append(
                Claim(
                    f"{name.capitalize()}, {mode}: largest residual",
                    f"{worst:.0e}",
                    f"at most {ROUNDING:.0e}",
                    worst <= ROUNDING,
                )
            )
        part = measured["completion"]
        what, ours = f"{name.capitalize()}: true error against Proposition 2", f"{part['true']:.2g}"
        made.append(Claim(what, ours, f"at most {part['proposition']:.2g}", part["true"] <= part["proposition"]))
    return made


EXPERIMENT = Experiment(
    name="guarantees",
    title="Fairness and approximation (Theorem 1, Proposition 2)",
    about="On real trainings, with an exact copy of client 1 and a client of zeros. Balance: values sum to the mean "
    "decrease of the loss, computed separately from the completed embeddings, or from the server's table. Additivity: "
    "the values on even and on odd samples sum to those on all. Periodic additivity: the same for both halves of the "
    "training.",
    settings_type=Settings,
    parts=parts,
    tables=tables,
    claims=claims,
)
