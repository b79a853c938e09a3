"""Valuing one round: its game, and the estimators of the clients' values in it."""

from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.result import ShapleyResult
from verfedsv.shapley.semivalues import Beta
from verfedsv.shapley.values import shapley_values

__all__ = ["Beta", "RoundGame", "ShapleyResult", "shapley_values"]
