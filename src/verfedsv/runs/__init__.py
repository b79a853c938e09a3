"""The folder of a run, and runs from a configuration: data, training, transcript, valuation."""

from verfedsv.runs.config import Config
from verfedsv.runs.example import EXAMPLE
from verfedsv.runs.execute import Run, Update
from verfedsv.runs.folder import RunFolder
from verfedsv.runs.predicting import PredictedRows, predict

__all__ = ["EXAMPLE", "Config", "PredictedRows", "Run", "RunFolder", "Update", "predict"]
