"""Many clients on one machine, and one that sends too much: memory keeps to the formula in docs/security.md."""

import os
import subprocess
import sys
import threading
import time

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from tests.federation.conformance import make_clients
from tests.memory import resident
from tests.network.callers import Caller, framed
from tests.network.consortium import N_SAMPLES, Consortium
from tests.network.test_fuzz import train
from tests.network.wiring import hello_of
from verfedsv.federation import InProcess
from verfedsv.federation.messages import Done, Embed, Embeddings, Predict, Prediction, Save
from verfedsv.network.hub import Hub, largest_answer
from verfedsv.network.link import Link
from verfedsv.network.messages import End
from verfedsv.network.wire import LARGEST_FRAME

JOIN = """
import sys
from verfedsv.cli import app
try:
    app()
finally:
    print("imported", sorted({"torch", "numba", "scipy.optimize", "sklearn"} & sys.modules.keys()))
"""

SERVER_AT_REST = (420 + 180) << 20
"""Of `verfedsv serve` with one client: what a valuation needs, measured: 350 MB; to draw the report, measured: 150."""

EACH_CONNECTION = 6 << 20
"""For a client that sends as much as it can: TLS, HTTP/2 windows, queues. Measured: 4.3 MB; 0.1 MB if it is idle."""


def server_bound(n_clients, n_samples, width=1, rows=None):
    """Return how much memory a server takes at most beside what it took at rest: the formula in docs/security.md."""
    table = 8 * n_samples * width * n_clients
    largest = 8 * (n_samples if rows is None else rows) * width
    return 5 * table + n_clients * (EACH_CONNECTION + 9 * largest)


SERVER = """
import sys
import numpy as np
from tests.memory import resident
from verfedsv.federation import Server, SynchronousSchedule, Training, synchronous_rounds
from verfedsv.network.hub import Hub, largest_answer
from verfedsv.network.messages import End
n_samples, names = int(sys.argv[1]), sys.argv[2:]
hub = Hub(names, lambda _: None, limit=lambda request: largest_answer(request, {}, n_samples))
server = Server(np.arange(n_samples) % 2, names, 1)
training = Training(server, hub, 60)
before = resident() - 8 * n_samples * len(names)
print(hub.start("127.0.0.1:0", None), flush=True)
hub.wait_for_all(names, 30, lambda: False)
for _ in synchronous_rounds(training, SynchronousSchedule(n_samples, 3)):
    training.evaluate()
print(resident(what="VmHWM") - before, flush=True)
hub.stop(End("", 0, 0, "over", is_finished=True))
"""


def test_a_server_keeps_to_its_formula():
    """With uploads of all of 400,000 samples: the tables, and for each client buffers and nine messages."""
    names, n_samples = [f"client {number}" for number in range(6)], 400_000
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", SERVER, str(n_samples), *names], stdout=subprocess.PIPE, text=True
    )
    port = int(process.stdout.readline())

    def answer(message):
        about = message.client, message.round, message.sequence
        n_rows = n_samples if getattr(message, "samples", None) is None else len(message.samples)
        match message:
            case Embed():
                return Embeddings(*about, np.ones((n_rows, 1)))
            case Predict():
                return Prediction(*about, np.ones((n_rows, 1)))
            case _:
                return Done(*about)

    for name in names:
        link = Link(f"127.0.0.1:{port}", None, lambda name=name: hello_of(name), answer)
        threading.Thread(target=link.run, daemon=True).start()
    used = int(process.communicate(timeout=60)[0])
    assert process.returncode == 0
    bound = server_bound(len(names), n_samples)
    assert used < bound, f"{used:,} bytes, and the formula says {bound:,}"


LABEL_FILE = """
import sys
from pathlib import Path
import numpy as np
from tests.memory import reset_peak, resident
from verfedsv.alignment import Aligned
from verfedsv.network.beginning import learning_of
from verfedsv.network.serving import NetworkRun
from verfedsv.network.terms import client_of
for config in map(Path, sys.argv[1:]):  # the first is small: what is imported counts as memory at rest
    before = reset_peak()
    run = NetworkRun.of_file(config)
    run.describe_own_file()
    rows, run.hub = np.random.default_rng(0).permutation(len(run._labels.ids)), None
    run._common.aligned = Aligned(rows.astype(np.uint32), "", "", {})
    client_of(run.data.clients[0], run.data.is_test, learning_of(run.config, "bank", 1), config)
print(resident(what="VmHWM") - before)
"""


def label_file_bound(n_rows, n_columns):
    """Return how much memory the label owner's file takes at most; ids and labels are columns, too."""
    return (4 * 8 * n_columns + 300) * n_rows


