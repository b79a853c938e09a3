"""The paper's experiments: `verfedsv reproduce`. One file per table or figure, its settings in TOML beside it."""

from typing import Any

from experiments import (
    ablation,
    baselines,
    efficiency,
    frequency,
    guarantees,
    random_features,
    random_features_async,
    rank,
    shap,
    similar_features,
)
from experiments.experiment import Claim, Experiment, Table
from experiments.page import claims_table, write_page
from experiments.results import ResultFile

EXPERIMENTS: dict[str, Experiment[Any]] = {
    module.EXPERIMENT.name: module.EXPERIMENT
    for module in (
        rank,
        similar_features,
        random_features,
        frequency,
        random_features_async,
        efficiency,
        shap,
        ablation,
        guarantees,
        baselines,
    )
}
"""In the order of the paper."""

__all__ = ["EXPERIMENTS", "Claim", "Experiment", "ResultFile", "Table", "claims_table", "write_page"]
