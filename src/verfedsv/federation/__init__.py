"""Vertical training: a server with the labels, clients with a model and columns each, and messages between them."""

from verfedsv.federation.asynchronous import asynchronous_rounds
from verfedsv.federation.clients import Client
from verfedsv.federation.clocks import RealClock, VirtualClock
from verfedsv.federation.evaluation import Evaluation
from verfedsv.federation.messages import from_bytes, to_bytes
from verfedsv.federation.models import Linear, Model, Perceptron, Rate
from verfedsv.federation.optimizers import Adam, Momentum, Optimizer, PlainDescent
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
    "from_bytes",
    "synchronous_rounds",
    "to_bytes",
]
