"""Valuing one round: its game, and the estimators of the clients' values in it."""

from verfedsv.shapley.estimators import Method
from verfedsv.shapley.game import RoundGame
from verfedsv.shapley.plan import Progress
from verfedsv.shapley.result import ShapleyResult
from verfedsv.shapley.semivalues import Beta, Semivalue
from verfedsv.shapley.values import shapley_values

__all__ = ["Beta", "Method", "Progress", "RoundGame", "Semivalue", "ShapleyResult", "shapley_values"]
