"""Table 5: clients ranked by VerFedSV, and by SHAP on the joined model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import issparse

from experiments.experiment import Claim, Experiment, Findings, Results, Table
from experiments.lab import Settings, Trained, split, train_asynchronously, train_synchronously
from verfedsv.data import VerticalData
from verfedsv.data import prepare as prepare_columns
from verfedsv.losses import Floats

PAPER = {"adult": (1.0, 1.0, 1.0), "web": (0.73, 0.69, 0.80), "covtype": (0.94, 0.89, 0.94), "rcv1": (0.65, 0.63, 0.80)}
"""Kendall's tau: SHAP and synchronous, SHAP and asynchronous, synchronous and asynchronous."""

PAIRS = (("shap", "synchronous"), ("shap", "asynchronous"), ("synchronous", "asynchronous"))


def parts(name: str, settings: Settings) -> Mapping[str, Callable[[], Findings]]:
    """Return one part: both trainings, and SHAP on the model of the synchronous one."""

    def measure() -> Findings:
        data = split(name, settings)
        synchronous = train_synchronously(data, settings)
        asynchronous = train_asynchronously(data, settings)
        scores = {
            "shap": shap_scores(data, settings, synchronous),
            "synchronous": synchronous.value().shares,
            "asynchronous": asynchronous.value().shares,
        }
        accuracies = {"synchronous": synchronous.accuracy, "asynchronous": asynchronous.accuracy}
        return {
            "scores": {kind: values.tolist() for kind, values in scores.items()},
            "tau": {f"{a}, {b}": kendalls_tau(scores[a], scores[b]) for a, b in PAIRS},
            "accuracy": accuracies,
        }

    return {"all": measure}


def kendalls_tau(first: ArrayLike, second: ArrayLike) -> float:
    """Return Kendall's rank correlation."""
    # Imported late: it takes half a second.
    from scipy.stats import kendalltau

    return float(kendalltau(np.asarray(first, float), np.asarray(second, float)).statistic)


def shap_scores(data: VerticalData, settings: Settings, trained: Trained) -> Floats:
    """Return for each client the sum of the mean absolute SHAP values of its features, over all classes.

    Means are over training samples. The joined model is linear, so its SHAP values are exact.
    """
    import shap

    features = [prepare_columns(client, settings.scale, ~data.is_test) for client in data.clients]
    dense = [part.toarray() if issparse(part) else part for part in features]
    joined: Any = np.hstack(dense)[~data.is_test]
    weights, own = trained.weights, trained.evaluation.intercept
    stacked = np.vstack(weights)
    intercept = np.zeros(stacked.shape[1]) if own is None else own
    of_features = np.zeros(len(stacked))
    # All samples; by default, shap would use a hundred.
    background = shap.maskers.Independent(joined, max_samples=len(joined))
    for of_class, constant in zip(stacked.T, intercept, strict=True):
        explainer = shap.LinearExplainer((of_class, constant), background)
        of_features += np.abs(explainer.shap_values(joined)).mean(axis=0)
    ends = np.cumsum([len(w) for w in weights])[:-1]
    return np.array([part.sum() for part in np.split(of_features, ends)])


def tables(results: Results) -> list[Table]:
    """Return tau, ours beside the paper's."""
    rows = []
    for number, (a, b) in enumerate(PAIRS):
        row = [f"{a.replace('shap', 'SHAP')} and {b}"]
        for name, measured in results.items():
            row.append(f"{measured['all']['tau'][f'{a}, {b}']:.2f}")
            row.append(f"{PAPER[name][number]:.2f}" if name in PAPER else "-")
        rows.append(row)
    header = ["Kendall's tau", *(cell for name in results for cell in (f"{name.capitalize()}, ours", "the paper's"))]
    return [Table(header, rows)]


def claims(results: Results) -> list[Claim]:
    """Return tau against the paper's."""
    made = []
    for name, measured in results.items():
        for number, (a, b) in enumerate(PAIRS):
            if name in PAPER:
                # The paper rounds to two digits.
                tau, wanted = measured["all"]["tau"][f"{a}, {b}"], PAPER[name][number]
                what = f"{name.capitalize()}: {a.replace('shap', 'SHAP')} and {b}"
                made.append(Claim(what, f"{tau:.2f}", f"at least {wanted:.2f}", round(tau, 2) >= wanted))
    return made


EXPERIMENT = Experiment(
    name="shap",
    title="Agreement with SHAP (Table 5)",
    about="Kendall's rank correlation between clients by VerFedSV and by SHAP (the `shap` package, on the joined "
    "linear model of the synchronous training; mean absolute values of a client's features, summed).",
    settings_type=Settings,
    parts=parts,
    tables=tables,
    claims=claims,
)
