"""Vertical training in one process: clients with a model and columns each, a server with the labels."""

from verfedsv.federation.asynchronous import AsynchronousPlan, Steps, asynchronous_rounds
from verfedsv.federation.clients import Client
from verfedsv.federation.clocks import RealClock, VirtualClock
from verfedsv.federation.federation import Evaluation, Federation, Moment, federate
from verfedsv.federation.models import Linear, Model, Rate
from verfedsv.federation.server import Server, Transport
from verfedsv.federation.synchronous import SynchronousPlan, synchronous_rounds
from verfedsv.federation.tape import Tape

__all__ = [
    "AsynchronousPlan",
    "Client",
    "Evaluation",
    "Federation",
    "Linear",
    "Model",
    "Moment",
    "Rate",
    "RealClock",
    "Server",
    "Steps",
    "SynchronousPlan",
    "Tape",
    "Transport",
    "VirtualClock",
    "asynchronous_rounds",
    "federate",
    "synchronous_rounds",
]