def test_a_large_label_file_keeps_to_its_formula(tmp_path):
    """From its reading to the client in the server's process; the alignment between them has a table of its own."""
    configs = []
    for n_rows in (100, 200_000):
        whole = Consortium(tmp_path / str(n_rows), data={"aligned": False})
        numbers = np.random.default_rng(0).standard_normal((30, n_rows)).round(6)
        columns = {"id": np.arange(n_rows), **{f"x{k}": own for k, own in enumerate(numbers)}}
        pyarrow.csv.write_csv(pa.table({**columns, "label": np.arange(n_rows) % 2}), whole.folder / "bank.csv")
        configs.append(str(whole.config))
    script = [sys.executable, "-c", LABEL_FILE, *configs]
    done = subprocess.run(script, capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    used, bound = int(done.stdout), label_file_bound(200_000, 32)
    assert used < bound, f"{used:,} bytes, and the formula says {bound:,}"


@pytest.mark.parametrize("n_clients", [8, pytest.param(50, marks=pytest.mark.soak)])
def test_many_clients_as_processes(tmp_path, n_clients):
    """All finish; a client imports no compiled loops and takes little memory, and the server keeps to its formula."""
    names = [f"client-{number}" for number in range(1, n_clients + 1)]
    whole = Consortium(tmp_path, names, training={"rounds": 100}, extra='[valuation]\nmethod = "closed-form"\n')
    started, peaks = time.monotonic(), {}
    try:
        server = whole.start("serve")
        for name in names[1:]:
            whole.start(name)
        watched = join_and_list_modules(whole, names[0])
        while not all(whole.is_over(name) for name in whole.processes):
            for name, (process, _) in whole.processes.items():
                try:
                    peaks[name] = resident(process.pid, "VmHWM")
                except (OSError, StopIteration):
                    continue  # it has just ended
            assert time.monotonic() - started < 60 + 10 * n_clients, {each: whole.log(each) for each in whole.processes}
            time.sleep(0.1)
        assert {*whole.finish().values()} == {0}
        assert "imported []" in watched.communicate(timeout=60)[0]
    finally:
        whole.stop()
    assert server.returncode == 0
    own = peaks.pop("serve")
    print(  # noqa: T201  # for docs/security.md
        f"{n_clients} clients: {time.monotonic() - started:.0f} s; server {own:,} bytes, "
        f"clients up to {max(peaks.values()):,} bytes"
    )
    assert max(peaks.values()) < 220 << 20
    assert own < SERVER_AT_REST + server_bound(n_clients, N_SAMPLES)


def join_and_list_modules(whole, name):
    """Return a process that joins as verfedsv join does, and prints which large packages it imported."""
    command = [sys.executable, "-c", JOIN, "join", f"127.0.0.1:{whole.port}", "--name", name, "--insecure", "--aligned"]
    command += ["--features", str(whole.folder / f"{name}.csv"), "--folder", str(whole.folder / f"of-{name}")]
    return subprocess.Popen(  # noqa: S603
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


class Several:
    """A hub with clients in threads, and places for others."""

    def __init__(self, clients, others, n_samples=120, **options):
        names = [client.name for client in clients]
        self.clients = {client.name: client for client in clients}
        self.hub = Hub(
            [*names, *others], lambda _: None, limit=lambda request: largest_answer(request, {}, n_samples), **options
        )
        self.port = self.hub.start("127.0.0.1:0", None)
        for name in names:
            link = Link(f"127.0.0.1:{self.port}", None, lambda name=name: hello_of(name), self.clients[name].answer)
            threading.Thread(target=link.run, daemon=True).start()
        assert not self.hub.wait_for_all(names, 10, lambda: False)

    def close(self):
        self.hub.stop(End("", 0, 0, "over", is_finished=True), grace=1)


@pytest.mark.parametrize("is_asked", [False, True], ids=["idle", "asked"])
def test_a_client_that_floods_its_stream_is_held_back(is_asked):
    """It sends without end, while nothing is asked or inside of an answer: others train, and memory is bounded."""
    clients, data = make_clients(2)
    expected = train(InProcess(clients), data)
    several = Several(make_clients(2)[0], ["mallory"])
    mallory = Caller(several.port)
    mallory.send(hello_of("mallory"))
    mallory.receive()

    before = resident()
    part = framed(bytes(LARGEST_FRAME), more=True)
    mallory.send(*[part] * 512)  # the same bytes: they take no memory at this end
    if is_asked:
        several.hub.exchange([Save("mallory", 1, 1, -1)], 0.1)
    assert train(several.hub, data) == expected
    grown = resident() - before
    mallory.close()
    several.close()
    assert grown < 40 << 20, f"{grown:,} bytes"


def test_a_connection_takes_little_memory():
    """Of the server, for its buffers: what the formula has for each."""
    names = [f"client {number}" for number in range(3, 43)]
    several = Several([], names)
    code = (
        "import sys, time\n"
        "from tests.network.callers import Caller\n"
        "from tests.network.wiring import hello_of\n"
        "callers = []\n"
        "for name in sys.argv[2:]:\n"
        "    callers.append(Caller(int(sys.argv[1])))\n"
        "    callers[-1].send(hello_of(name))\n"
        "    callers[-1].receive()\n"
        "print('all', flush=True)\n"
        "sys.stdin.read()\n"
    )
    before = resident()
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, "-c", code, str(several.port), *names],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout.readline() == b"all\n"
        assert not several.hub.wait_for_all(names, 10, lambda: False)  # the last is welcome before it counts as there
        each = (resident() - before) / len(names)
    finally:
        process.communicate()
        several.close()
    assert each < EACH_CONNECTION / 10, f"{each:,.0f} bytes for a connection"


def test_answers_are_owed_for_one_message_at_a_time():
    """A message of a client is read when it is asked for, so that the rest waits at the client's own end."""
    several = Several([], ["mallory"])
    caller = Caller(several.port)
    caller.send(hello_of("mallory"), *[Done("mallory", 1, number) for number in range(1, 100)])
    caller.receive()
    for number in (1, 2):
        assert [each.sequence for each in several.hub.exchange([Save("mallory", 1, number, -1)], 5)] == [number]
    caller.close()
    several.close()
