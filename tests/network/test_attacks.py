"""What a client with a valid place tries in order to stall the server, to take memory, or to be paid more."""

import contextlib
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.federation.conformance import make_clients
from tests.memory import resident
from tests.network.callers import Caller, framed
from tests.network.test_fuzz import train
from tests.network.test_load import Several
from tests.network.wiring import hello_of
from verfedsv import InputError
from verfedsv.federation import InProcess
from verfedsv.federation.messages import Embed
from verfedsv.network import listening
from verfedsv.network.messages import Welcome
from verfedsv.network.wire import METHOD, to_bytes


def once(caller, answer, _):
    caller.send(answer)


def twice(caller, answer, _):
    caller.send(answer, answer)


def half(caller, answer, _):
    """Send the beginning, and hang up."""
    caller.send(framed(to_bytes(answer)[:3], more=True))
    return True


def and_hang_up(caller, answer, _):
    caller.send(answer)
    return True


def over_two_connections(caller, answer, port):
    """Let another connection of the same process take over, and answer in both."""
    second = Caller(port)
    second.send(hello_of(answer.client))
    caller.send(answer)
    second.send(answer, answer)
    second.close()


def byte_by_byte(caller, answer, _):
    content = to_bytes(answer)
    for number in range(len(content)):
        caller.send(framed(content[number : number + 1], more=number + 1 < len(content)))


WAYS = [once, twice, half, and_hang_up, over_two_connections, byte_by_byte]


def test_answers_in_all_wrong_ways_change_nothing():
    """A client answers twice, in two connections, after hanging up in the middle: the records are the honest ones."""
    clients, data = make_clients(2)
    expected = train(InProcess(clients), data)
    honest, greedy = make_clients(2)[0]
    several, is_over = Several([honest], [greedy.name]), threading.Event()
    rng = np.random.default_rng(0)

    def attend():
        """Serve a stream, and answer each message in one of several ways."""
        caller, is_left = Caller(several.port), False
        caller.send(hello_of(greedy.name))
        while not is_left and (request := caller.receive()) is not None:
            if not isinstance(request, Welcome):
                request.client = greedy.name
                way = WAYS[int(rng.integers(len(WAYS)))]
                is_left = way(caller, greedy.answer(request), several.port)
        caller.close()

    def attack():
        while not is_over.is_set():
            with contextlib.suppress(grpc.RpcError, InputError):
                attend()

    attacker = threading.Thread(target=attack, daemon=True)
    attacker.start()
    assert not several.hub.wait_for_all([greedy.name], 10, lambda: False)
    records = train(several.hub, data)
    is_over.set()
    several.close()
    attacker.join(15)
    assert records == expected


def test_who_does_not_read_holds_nobody_up():
    """Neither the others, nor the end of the server: what cannot be written is given up after some seconds."""
    clients, data = make_clients(2)
    expected = train(InProcess(clients), data)
    several = Several(make_clients(2)[0], ["mallory"])
    caller = Caller(several.port)
    caller.send(hello_of("mallory"))
    caller.receive()
    samples = np.arange(1_000_000)
    before = resident()
    for number in range(1, 32):
        several.hub.exchange([Embed("mallory", 1, number, samples)], 0.01)
    assert train(several.hub, data) == expected
    assert resident() - before < 16 * samples.nbytes  # some that wait, and what is on its way: not all 31
    started = time.monotonic()
    several.close()
    assert time.monotonic() - started < 30
    caller.close()


def test_what_is_compressed_is_refused():
    """A few kilobytes would unpack to as many megabytes as anybody likes."""
    several = Several([], ["mallory"])
    code = (
        "import sys, grpc\n"
        "channel = grpc.insecure_channel('127.0.0.1:' + sys.argv[1], [('grpc.max_send_message_length', -1)])\n"
        "try:\n"
        f"    call = channel.stream_stream({METHOD!r})\n"
        "    list(call(iter([bytes(1 << 28)]), timeout=20, compression=grpc.Compression.Gzip))\n"
        "except grpc.RpcError as error:\n"
        "    print(error.code().name)\n"
    )
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", code, str(several.port)], capture_output=True, text=True, check=True
    )
    several.close()
    assert done.stdout.strip() == "UNIMPLEMENTED"


def n_open():
    """Return how many descriptors this process has."""
    if not (folder := Path("/proc/self/fd")).exists():
        pytest.skip("needs /proc")
    return len([*folder.iterdir()])


def test_many_connections_at_once_do_not_use_up_the_descriptors():
    """Those that say nothing are limited, and those that are connected go on."""
    clients, data = make_clients(2)
    expected = train(InProcess(clients), data)
    several = Several(make_clients(2)[0], [])
    before = n_open()
    most = 2 * listening._CONNECTIONS_EACH + listening._OTHER_CONNECTIONS
    code = (
        "import socket, sys\n"
        "found = []\n"
        f"for _ in range({4 * most}):\n"
        "    found.append(socket.create_connection(('127.0.0.1', int(sys.argv[1])), 5))\n"
        "print('all', flush=True)\n"
        "sys.stdin.read()\n"
    )
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code, str(several.port)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout.readline() == b"all\n"
        time.sleep(0.5)
        assert n_open() - before <= most + 16
        assert train(several.hub, data) == expected
    finally:
        process.communicate()
        several.close()
