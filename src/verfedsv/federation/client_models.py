"""A client's trained model with the preparation of its columns: what its checkpoint keeps, and what its owner gets."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from verfedsv._version import __version__
from verfedsv.arrays import LARGEST_EMBEDDING, Array, Floats, is_usable
from verfedsv.data.preparation import Preparation
from verfedsv.data.vertical import ClientData
from verfedsv.errors import InputError
from verfedsv.federation.checkpoints import as_bytes, pick, pick_numbers, read_any_checkpoint
from verfedsv.federation.models import Linear, Model, Perceptron, State
from verfedsv.untrusted import read_json

FORMAT, VERSION = "verfedsv model", 1
_ABOUT = "its description"
_PERCEPTRON = ("first_weights", "first_biases", "second_weights", "second_biases")
_WEIGHTS = {"linear": ("weights",), "perceptron": _PERCEPTRON}
"""The arrays of each kind of model that can be used without this package."""
_KINDS: dict[type, str] = {Linear: "linear", Perceptron: "perceptron"}


@dataclass(frozen=True, eq=False)
class ClientModel:
    """The model of the client `name`, of a kind, as it was after a number of rounds; its `weights` by name."""

    name: str
    kind: str
    n_rounds: int
    preparation: Preparation
    weights: Mapping[str, Floats]

    @staticmethod
    def describe(name: str, model: Model, preparation: Preparation | None) -> dict[str, Array]:
        """Return what a checkpoint has to have besides the state of the model, so that `read` can read it."""
        own = {} if preparation is None else preparation.state()
        kind = _KINDS.get(type(model), type(model).__name__)
        return {"about": as_bytes({"client": name, "model": kind}), **own}

    @classmethod
    def read(cls, path: Path, name: str) -> ClientModel:
        """Return the model in a client's checkpoint; raise InputError if there is none that can be used."""
        arrays = read_any_checkpoint(path, f"the model of {name!r}")
        try:
            about = read_json(arrays["about"].tobytes(), _ABOUT)
            if (client := pick(about, "client", _ABOUT)) != name:
                raise InputError(f"it is of {client!r}")
            kind, n_rounds = str(pick(about, "model", _ABOUT)), int(pick_numbers(arrays, "round", (), "i"))
            if kind in _WEIGHTS:
                preparation = Preparation.of_state(arrays)
                weights = {part: arrays[part] for part in _WEIGHTS[kind]}
                _check_shapes(kind, weights, preparation.n_features)
        except (KeyError, TypeError, ValueError) as error:
            why = f"it has no {error}" if isinstance(error, KeyError) else str(error)
            raise InputError(
                f"{path} is not a checkpoint of {name!r} with a model and its columns ({why}): it is damaged, or was "
                "written by another version. Train again"
            ) from None
        if kind not in _WEIGHTS:
            raise InputError(
                f"the model of {name!r} is a {kind}, which only the program that built it can use; models that can be "
                f"taken from a run are {' and '.join(_WEIGHTS)}. Save it from that program, such as a torch module "
                "with torch.save(module.state_dict(), ...)"
            )
        return cls(name, kind, n_rounds, preparation, weights)

    @property
    def n_numbers(self) -> int:
        """How many numbers per row it computes with, at most: features, hidden units and embeddings together."""
        prepared = self.preparation
        # Of sparse features, a row has at most one for each column.
        n_features = len(prepared.columns) if all(prepared.is_sparse[1:]) else prepared.n_features
        return n_features + sum(int(array.shape[-1]) for array in self.weights.values() if array.ndim == 2)

    @cached_property
    def model(self) -> Model:
        """The model, with these weights."""
        return _build(self.kind, self.weights)

    @property
    def width(self) -> int:
        """The number of numbers in an embedding."""
        return int(self.weights[_WEIGHTS[self.kind][-1]].shape[-1])

    def embed(self, rows: ClientData) -> Floats:
        """Return the embeddings of some rows, (rows, width)."""
        return self.model.embed(self.preparation.apply(rows))

    def about(self) -> dict[str, Any]:
        """Return what the exported file says about itself."""
        return {
            "format": FORMAT,
            "version": VERSION,
            "client": self.name,
            "model": self.kind,
            "n_rounds": self.n_rounds,
            "n_features": self.preparation.n_features,
            "width": self.width,
            "made_by": f"verfedsv {__version__}",
        }

    def arrays(self) -> dict[str, Array]:
        """Return all that embeds rows without this package; docs/training.md has the script."""
        kept = {name: array for name, array in self.preparation.state().items() if name != "is_sparse"}
        return {"about": as_bytes(self.about()), **kept, **self.weights}

    def to_bytes(self) -> bytes:
        """Return these arrays as the content of an .npz file, without pickles."""
        buffer = io.BytesIO()
        content: dict[str, Any] = self.arrays()
        np.savez(buffer, **content)
        return buffer.getvalue()


def _build(kind: str, weights: State) -> Model:
    if kind == "linear":
        model: Model = Linear(*weights["weights"].shape)
    else:
        (n_features, hidden), n_classes = weights["first_weights"].shape, len(weights["second_biases"])
        model = Perceptron(n_features, n_classes, hidden=hidden)
    model.restore(weights)
    return model


def _check_shapes(kind: str, weights: State, n_features: int) -> None:
    """Raise InputError unless weights are those of a model with so many features, and can be computed with."""
    if kind == "linear":
        (shape,) = (array.shape for array in weights.values())
        fits = len(shape) == 2 and shape[0] == n_features
    else:
        first, inner, second, outer = (array.shape for array in weights.values())
        fits = first == (n_features, *inner) and second == (*inner, *outer) and len(outer) == 1
    if not fits or any(array.dtype != np.float64 for array in weights.values()):
        raise InputError("the weights do not fit the columns")
    for name, array in weights.items():
        if 0 in array.shape:
            raise InputError(f"{name} is empty, of shape {array.shape}")
        if not is_usable(array):
            raise InputError(f"{name} must be finite and below {LARGEST_EMBEDDING:g} in size: training diverged")
