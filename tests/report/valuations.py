"""Valuations with made-up numbers, and the summaries of them: for tests of what is said and shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from verfedsv import CompletionReport, Valuation
from verfedsv.report.curves import curve
from verfedsv.report.metrics import METRICS
from verfedsv.report.summary import Setting, UploadCounts, build
from verfedsv.settings import ValuationSettings
from verfedsv.valuation.verdict import RunFacts

NAMES = ("bank", "telco", "hospital", "shop", "insurer", "energy", "transit", "post", "school", "clinic")


def make_valuation(
    values, errors=0.0, *, n_rounds=4, clients=None, completed=False, server=0.0, **changes
) -> Valuation:
    """Return a valuation with those values, (clients,), the same in all rounds up to noise that cancels.

    `server` is the server's value. The loss begins at log 2 and falls by what all are credited with.
    """
    values = np.asarray(values, dtype=float)
    n_clients = len(values)
    errors = np.broadcast_to(np.asarray(errors, dtype=float), values.shape).copy()
    # Most of what there is to learn is learnt early.
    pace = np.exp(-np.arange(n_rounds) * 5 / n_rounds)
    noise = np.random.default_rng(0).normal(size=(n_rounds, n_clients)) * np.abs(values) * 0.4
    per_round = values * (pace / pace.mean())[:, None] + noise - noise.mean(axis=0)
    report = CompletionReport(3, 0.1, 1e-3, 1e-2, 2e-3, 2e-2, 0.5, 1e-3, 0.5, 400, 20, 0, 15, (5, 3))
    fields = {
        "clients": tuple(clients or names(n_clients)),
        "values": values,
        "estimator_errors": np.zeros(n_clients) if completed else errors,
        "completion_errors": errors if completed else np.zeros(n_clients),
        "error_kind": "certified",
        "per_round": per_round,
        "per_round_errors": np.zeros((n_rounds, n_clients)),
        "server_value": server,
        "server_error": 0.0,
        "per_round_server": np.full(n_rounds, server),
        "per_round_server_errors": np.zeros(n_rounds),
        "losses": np.log(2) - np.concatenate([[0.0], np.cumsum(per_round.sum(axis=1) + server)]),
        "methods": ("closed-form",),
        "mode": "synchronous",
        "loss": "logistic",
        "n_rounds": n_rounds,
        "n_samples": 100,
        "n_unseen": 0,
        "tolerance_met": True,
        "completion": (report,) * n_clients if completed else None,
        "guarantee": 12.0 if completed else None,
        "head": "ab" * 32,
        "settings": ValuationSettings(),
        "seconds": {"total": 1.0},
    }
    return Valuation(**fields | changes)


def names(n_clients):
    """Return names for so many clients."""
    return [NAMES[m % 10] + (f" {m // 10 + 1}" if n_clients > 10 else "") for m in range(n_clients)]


def make_summary(
    values,
    errors=0.0,
    *,
    metrics=(),
    settings=(),
    settlement=None,
    run="credit",
    n_planned=None,
    faults=(),
    **changes,
):
    """Return the summary of a valuation with those values."""
    valuation = make_valuation(values, errors, **changes)
    uploads = {name: UploadCounts(4, 400, 4800) for name in valuation.clients}
    given = tuple(Setting(*each) for each in settings)
    measured = {name: [line.get(name, np.nan) for line in metrics] for name in METRICS}
    curves = {name: curve(column, rounds=[line["n_rounds"] for line in metrics]) for name, column in measured.items()}
    curves = {name: found for name, found in curves.items() if found.rounds}
    return replace(
        build(valuation, RunFacts(n_planned, faults=faults), uploads, curves),
        run=run,
        recorded="2025-01-01T00:00:00+00:00",
        n_recorded=100,
        settings=given,
        settlement=settlement,
    )


def make_large_summary(n_clients, n_rounds=600):
    """Return the summary of a training like many: shares that fall off, small errors, one client that does harm."""
    values = 1e-3 * np.exp(-np.arange(n_clients) / (n_clients / 4))
    values[-1] *= -3
    metrics = [
        {
            "n_rounds": t,
            "train_loss": 0.3 + 0.4 * np.exp(-t / 100),
            "test_loss": 0.32 + 0.38 * np.exp(-t / 100),
            "train_accuracy": 0.86 - 0.2 * np.exp(-t / 80),
            "test_accuracy": 0.85 - 0.2 * np.exp(-t / 80),
        }
        for t in range(20, n_rounds + 1, 20)
    ]
    settings = [("data", "name", "adult"), ("training", "batch size", "2837"), ("training", "rate", "0.2")]
    errors = 0.03 * np.abs(values) + values.max() * 1e-3
    return make_summary(values, errors, n_rounds=n_rounds, completed=True, metrics=metrics, settings=settings)
