"""Whole runs from a configuration: data, training, transcript, valuation, in one folder."""

from verfedsv.runs.config import EXAMPLE, Config, read_config
from verfedsv.runs.execute import Run, Update

__all__ = ["EXAMPLE", "Config", "Run", "Update", "read_config"]
