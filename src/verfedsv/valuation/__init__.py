"""Valuation: what each client contributed to a recorded training."""

from verfedsv.valuation.result import Valuation
from verfedsv.valuation.values import value

__all__ = ["Valuation", "value"]
