"""The layers of common heads as plain data, which anybody can check, and build a module from, without running code.

A layer is a list: its kind, then its arguments in the order of `LAYERS`. A sequence of layers is "Sequential" and a
list of pairs, name and layer: `["Sequential", [["0", ["Linear", 8, 16, true]], ["1", ["Tanh"]]]]`.
"""

from __future__ import annotations

import hashlib
import json
import numbers
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from verfedsv.arguments import as_whole
from verfedsv.errors import InputError

if TYPE_CHECKING:
    import torch

LAYERS: Mapping[str, Mapping[str, type[Any]]] = {
    "Linear": {"in_features": int, "out_features": int, "bias": bool},
    "ReLU": {},
    "Tanh": {},
    "Sigmoid": {},
    "SiLU": {},
    "GELU": {"approximate": str},
    "ELU": {"alpha": float},
    "LeakyReLU": {"negative_slope": float},
    "Softplus": {"beta": float, "threshold": float},
    "Identity": {},
    "Dropout": {"p": float},
    "LayerNorm": {"normalized_shape": int, "eps": float, "elementwise_affine": bool},
    "BatchNorm1d": {"num_features": int, "eps": float, "affine": bool},
}
"""The arguments of torch's layers that are allowed, with their types."""

Activation = Literal["gelu", "relu", "silu", "tanh"]

_ACTIVATIONS = {"gelu": ["GELU", "none"], "relu": ["ReLU"], "silu": ["SiLU"], "tanh": ["Tanh"]}
_SEQUENTIAL = "Sequential"
_MOST_LAYERS, _DEEPEST, _LARGEST = 256, 8, 2**24
"""Of a head: how many layers, sequences included, how many sequences within each other, and the largest argument."""


def mlp_layers(width: int, hidden: Sequence[int], n_classes: int, activation: Activation = "gelu") -> list[Any]:
    """Return a network with hidden layers of these sizes, and this activation between layers."""
    if activation not in _ACTIVATIONS:
        raise InputError(f"activation must be one of {', '.join(get_args(Activation))}; received {activation!r}")
    sizes = [width, *(as_whole("hidden", size, at_least=1) for size in hidden), n_classes]
    layers: list[Any] = []
    for inputs, outputs in pairwise(sizes):
        layers += [["Linear", inputs, outputs, True], _ACTIVATIONS[activation]]
    return [_SEQUENTIAL, [[str(number), layer] for number, layer in enumerate(layers[:-1])]]


def describe_layers(layers: list[Any]) -> str:
    """Return layers in words with all their arguments, in at most 300 characters; what is cut is held by a hash.

    >>> describe_layers(mlp_layers(6, [8], 1))
    'Linear(6, 8, bias=True), GELU(approximate=none), Linear(8, 1, bias=True)'
    """
    text = ", ".join(_describe(layers))
    if len(text) <= _LONGEST_TEXT:
        return text
    return f"{text[:_LONGEST_TEXT]}… (SHA-256 of the layers: {digest_of_layers(layers)})"


def _describe(layer: list[Any]) -> Iterator[str]:
    kind, *arguments = layer
    if kind == _SEQUENTIAL:
        for _, inner in arguments[0]:
            yield from _describe(inner)
        return
    named = zip(LAYERS[kind], arguments, strict=True)
    parts = [str(value) if type(value) is int else f"{name}={value}" for name, value in named]
    yield f"{kind}({', '.join(parts)})" if parts else kind


_LONGEST_TEXT = 300


def most_numbers(layer: list[Any]) -> int:
    """Return the largest number of inputs and outputs of a layer, together: what it computes with for each sample."""
    kind, *arguments = layer
    if kind == _SEQUENTIAL:
        return max((most_numbers(inner) for _, inner in arguments[0]), default=0)
    return arguments[0] + arguments[1] if kind == "Linear" else 0  # no other layer changes how many there are


def digest_of(head: Any) -> str:
    """Return the SHA-256 of the text that describes a head: its `repr`, or its class if that is an address."""
    text = repr(head)
    if text == object.__repr__(head):
        text = f"{type(head).__module__}.{type(head).__qualname__}"
    return hashlib.sha256(text.encode()).hexdigest()


def digest_of_layers(layers: list[Any]) -> str:
    """Return the SHA-256 of layers as JSON."""
    return hashlib.sha256(json.dumps(layers).encode()).hexdigest()


TENSORS = "weight", "bias", "running_mean", "running_var"
"""What a layer may have of parameters and buffers that matter in evaluation mode."""


class Layer(NamedTuple):
    """A layer that is no sequence; the names of its parameters begin with `name`."""

    name: str
    kind: str
    arguments: list[Any]


