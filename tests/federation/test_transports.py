"""Every transport is held to the same suite; and what an unreliable one does is seen to be unreliable."""

import pytest

from tests.federation.conformance import N_TRIES, Conformance, make_clients, make_server
from tests.federation.unreliable import Unreliable
from verfedsv.federation import InProcess, SynchronousSchedule, Training, synchronous_rounds

TRANSPORTS = {"in process": InProcess, "unreliable": Unreliable}


class TestTransports(Conformance):
    """The conformance suite, once for each transport."""

    @pytest.fixture(autouse=True, params=TRANSPORTS)
    def _connect(self, request):
        self.connect = TRANSPORTS[request.param]


def test_the_unreliable_transport_is_unreliable():
    """It loses and repeats messages of a training."""
    clients, data = make_clients()
    transport = Unreliable(clients)
    for _ in synchronous_rounds(Training(make_server(data), transport, n_tries=N_TRIES), SynchronousSchedule(30, 5)):
        pass
    assert transport.n_lost > 10
    assert transport.n_repeated > 10
