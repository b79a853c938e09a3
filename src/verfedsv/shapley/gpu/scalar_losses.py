"""Gradient, third derivative and decrease of the scalar losses, for a thread."""

from __future__ import annotations

from typing import Any

from verfedsv.gpu.lanes import device, lane
from verfedsv.loss_loops import expand_logistic


@device
def _expand_squared(base: float, step: float, label: float) -> tuple[float, float, float]:
    gradient = base + 0.5 * step - label
    return gradient, 0.0, -step * gradient


EXPANSIONS: dict[str, Any] = {"logistic": lane(expand_logistic), "squared": _expand_squared}
"""By loss: from an embedding before the round, its change and the label. See `expand_logistic`."""
