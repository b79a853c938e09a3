"""The paper's experiments, for `verfedsv reproduce`: one file per table or figure, with its settings in TOML."""

from typing import Any

from experiments import (
    ablation,
    baselines,
    coverage,
    efficiency,
    frequency,
    guarantees,
    metadata,
    random_features,
    rank,
    shap,
    similar_features,
    splits,
    theory,
)
from experiments.experiment import Claim, Experiment, Table
from experiments.page import claims_table, write_page
from experiments.results import ResultFile

EXPERIMENTS: dict[str, Experiment[Any]] = {
    experiment.name: experiment
    for experiment in (
        metadata.EXPERIMENT,
        rank.EXPERIMENT,
        similar_features.EXPERIMENT,
        random_features.SYNCHRONOUS,
        frequency.EXPERIMENT,
        random_features.ASYNCHRONOUS,
        efficiency.EXPERIMENT,
        shap.EXPERIMENT,
        ablation.EXPERIMENT,
        splits.EXPERIMENT,
        guarantees.EXPERIMENT,
        theory.EXPERIMENT,
        coverage.EXPERIMENT,
        baselines.EXPERIMENT,
    )
}
"""In the order of the paper, then what goes beyond it."""

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "ResultFile", "Table", "claims_table", "write_page"]
