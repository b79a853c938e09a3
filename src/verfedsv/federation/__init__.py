"""Vertical training: a server with the labels, clients with a model and columns each, and messages between them."""

from typing import TYPE_CHECKING, Any

from verfedsv.federation.clients import Client
from verfedsv.federation.clocks import RealClock, VirtualClock
from verfedsv.federation.models import Linear, Model, Perceptron, Rate
from verfedsv.federation.optimizers import Adam, Momentum, Optimizer, PlainDescent

if TYPE_CHECKING:
    from verfedsv.federation.asynchronous import asynchronous_rounds
    from verfedsv.federation.evaluation import Evaluation
    from verfedsv.federation.schedules import AsynchronousSchedule, SynchronousSchedule
    from verfedsv.federation.server import Server
    from verfedsv.federation.synchronous import synchronous_rounds
    from verfedsv.federation.training import Training
    from verfedsv.federation.transports import InProcess, Transport

__all__ = [
    "Adam",
    "AsynchronousSchedule",
    "Client",
    "Evaluation",
    "InProcess",
    "Linear",
    "Model",
    "Momentum",
    "Optimizer",
    "Perceptron",
    "PlainDescent",
    "Rate",
    "RealClock",
    "Server",
    "SynchronousSchedule",
    "Training",
    "Transport",
    "VirtualClock",
    "asynchronous_rounds",
    "synchronous_rounds",
]

_OF_SERVER = {
    "AsynchronousSchedule": "schedules",
    "Evaluation": "evaluation",
    "InProcess": "transports",
    "Server": "server",
    "SynchronousSchedule": "schedules",
    "Training": "training",
    "Transport": "transports",
    "asynchronous_rounds": "asynchronous",
    "synchronous_rounds": "synchronous",
}
"""Names that are imported on first use, by their modules: compiled loops, which take long to load, are for servers."""


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _OF_SERVER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"verfedsv.federation.{_OF_SERVER[name]}"), name)
