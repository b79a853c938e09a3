"""How parameters follow their gradients: plain gradient descent, momentum or Adam.

An optimiser is built for parameters that have names, and then takes one step at a time:

    parameters = {"weights": weights, "biases": biases}
    optimizer = Adam(parameters)
    optimizer.step(parameters, {"weights": of_weights, "biases": of_biases}, rate)

In NumPy, because torch is an extra, and clients with sparse features have no tensors.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import ClassVar

import numpy as np

from verfedsv.arrays import Array, Floats
from verfedsv.errors import InputError

Parameters = Mapping[str, Floats]
"""Arrays by name, which a step changes in place."""


class Optimizer(ABC):
    """Changes parameters in place, given their gradients; `state` has all that later steps depend on."""

    kind: ClassVar[str]
    """The name under which the step is agreed in a transcript."""

    @abstractmethod
    def __init__(self, parameters: Parameters) -> None:
        """Prepare for arrays of these names and shapes; they are not kept."""

    @abstractmethod
    def step(self, parameters: Parameters, gradients: Parameters, rate: float) -> None:
        """Take one step; both have the names and shapes that the optimiser was built for."""

    @abstractmethod
    def state(self) -> dict[str, Array]:
        """Return a copy of everything that `restore` needs to continue exactly from here.

        Names, types and shapes are the same before the first step and after any.
        """

    @abstractmethod
    def restore(self, state: Mapping[str, Array]) -> None:
        """Continue from a state; other arrays in it are ignored."""


BuildOptimizer = Callable[[Parameters], Optimizer]


class PlainDescent(Optimizer):
    """Gradient descent: p - rate g."""

    kind = "gradient descent"

    def __init__(self, parameters: Parameters) -> None:
        pass

    def step(self, parameters: Parameters, gradients: Parameters, rate: float) -> None:
        for name, gradient in gradients.items():
            parameter = parameters[name]
            parameter -= rate * gradient

    def state(self) -> dict[str, Array]:
        return {}

    def restore(self, state: Mapping[str, Array]) -> None:
        pass


class Momentum(Optimizer):
    """Gradient descent with momentum, as torch.optim.SGD: v = momentum v + g, then p - rate v."""

    kind = "gradient descent with momentum"

    def __init__(self, parameters: Parameters, momentum: float = 0.9) -> None:
        if not 0 < momentum < 1:
            raise InputError(f"momentum must be above 0 and below 1; received {momentum}")
        self._momentum = momentum
        self._velocities = _zeros("velocity", parameters)

    def step(self, parameters: Parameters, gradients: Parameters, rate: float) -> None:
        for name, gradient in gradients.items():
            velocity, parameter = self._velocities[f"velocity of {name}"], parameters[name]
            velocity *= self._momentum
            velocity += gradient
            parameter -= rate * velocity

    def state(self) -> dict[str, Array]:
        return _copies(self._velocities)

    def restore(self, state: Mapping[str, Array]) -> None:
        self._velocities = {name: np.array(state[name]) for name in self._velocities}


class Adam(Optimizer):
    """Adam (Kingma and Ba, 2015), with the constants of the paper and of torch.optim.Adam.

    Gradients are divided by the root of their mean square, number by number: the size of a step is about `rate`,
    whatever the scale of the features.
    """

    kind = "Adam"
    BETAS: ClassVar = (0.9, 0.999)
    EPSILON: ClassVar = 1e-8

    def __init__(self, parameters: Parameters) -> None:
        self._means, self._squares = _zeros("mean", parameters), _zeros("square", parameters)
        self._n_steps = 0

    def step(self, parameters: Parameters, gradients: Parameters, rate: float) -> None:
        self._n_steps += 1
        (first, second), t = self.BETAS, self._n_steps
        for name, gradient in gradients.items():
            mean, square, parameter = (
                self._means[f"mean of {name}"],
                self._squares[f"square of {name}"],
                parameters[name],
            )
            mean += (1 - first) * (gradient - mean)
            square += (1 - second) * (gradient * gradient - square)
            root = np.sqrt(square / (1 - second**t))
            root += self.EPSILON
            parameter -= rate / (1 - first**t) * mean / root

    def state(self) -> dict[str, Array]:
        return {**_copies(self._means), **_copies(self._squares), "steps of Adam": np.array(self._n_steps)}

    def restore(self, state: Mapping[str, Array]) -> None:
        self._means = {name: np.array(state[name]) for name in self._means}
        self._squares = {name: np.array(state[name]) for name in self._squares}
        self._n_steps = int(state["steps of Adam"])


def _zeros(what: str, parameters: Parameters) -> dict[str, Floats]:
    return {f"{what} of {name}": np.zeros_like(parameter) for name, parameter in parameters.items()}


def _copies(arrays: Mapping[str, Floats]) -> dict[str, Array]:
    return {name: array.copy() for name, array in arrays.items()}


OPTIMIZERS: Mapping[str, type[Optimizer]] = {"sgd": PlainDescent, "momentum": Momentum, "adam": Adam}
"""The optimisers by their names in configurations."""


def build_optimizer(name: str, momentum: float) -> BuildOptimizer:
    """Return a factory for optimisers of that name; `momentum` is for those that have one."""
    if name not in OPTIMIZERS:
        raise InputError(f"optimizer must be {', '.join(OPTIMIZERS)}; received {name!r}")
    return partial(Momentum, momentum=momentum) if name == "momentum" else OPTIMIZERS[name]
