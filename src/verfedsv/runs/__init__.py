"""Whole runs from a configuration: data, training, transcript, valuation, in one folder."""

from verfedsv.runs.config import Config
from verfedsv.runs.example import EXAMPLE
from verfedsv.runs.execute import Run, Update
from verfedsv.runs.reading import read_config

__all__ = ["EXAMPLE", "Config", "Run", "Update", "read_config"]
