"""Torch modules as models of clients. Needs the extra `torch`."""

from __future__ import annotations

import inspect
import io
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import RLock

import numpy as np
import torch

from verfedsv.arrays import Floats
from verfedsv.data.vertical import Matrix
from verfedsv.errors import InputError
from verfedsv.federation.models import State
from verfedsv.files import stored_members

_GENERATOR = RLock()
"""Protects torch's global generator: clients may be threads of one process."""

BuildOptimizer = Callable[[Iterable[torch.nn.Parameter], float], torch.optim.Optimizer]


def plain_sgd(parameters: Iterable[torch.nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """Return plain gradient descent, as in the paper."""
    return torch.optim.SGD(parameters, lr=rate)


class TorchModel:
    """A module from features, (samples, features), to embeddings, (samples, classes), and an optimiser for it.

    The optimiser is built for a rate of 1. In each step, the rates that its groups were built with are multiplied by
    the rate of the step: a group with rate 0 stays frozen.

    Embeddings are computed in evaluation mode, steps are taken in training mode. Random numbers (dropout) come from the
    model's own generator, seeded by torch's when the model is built.
    """

    def __init__(self, module: torch.nn.Module, optimizer: BuildOptimizer = plain_sgd) -> None:
        devices = {p.device.type for p in module.parameters()}
        if devices - {"cpu"}:
            raise InputError(f"a module must be on the CPU; received parameters on {', '.join(sorted(devices))}")
        self._module = module
        self._optimizer = optimizer(module.parameters(), 1.0)
        self._factors = _rates_of(self._optimizer)
        self._type = next((p.dtype for p in module.parameters()), torch.float32)
        self._random = torch.Generator().manual_seed(int(torch.randint(2**62, ()))).get_state()

    def embed(self, features: Matrix) -> Floats:
        self._module.eval()
        with torch.no_grad(), _explaining_memory():
            result: Floats = self._module(self._as_tensor(features)).numpy().astype(np.float64)
        return result

    def learn(self, features: Matrix, gradient: Floats, rate: float) -> None:
        self._step(self._as_tensor(features), lambda _: gradient, rate)

    def pull_back(self, inputs: Floats, slope: Callable[[Floats], Floats], rate: float) -> Floats:
        """Take one step from the gradient that `slope` returns for the outputs; return the gradient by the inputs."""
        x = self._as_tensor(inputs).requires_grad_()
        self._step(x, slope, rate)
        return np.zeros(inputs.shape) if x.grad is None else x.grad.numpy().astype(np.float64)

    def _step(self, x: torch.Tensor, slope: Callable[[Floats], Floats], rate: float) -> None:
        for group, factor in zip(self._optimizer.param_groups, self._factors, strict=True):
            group["lr"] = factor * rate
        self._module.train()
        self._optimizer.zero_grad()
        with self._own_generator(), _explaining_memory():
            outputs: torch.Tensor = self._module(x)
            gradient = slope(outputs.detach().numpy().astype(np.float64, copy=False))
            outputs.backward(torch.as_tensor(gradient, dtype=self._type))
            self._optimizer.step()

    def state(self) -> State:
        buffer = io.BytesIO()
        content = {
            "module": self._module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "random": self._random,
        }
        torch.save(content, buffer)
        return {"torch": np.frombuffer(buffer.getvalue(), np.uint8)}

    def restore(self, state: State) -> None:
        content = io.BytesIO(state["torch"].tobytes())
        try:
            with zipfile.ZipFile(content) as archive:
                stored_members(archive, content.getbuffer().nbytes)
            content.seek(0)
            saved = torch.load(content, weights_only=True)
            self._module.load_state_dict(saved["module"])
            self._optimizer.load_state_dict(saved["optimizer"])
            torch.Generator().set_state(saved["random"])
        except Exception as error:  # what a damaged archive raises cannot be foreseen
            raise InputError(f"the saved module is damaged, or of another model ({type(error).__name__})") from None
        self._random = saved["random"]

    @contextmanager
    def _own_generator(self) -> Iterator[None]:
        # Layers draw from torch's global generator, and cannot be given another: its state is swapped.
        with _GENERATOR, torch.random.fork_rng(devices=[]):
            torch.set_rng_state(self._random)
            yield
            self._random = torch.get_rng_state()

    def _as_tensor(self, features: Matrix) -> torch.Tensor:
        dense = features if isinstance(features, np.ndarray) else features.toarray()
        return torch.as_tensor(dense, dtype=self._type)


@contextmanager
def _explaining_memory() -> Iterator[None]:
    """Turn torch's error of too little memory, a RuntimeError, into MemoryError."""
    try:
        yield
    except RuntimeError as error:
        if "can't allocate memory" in str(error):
            raise MemoryError("a network needs more memory than there is") from None
        raise


def _rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the rates of an optimiser's groups; raise InputError if it has none, or needs a closure to step."""
    name = type(optimizer).__name__
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise InputError(
            f"the optimiser {name} needs a closure that evaluates the loss, which a client cannot do; choose one "
            "that steps from gradients alone, such as SGD or Adam"
        )
    if not all("lr" in group for group in optimizer.param_groups):
        raise InputError(f"the optimiser {name} has no learning rate (lr) that could be set in each step")
    return [float(group["lr"]) for group in optimizer.param_groups]
