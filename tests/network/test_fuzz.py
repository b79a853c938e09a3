"""Mutated messages of a client, at every point of its connection: the server and the other clients do not notice.

`VERFEDSV_WIRE_FUZZ` is how many; `make soak` sends 100,000.
"""

import contextlib
import os
import threading
from itertools import count
from typing import get_args

import grpc
import numpy as np
import pytest

from tests.federation.conformance import make_clients, make_server
from tests.federation.textbook import records_of
from tests.fuzz.mutations import mutations_of_bytes
from tests.memory import resident
from tests.network.callers import Caller
from tests.network.wiring import hello_of
from verfedsv import InputError, Recorder
from verfedsv.alignment import Party, align, make_ids
from verfedsv.federation import InProcess, SynchronousSchedule, Training, synchronous_rounds
from verfedsv.federation.messages import (
    Done,
    Embed,
    Embeddings,
    Gradients,
    Predict,
    Prediction,
    Refusal,
    Restore,
    Save,
    check_kind,
)
from verfedsv.network import messages as net
from verfedsv.network.aligning import RemoteParty, answer_for
from verfedsv.network.hub import Hub, largest_answer
from verfedsv.network.link import Link
from verfedsv.network.messages import End
from verfedsv.network.wire import frames, to_bytes

N_MESSAGES = int(os.environ.get("VERFEDSV_WIRE_FUZZ", "100000"))
ROWS = np.arange(20)


IDS = make_ids([str(number) for number in ROWS])
STEPS = {*get_args(net.AlignmentRequest)} - {net.CheckAligned}
"""What a party is asked in an alignment."""


def answer_to(request, party):
    """Return a valid answer to a message, that of a party if it is of an alignment."""
    if isinstance(request, get_args(net.AlignmentRequest)):
        try:
            return answer_for(party, request)
        except InputError as error:
            return Refusal("mallory", 0, request.sequence, str(error))
    about = "mallory", request.round, request.sequence
    match request:
        case Embed():
            return Embeddings(*about, np.ones((len(request.samples), 1)))
        case Predict():
            return Prediction(*about, np.ones((120, 1)))
        case Restore():
            return Refusal(*about, "no checkpoint")
        case _:
            return Done(*about)


class Mallory(threading.Thread):
    """Sends mutated messages: its Hello, and answers to whatever it is asked.

    Four of five of its answers in an alignment are valid, so that alignments come to their last steps.
    """

    def __init__(self, port, n_messages):
        super().__init__(daemon=True)
        self._port, self._n_messages, self.n_sent, self.half = port, n_messages, 0, 0
        self._rng, self._party, self.was_asked = np.random.default_rng(0), Party("mallory", IDS), set()

    def _mutated(self, message):
        """Return a frame that is mutated, or whose message is."""
        seed = int(self._rng.integers(2**32))
        if self._rng.random() < 0.3:
            return next(mutations_of_bytes(next(frames(to_bytes(message))), seed))
        return next(frames(next(mutations_of_bytes(to_bytes(message), seed))))

    def run(self):
        while self.n_sent < self._n_messages:
            caller = Caller(self._port)
            for _ in range(200):  # streams of a connection, one after the other
                with contextlib.suppress(grpc.RpcError, InputError):
                    self._attend(caller)
                if self.n_sent >= self._n_messages:
                    break
                if self.n_sent >= self._n_messages // 2 and not self.half:
                    self.half = resident()
                caller.dial()
            caller.close()
        self._party.close()

    def _attend(self, caller):
        hello = hello_of("mallory")
        if self._rng.random() < 0.3:
            caller.send(self._mutated(hello))
            self.n_sent += 1
        caller.send(hello)
        while (request := caller.receive()) is not None:
            if isinstance(request, net.Welcome):
                continue
            self.was_asked.add(type(request))
            answer = answer_to(request, self._party)
            if type(request) in STEPS and self._rng.random() < 0.8:
                caller.send(next(frames(to_bytes(answer))))
                continue
            for _ in range(int(self._rng.integers(1, 3))):
                caller.send(self._mutated(answer))
                self.n_sent += 1


