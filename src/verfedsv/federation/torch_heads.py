"""A network at the server, on top of the embeddings of all clients. Needs the extra `torch`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import torch

from verfedsv.arguments import as_numpy, as_whole
from verfedsv.arrays import Array, Floats
from verfedsv.errors import DivergedError, InputError
from verfedsv.federation.heads import Slope
from verfedsv.federation.models import Rate, State
from verfedsv.federation.torch_models import TorchModel
from verfedsv.head_layers import check_layers, from_layers, most_numbers
from verfedsv.heads import one_thread

HeadOptimizer = Literal["adam", "momentum", "sgd"]

_PREFIX = "head."


class TorchHead:
    """A network of common layers on concatenated embeddings, with an optimiser of its own.

    `widths` are those of the clients' embeddings, by name, in the order in which they are concatenated; all clients
    that ever join have one. Weights start from `seed`, as torch initialises them. Everything is computed in float64, by
    one thread, so that a training gives the same numbers again.
    """

    def __init__(
        self,
        layers: list[Any],
        widths: Mapping[str, int],
        rate: Rate | None = None,
        optimizer: HeadOptimizer = "adam",
        *,
        seed: int = 0,
    ) -> None:
        check_layers(layers)
        self.widths, self._layers, self._rate, self._n_steps = dict(widths), layers, rate, 0
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.module = from_layers(layers).double()
            self._model = TorchModel(self.module, _BUILD[optimizer])

    @classmethod
    def read(cls, about: Any, state: State) -> TorchHead:
        """Return a head that does not learn any more, from what `describe` and `state` returned.

        Its parameters are compared with the layers before these take any memory.
        """
        layers, widths = about["layers"], about["widths"]
        check_layers(layers)
        arrays = {name.removeprefix(_PREFIX): array for name, array in state.items() if name.startswith(_PREFIX)}
        empty = from_layers(layers, device="meta").double().eval()
        # The types, too: as bytes, parameters would take an eighth of the memory that the head takes.
        kinds = {name: (str(own.dtype), tuple(own.shape)) for name, own in empty.state_dict().items()}
        if kinds != {name: (f"torch.{own.dtype}", own.shape) for name, own in arrays.items()}:
            raise InputError("the parameters of the head do not fit its layers")
        if odd := [name for name, own in arrays.items() if own.size == 0]:
            raise InputError(f"parameter {odd[0]!r} of the head is empty, of shape {arrays[odd[0]].shape}")
        own = {str(name): as_whole("width", width, at_least=1) for name, width in widths}
        try:
            empty(torch.empty(1, sum(own.values()), device="meta", dtype=torch.float64))
        except RuntimeError:
            raise InputError(f"the layers of the head do not take {sum(own.values())} numbers per sample") from None
        head = cls(layers, own)
        head.module.load_state_dict({name: torch.from_numpy(np.array(array)) for name, array in arrays.items()})
        return head

    @property
    def offset(self) -> None:
        return None

    @property
    def n_numbers(self) -> int:
        return sum(self.widths.values()) + most_numbers(self._layers)

    def width_of(self, client: str) -> int:
        if client not in self.widths:
            raise InputError(f"the head has no place for {client!r}; it takes {', '.join(self.widths)}")
        return self.widths[client]

    def scores(self, embeddings: Mapping[str, Floats]) -> Floats:
        with one_thread():
            return self._model.embed(self._joined(embeddings))

    def learn(self, embeddings: Mapping[str, Floats], slope: Slope) -> Mapping[str, Floats]:
        if self._rate is None:
            raise InputError("this head was read for predictions, and does not learn any more")
        self._n_steps += 1
        x = self._joined(embeddings)
        with one_thread():
            # Of the mean loss for the step, of each sample's loss for the clients.
            gradients = len(x) * self._model.pull_back(x, lambda y: slope(y) / len(x), self._rate.at(self._n_steps))
        if not all(np.isfinite(array).all() for array in self.parameters().values()):
            raise DivergedError("parameters of the head are not finite")
        ends = np.cumsum([*self.widths.values()])
        parts = zip(self.widths, np.split(gradients, ends[:-1], axis=1), strict=True)
        return {name: np.ascontiguousarray(part) for name, part in parts if name in embeddings}

    def _joined(self, embeddings: Mapping[str, Floats]) -> Floats:
        n_samples = len(next(iter(embeddings.values())))
        parts = [embeddings.get(name, np.zeros((n_samples, width))) for name, width in self.widths.items()]
        return np.concatenate(parts, axis=1)

    def parameters(self) -> Mapping[str, Array]:
        return {name: as_numpy(name, value) for name, value in self.module.state_dict().items()}

    def recorded(self) -> dict[str, Any]:
        return {"head": self.module, "widths": self.widths}

    def describe(self) -> dict[str, Any]:
        return {"layers": self._layers, "widths": [*self.widths.items()]}

    def state(self) -> State:
        """Return the parameters as arrays, for predictions, and all that torch needs to continue."""
        own = {f"{_PREFIX}{name}": array.copy() for name, array in self.parameters().items()}
        return {**own, **self._model.state(), "n_steps": np.array(self._n_steps)}

    def restore(self, state: State) -> None:
        self._model.restore({"torch": state["torch"]})
        self._n_steps = int(state["n_steps"])


_BUILD: dict[str, Any] = {
    "adam": lambda parameters, rate: torch.optim.Adam(parameters, lr=rate),
    "momentum": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate, momentum=0.9),
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, lr=rate),
}
