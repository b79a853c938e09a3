"""Any torch module as a client's model. Needs the extra `torch`."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable

import numpy as np
import torch

from verfedsv.data.vertical import Matrix
from verfedsv.federation.models import State
from verfedsv.losses import Floats

BuildOptimizer = Callable[[Iterable[torch.nn.Parameter], float], torch.optim.Optimizer]


def plain_sgd(parameters: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Return gradient descent without momentum, as in the paper."""
    return torch.optim.SGD(parameters, lr=rate)


class TorchModel:
    """A module from features, (samples, features), to embeddings, (samples, classes), and an optimiser for it.

    The optimiser is built for a rate of 1 and told the rate of each step.
    """

    def __init__(self, module: torch.nn.Module, optimizer: BuildOptimizer = plain_sgd) -> None:
        self._module = module
        self._optimizer = optimizer(module.parameters(), 1.0)
        self._type = next((p.dtype for p in module.parameters()), torch.float32)

    def embed(self, features: Matrix) -> Floats:
        with torch.no_grad():
            result: Floats = self._forward(features).numpy().astype(np.float64)
        return result

    def learn(self, features: Matrix, gradient: Floats, rate: float) -> None:
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        self._optimizer.zero_grad()
        self._forward(features).backward(torch.as_tensor(gradient, dtype=self._type))
        self._optimizer.step()

    def state(self) -> State:
        buffer = io.BytesIO()
        torch.save({"module": self._module.state_dict(), "optimizer": self._optimizer.state_dict()}, buffer)
        return {"torch": np.frombuffer(buffer.getvalue(), np.uint8)}

    def restore(self, state: State) -> None:
        saved = torch.load(io.BytesIO(state["torch"].tobytes()), weights_only=True)
        self._module.load_state_dict(saved["module"])
        self._optimizer.load_state_dict(saved["optimizer"])

    def _forward(self, features: Matrix) -> torch.Tensor:
        dense = features if isinstance(features, np.ndarray) else features.toarray()
        result: torch.Tensor = self._module(torch.as_tensor(dense, dtype=self._type))
        return result


def perceptron(n_features: int, n_classes: int, *, hidden: int = 32, seed: int = 0) -> TorchModel:
    """Return the paper's model for RCV1: two layers with ReLU between them, initialised from a seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = torch.nn.Sequential(
            torch.nn.Linear(n_features, hidden), torch.nn.ReLU(), torch.nn.Linear(hidden, n_classes)
        )
    return TorchModel(module)