def check_sizes(sizes):
    """Raise InputError if a party claims more ids than there are: those are other tests."""
    if max(sizes.values()) > len(IDS):
        raise InputError(f"too many ids: {sizes}")


def ask_forever(hub, is_over):
    """Ask mallory for everything that a server asks; raise what a wrong answer should not lead to."""
    numbers = count(1)

    def ask(message):
        for answer in hub.exchange([message], 0.02):
            return answer
        raise InputError("no answer")

    party, own, samples = RemoteParty("mallory", ask, numbers), Party("bank", IDS), np.arange(20)
    requests = [
        lambda number: Embed("mallory", 1, number, samples),
        lambda number: Gradients("mallory", 1, number, None, np.ones((20, 1))),
        lambda number: Predict("mallory", 1, number, None),
        lambda number: Save("mallory", 1, number, -1),
        lambda number: Restore("mallory", 1, number),
    ]
    calls = [
        lambda: align([own, party], check_sizes=check_sizes),
        lambda: party.check_aligned(bytes(32)),
        lambda: ask(net.Deliver("mallory", 0, next(numbers), "value.json", b"{}")),
    ]
    _, data = make_clients()
    server = make_server(data)
    while not is_over():
        for request in requests:
            for answer in hub.exchange([message := request(next(numbers))], 0.02):
                with contextlib.suppress(InputError):
                    check_kind(answer, message)
                    if isinstance(answer, Embeddings):
                        server.receive(answer)
                    if isinstance(answer, Prediction):
                        server.embeddings_of(answer, None)
        for call in calls:
            with contextlib.suppress(InputError):
                call()
    own.close()


def train(transport, data):
    """Train with the clients of a transport, and return the records."""
    server = make_server(data)
    recorder = Recorder(None, server.labels[: server.n_train], data.names)
    server.record(recorder)
    for _ in synchronous_rounds(Training(server, transport, 30), SynchronousSchedule(20, 20)):
        pass
    return records_of(recorder)


@pytest.mark.parametrize("n_messages", [2000, pytest.param(N_MESSAGES, marks=pytest.mark.soak)])
def test_mutated_messages_change_nothing(n_messages):
    """Meanwhile others train to exactly the same records, again and again, and memory does not grow."""
    clients, data = make_clients(2)
    expected, clients = train(InProcess(clients), data), {}
    hub = Hub([*data.names, "mallory"], lambda _: None, limit=lambda request: largest_answer(request, {}, 120))
    port = hub.start("127.0.0.1:0", None)
    for name in data.names:
        answer = lambda message, name=name: clients[name].answer(message)  # noqa: E731
        link = Link(f"127.0.0.1:{port}", None, lambda name=name: hello_of(name), answer)
        threading.Thread(target=link.run, daemon=True).start()
    assert not hub.wait_for_all(data.names, 10, lambda: False)
    mallory, failed = Mallory(port, n_messages), []

    def ask():
        try:
            ask_forever(hub, lambda: not mallory.is_alive())
        except BaseException as error:
            failed.append(error)

    mallory.start()
    asking = threading.Thread(target=ask, daemon=True)
    asking.start()
    n_trainings = 0
    while mallory.is_alive() or not n_trainings:
        clients.update({client.name: client for client in make_clients(2)[0]})
        assert train(hub, data) == expected
        n_trainings += 1
        assert not failed
    asking.join(10)
    assert not asking.is_alive()
    assert mallory.n_sent >= n_messages
    assert mallory.was_asked >= STEPS, f"never asked: {STEPS - mallory.was_asked}"
    grown = resident() - mallory.half
    hub.stop(End("", 0, 0, "over", is_finished=True), grace=1)
    assert grown < 32 << 20, f"{grown:,} bytes more after the second half of {n_messages:,} messages"
