"""What the scores of a head can be in any coalition, proven for the layers of `head_layers`. Needs torch.

Whoever moves, and by whatever part of the change, each number between two layers stays in an interval, and so does its
derivative along the change of one client. Both are carried from layer to layer, for each sample: exactly through a
linear layer at the beginning, where a coalition adds the changes of its members, and by interval arithmetic from there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812  # its usual name

from verfedsv.head_layers import TENSORS, flattened

Tensors = Mapping[str, Tensor]


class Interval(NamedTuple):
    """Numbers between `low` and `high`."""

    low: Tensor
    high: Tensor

    def __mul__(self, other: Interval) -> Interval:  # type: ignore[override]  # not of a tuple
        """Return all products."""
        ends = [a * b for a in self for b in other]
        return Interval(
            torch.minimum(torch.minimum(*ends[:2]), torch.minimum(*ends[2:])),
            torch.maximum(torch.maximum(*ends[:2]), torch.maximum(*ends[2:])),
        )

    def linear(self, weight: Tensor, bias: Tensor | None = None) -> Interval:
        """Return all results of a linear layer."""
        centre = F.linear((self.high + self.low) / 2, weight, bias)
        radius = F.linear((self.high - self.low) / 2, weight.abs())
        return Interval(centre - radius, centre + radius)

    def scaled(self, scale: Tensor, shift: Tensor | float = 0.0) -> Interval:
        """Return all numbers times `scale` plus `shift`."""
        ends = self.low * scale + shift, self.high * scale + shift
        return Interval(torch.minimum(*ends), torch.maximum(*ends))


class Ranges(NamedTuple):
    """What numbers may be, (samples, numbers), and their derivatives by the move of each client, with it in front."""

    values: Interval
    slopes: Interval


def ranges_of_scores(
    layers: list[Any], tensors: Tensors, previous: Tensor, change: Tensor, columns: Tensor, n_clients: int
) -> Ranges:
    """Return the ranges of the scores of some samples under one state of a head.

    `previous` and `change` are (samples, width); `columns`, (width,), has the client of each column. What overflows is
    infinite or NaN.
    """
    rest, own = flattened(layers), [columns == client for client in range(n_clients)]
    if rest and rest[0].kind == "Linear":
        first, *rest = rest
        weight = tensors[f"{first.name}weight"]
        start = F.linear(previous, weight, tensors.get(f"{first.name}bias"))
        moves = [change[:, mine] @ weight[:, mine].T for mine in own]
    else:
        start, moves = previous, [change * mine for mine in own]
    low, high = start.clone(), start.clone()
    for move in moves:
        low += move.clamp(max=0)
        high += move.clamp(min=0)
    slopes = torch.stack(moves)
    found = Ranges(Interval(low, high), Interval(slopes, slopes))
    for layer in rest:
        own_tensors = {name: tensors[layer.name + name] for name in TENSORS if layer.name + name in tensors}
        found = _RULES[layer.kind](found, layer.arguments, own_tensors)
    return found


def has_ranges(layers: list[Any]) -> bool:
    """Return whether there are rules for all these layers."""
    return all(layer.kind in _RULES for layer in flattened(layers))


Rule = Callable[[Ranges, list[Any], Tensors], Ranges]


def _linear(given: Ranges, _: list[Any], own: Tensors) -> Ranges:
    return Ranges(given.values.linear(own["weight"], own.get("bias")), given.slopes.linear(own["weight"]))


def _batch_norm(given: Ranges, arguments: list[Any], own: Tensors) -> Ranges:
    """Scale each number by its running variance: in evaluation mode, the batch does not matter."""
    scale = torch.rsqrt(own["running_var"] + arguments[1]) * own.get("weight", torch.ones(()))
    shift = own.get("bias", torch.zeros(())) - own["running_mean"] * scale
    return Ranges(given.values.scaled(scale, shift), given.slopes.scaled(scale))


def _layer_norm(given: Ranges, arguments: list[Any], own: Tensors) -> Ranges:
    """Divide the distances from the mean by their root mean square s, which stays between `least` and `most`.

    No result exceeds sqrt(width - 1), and the matrix of derivatives has a norm of at most 1/s.
    """
    (low, high), width, eps = given.values, *arguments[:2]
    centre, radius = (low + high) / 2, _norm((high - low) / 2)
    spread = _norm(centre - centre.mean(dim=1, keepdim=True))
    least = torch.sqrt((spread - radius).clamp(min=0) ** 2 / width + eps)
    most = torch.sqrt((spread + radius) ** 2 / width + eps)
    low, high = low - high.mean(dim=1, keepdim=True), high - low.mean(dim=1, keepdim=True)
    limit = math.sqrt(max(width - 1, 0))
    low = torch.where(low < 0, low / least, low / most).clamp(-limit, limit)
    high = torch.where(high < 0, high / most, high / least).clamp(-limit, limit)
    slope = (_norm(torch.maximum(-given.slopes.low, given.slopes.high)) / least).expand(given.slopes.low.shape)
    scale, shift = own.get("weight", torch.ones(())), own.get("bias", torch.zeros(()))
    return Ranges(Interval(low, high).scaled(scale, shift), Interval(-slope, slope).scaled(scale))


def _norm(numbers: Tensor) -> Tensor:
    result: Tensor = torch.linalg.vector_norm(numbers, dim=-1, keepdim=True)
    return result


def _activation(values: Callable[..., Interval], slopes: Callable[..., Interval]) -> Rule:
    """Return the rule of a function of single numbers, by what it and its derivative can be in an interval."""

    def rule(given: Ranges, arguments: list[Any], _: Tensors) -> Ranges:
        return Ranges(values(given.values, *arguments), slopes(given.values, *arguments) * given.slopes)

    return rule


def _rising(function: Callable[..., Tensor]) -> Callable[..., Interval]:
    return lambda x, *arguments: Interval(function(x.low, *arguments), function(x.high, *arguments))


def _symmetric_peak(function: Callable[[Tensor], Tensor]) -> Callable[..., Interval]:
    """Return what a function takes that falls with the distance from zero."""

    def of(x: Interval) -> Interval:
        far = torch.maximum(x.low.abs(), x.high.abs())
        near = torch.where((x.low < 0) & (x.high > 0), 0.0, torch.minimum(x.low.abs(), x.high.abs()))
        return Interval(function(far), function(near))

    return of


def _two_pieces(left: Callable[..., Interval]) -> Callable[..., Interval]:
    """Return the derivatives of a function that has those of `left` below zero, and 1 above."""

    def of(x: Interval, *arguments: float) -> Interval:
        below, one = left(x, *arguments), torch.ones(())
        low = torch.where(x.low >= 0, one, torch.where(x.high <= 0, below.low, below.low.clamp(max=1)))
        high = torch.where(x.low >= 0, one, torch.where(x.high <= 0, below.high, below.high.clamp(min=1)))
        return Interval(low, high)

    return of


class _Extreme(NamedTuple):
    """Where a function has a minimum or maximum, and a number that it does not pass there."""

    after: float
    before: float
    limit: float


def _waving(function: Callable[..., Tensor], dip: _Extreme, peak: _Extreme | None = None) -> Callable[..., Interval]:
    """Return what a function takes that only turns at a minimum, and perhaps at a maximum."""

    def of(x: Interval, *arguments: Any) -> Interval:
        ends = function(x.low, *arguments), function(x.high, *arguments)
        low, high = torch.minimum(*ends), torch.maximum(*ends)
        low = torch.where((x.low < dip.before) & (x.high > dip.after), low.clamp(max=dip.limit), low)
        if peak is not None:
            high = torch.where((x.low < peak.before) & (x.high > peak.after), high.clamp(min=peak.limit), high)
        return Interval(low, high)

    return of


def _gelu(x: Tensor, approximate: str) -> Tensor:
    return F.gelu(x, approximate=approximate)


def _slope_of_gelu(x: Tensor, approximate: str) -> Tensor:
    if approximate == "none":
        exact: Tensor = torch.special.ndtr(x) + x * torch.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
        return exact
    factor, cubic = math.sqrt(2 / math.pi), 0.044715
    t = torch.tanh(factor * (x + cubic * x**3))
    slope: Tensor = (1 + t) / 2 + x * (1 - t**2) * factor * (1 + 3 * cubic * x**2) / 2
    return slope


def _slope_of_silu(x: Tensor) -> Tensor:
    s = torch.sigmoid(x)
    slope: Tensor = s * (1 + x * (1 - s))
    return slope


_RULES: Mapping[str, Rule] = {
    "Linear": _linear,
    "BatchNorm1d": _batch_norm,
    "LayerNorm": _layer_norm,
    "ReLU": _activation(_rising(torch.relu), _two_pieces(lambda x: Interval(x.low * 0, x.low * 0))),
    "Tanh": _activation(_rising(torch.tanh), _symmetric_peak(lambda x: torch.cosh(x).pow(-2))),
    "Sigmoid": _activation(_rising(torch.sigmoid), _symmetric_peak(lambda x: torch.cosh(x / 2).pow(-2) / 4)),
    "LeakyReLU": _activation(
        _rising(F.leaky_relu), _two_pieces(lambda x, slope: Interval(x.low * 0 + slope, x.low * 0 + slope))
    ),
    "ELU": _activation(
        _rising(F.elu),
        _two_pieces(lambda x, alpha: Interval(alpha * x.low.clamp(max=0).exp(), alpha * x.high.clamp(max=0).exp())),
    ),
    # With and without the approximation by tanh; extremes found on a grid of 1e-5, limits rounded outwards.
    "GELU": _activation(
        _waving(_gelu, _Extreme(-0.7526, -0.7517, -0.1701)),
        _waving(_slope_of_gelu, _Extreme(-1.4187, -1.4141, -0.1290), _Extreme(1.4141, 1.4187, 1.1290)),
    ),
    "SiLU": _activation(
        _waving(F.silu, _Extreme(-1.2786, -1.2783, -0.2785)),
        _waving(_slope_of_silu, _Extreme(-2.3995, -2.3992, -0.0999), _Extreme(2.3992, 2.3995, 1.0999)),
    ),
}
"""Without Softplus: torch's has a jump, where it begins to return its argument."""