_PASSED_ON = "Identity", "Dropout"
"""Layers that change nothing in evaluation mode."""


def flattened(layer: list[Any], prefix: str = "") -> list[Layer]:
    """Return the layers that change anything in evaluation mode, in their order."""
    kind, *arguments = layer
    if kind == _SEQUENTIAL:
        return [each for name, inner in arguments[0] for each in flattened(inner, f"{prefix}{name}.")]
    return [] if kind in _PASSED_ON else [Layer(prefix, kind, arguments)]


def to_layers(module: torch.nn.Module) -> list[Any] | None:
    """Return the layers of a module, None if these do not describe it: then only its own code does."""
    layers = _to_layers(module)
    try:
        check_layers(layers)
        built = from_layers(layers or [], device="meta")
    except ValueError:
        return None  # such as a norm over several axes, or more layers than are allowed
    shapes, own = ({name: value.shape for name, value in each.state_dict().items()} for each in (built, module))
    return layers if shapes == own else None


def _to_layers(module: torch.nn.Module) -> list[Any] | None:
    import torch

    kind = type(module).__name__
    if module._forward_hooks or module._forward_pre_hooks or "forward" in vars(module):
        return None
    if type(module) is torch.nn.Sequential:
        # Not `children`, which leaves out a layer that is there twice.
        inner = [[name, _to_layers(child)] for name, child in module._modules.items() if child is not None]
        return None if any(layer is None for _, layer in inner) else [_SEQUENTIAL, inner]
    if kind not in LAYERS or type(module) is not getattr(torch.nn, kind):
        return None
    if getattr(module, "track_running_stats", True) is False:
        return None  # it would use those of the batch
    return [kind, *(_argument(module, name) for name in LAYERS[kind])]


def _argument(module: torch.nn.Module, name: str) -> Any:
    value = getattr(module, name)
    if name == "bias":
        return value is not None
    if name == "normalized_shape":
        value = value[0] if len(value) == 1 else value
    if isinstance(value, numbers.Integral) and not isinstance(value, bool):
        value = int(value)  # such as one of NumPy
    return float(value) if name in ("alpha", "beta", "threshold", "p", "eps", "negative_slope") else value


def check_layers(layer: Any, depth: int = 0) -> int:
    """Return the number of layers and sequences; raise ValueError if they are not as `to_layers` returns them."""
    if not isinstance(layer, list | tuple) or not layer or depth > _DEEPEST:
        raise ValueError("a layer of the head must be a list that begins with its kind")
    kind, *arguments = layer
    if kind == _SEQUENTIAL and len(arguments) == 1 and isinstance(arguments[0], list):
        pairs = arguments[0]
        if len(pairs) > _MOST_LAYERS or not all(isinstance(pair, list) and len(pair) == 2 for pair in pairs):
            raise ValueError(f"a sequence of layers must be at most {_MOST_LAYERS} pairs of a name and a layer")
        names = [name for name, _ in pairs]
        if not all(isinstance(name, str) and name and "." not in name for name in names) or len({*names}) < len(names):
            raise ValueError("the layers of the head must have different names, without dots")
        total = 1 + sum(check_layers(inner, depth + 1) for _, inner in pairs)
        if total > _MOST_LAYERS:
            raise ValueError(f"a head has at most {_MOST_LAYERS} layers")
        return total
    if not isinstance(kind, str) or kind not in LAYERS:
        raise ValueError(f"the head has a layer of an unknown kind, {str(kind)[:40]!a}")
    types = LAYERS[kind].values()
    if len(arguments) != len(types) or not all(map(_fits, arguments, types)):
        raise ValueError(f"the head has a layer {kind} with other arguments than it takes")
    return 1


def _fits(value: Any, kind: type[Any]) -> bool:
    if kind is str:
        return value in ("none", "tanh")
    return isinstance(value, kind) and (kind is bool or (not isinstance(value, bool) and 0 <= value <= _LARGEST))


def from_layers(layer: list[Any], *, device: str = "cpu") -> torch.nn.Module:
    """Return a module of these layers, which must have been checked; on the device "meta" it takes no memory."""
    import torch

    kind, *arguments = layer
    if kind == _SEQUENTIAL:
        module = torch.nn.Sequential()
        for name, inner in arguments[0]:
            module.add_module(name, from_layers(inner, device=device))
        return module
    options = dict(zip(LAYERS[kind], arguments, strict=True))
    has_parameters = kind in ("Linear", "LayerNorm", "BatchNorm1d")
    result: torch.nn.Module = getattr(torch.nn, kind)(**options, **({"device": device} if has_parameters else {}))
    return result
