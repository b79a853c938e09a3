"""Every transport is held to the same suite; and what an unreliable one does is seen to be unreliable."""

import pytest

from tests.federation.conformance import N_TRIES, Conformance, make_clients, make_server
from tests.federation.unreliable import Unreliable
from tests.network.wiring import Wired
from verfedsv.federation import InProcess, SynchronousSchedule, Training, synchronous_rounds

TRANSPORTS = {"in process": InProcess, "unreliable": Unreliable, "gRPC": Wired}


class TestTransports(Conformance):
    """The conformance suite, once for each transport."""

    @pytest.fixture(autouse=True, params=TRANSPORTS)
    def _connect(self, request):
        opened = []

        def connect(clients):
            opened.append(TRANSPORTS[request.param](clients))
            return opened[-1]

        self.connect = connect
        yield
        for transport in opened:
            getattr(transport, "close", lambda: None)()


def test_the_unreliable_transport_is_unreliable():
    """It loses and repeats messages of a training."""
    clients, data = make_clients()
    transport = Unreliable(clients)
    for _ in synchronous_rounds(Training(make_server(data), transport, n_tries=N_TRIES), SynchronousSchedule(30, 5)):
        pass
    assert transport.n_lost > 10
    assert transport.n_repeated > 10
