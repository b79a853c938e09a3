"""Training over a network: its messages beside a bare gRPC echo of the same bytes.

All of it with mutual TLS on the loopback address, the server and each client in a process of its own. The bare echo has
a server and clients of `grpc.aio`, which send bytes that were made before and do nothing else: in one exchange, as
ours, or in two, with the gradients apart.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import numpy as np
import psutil
from grpc import aio
from numpy.typing import NDArray

from benchmarks.measure import table
from verfedsv.federation import Client, Linear, Rate
from verfedsv.federation.messages import Done, Embed, Embeddings, Gradients, Message
from verfedsv.network.admission import Allowed, Checker
from verfedsv.network.consortium import make_keys
from verfedsv.network.credentials import read_credentials
from verfedsv.network.hub import Hub
from verfedsv.network.link import Link
from verfedsv.network.messages import PROTOCOL, End, Hello
from verfedsv.network.wire import frames, to_bytes

N_SAMPLES = 2000
NAMES = tuple(f"client-{m}" for m in range(4))
N_ROWS, N_COLUMNS = 48_842, 31
"""Of each client in the synthetic part: those of Adult, split between four."""

N_BLOCKS, N_ITERATIONS, BLOCK_SECONDS = 15, 40, 1.0
"""Blocks of ours and of the echo, in turn; iterations of a synchronous one, seconds of an asynchronous one."""

_WARM_UP = 20
_ECHO = "/echo/Attend"


Exchanges = list[tuple[bytes, bytes]]
"""Requests, and the answers to them."""


def traffic(n_exchanges: int) -> Exchanges:
    """Return the bytes of an iteration, in one exchange or two: 2,000 samples with embeddings of one float."""
    about, column = ("client", 1000, 1000), np.random.default_rng(0).standard_normal((N_SAMPLES, 1))
    samples, step, upload = np.arange(N_SAMPLES), Gradients(*about, None, column), Embeddings(*about, column)
    pairs: list[tuple[Message, Message]] = [(Embed(*about, samples, step), upload)]
    if n_exchanges > 1:
        pairs = [(Embed(*about, samples), upload), (step, Done(*about))]
    return [(as_frames(request), as_frames(answer)) for request, answer in pairs]


def as_frames(message: Message) -> bytes:
    """Return a message as it is sent."""
    return b"".join(frames(to_bytes(message)))


# Ours


def client_of(name: str) -> Client:
    """Return a client with columns of zeros and ones."""
    features = (np.random.default_rng(0).random((N_ROWS, N_COLUMNS)) < 0.1).astype(float)
    return Client(name, features, Linear(N_COLUMNS, 1), Rate(0.1))


def attend(address: str, keys: Path, name: str) -> None:
    """Be a client, in a process of its own."""
    own = read_credentials(keys / f"{name}.crt", keys / f"{name}.key", keys / "ca.crt", "client", passphrase=None)
    client = client_of(name)
    hello = Hello(name, 0, 0, PROTOCOL, "0", name, f"of {name}", time.time(), "train", "", "", "")
    channel = grpc.ssl_channel_credentials(own.authorities, own.private_key, own.chain)
    Link(address, channel, lambda: hello, client.answer).run()


def serve(keys: Path, pipe: Connection) -> None:
    """Be the server, and measure what is asked for through the pipe."""
    own = read_credentials(keys / "server.crt", keys / "server.key", keys / "ca.crt", "server", passphrase=None)
    checker = Checker(own.authorities, Allowed.of({name: name for name in NAMES}), None)
    hub = Hub(NAMES, lambda peer: checker.check(peer or b""))
    pairs = [(own.private_key, own.chain)]
    port = hub.start("127.0.0.1:0", grpc.ssl_server_credentials(pairs, own.authorities, require_client_auth=True))
    pipe.send(f"127.0.0.1:{port}")
    hub.wait_for_all(NAMES, 60, lambda: False)
    pipe.send("ready")
    numbers = count(1)
    while (asked := pipe.recv()) is not None:
        kind, amount = asked
        pipe.send(
            _each(lambda: step(hub, NAMES, numbers), amount)
            if kind == "synchronous"
            else steps_per_second(hub, numbers, amount)
        )
    hub.stop(End("", 0, 0, "over", is_finished=True))


def step(hub: Hub, names: Sequence[str], numbers: Iterator[int]) -> None:
    """Let these clients learn from the gradients of their last upload, and upload again."""
    answers = hub.exchange([request(name, next(numbers)) for name in names], 60.0)
    if sum(isinstance(answer, Embeddings) for answer in answers) < len(names):
        raise ArithmeticError(f"{answers}")


def request(name: str, number: int) -> Embed:
    """Return the request of an iteration; the first has no upload to learn from. All rounds are round 1."""
    step = None if number <= len(NAMES) else Gradients(name, 1, number, None, np.zeros((N_SAMPLES, 1)))
    return Embed(name, 1, number, np.arange(N_SAMPLES), step)


def steps_per_second(hub: Hub, numbers: Iterator[int], duration: float) -> float:
    """Return how many steps a second the clients take, each asked by a thread of its own."""
    counts = dict.fromkeys(NAMES, 0)
    begin = time.perf_counter()

    def ask(name: str) -> None:
        while time.perf_counter() < begin + duration:
            step(hub, [name], numbers)
            counts[name] += 1

    threads = [Thread(target=ask, args=(name,)) for name in NAMES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts.values()) / (time.perf_counter() - begin)


def _each(function: Callable[[], object], n_calls: int) -> list[float]:
    took = []
    for _ in range(n_calls):
        begin = time.perf_counter()
        function()
        took.append(time.perf_counter() - begin)
    return took


# The bare echo


def attend_echo(address: str, keys: Path, name: str, *, n_exchanges: int = 1, works: bool = False) -> None:
    """Be a client of the bare echo, in a process of its own; if it `works`, it also takes the step of a client."""
    own = [(keys / file).read_bytes() for file in ("ca.crt", f"{name}.key", f"{name}.crt")]
    pairs, client, numbers = traffic(n_exchanges), client_of(name), count(1)
    client.answer(request(name, 1))

    async def run() -> None:
        async with aio.secure_channel(address, grpc.ssl_channel_credentials(*own)) as channel:
            call = channel.stream_stream(_ECHO)()  # type: ignore[call-arg]
            await call.write(b"hello")
            for number in numbers:
                for _, content in pairs:
                    if await call.read() is aio.EOF:  # type: ignore[attr-defined]
                        return
                    if works:
                        client.answer(request(name, len(NAMES) + number))
                    await call.write(content)

    asyncio.run(run())


def attend_working(address: str, keys: Path, name: str) -> None:
    """Be a client of the bare echo that takes steps."""
    attend_echo(address, keys, name, works=True)


def attend_twice(address: str, keys: Path, name: str) -> None:
    """Be a client of the bare echo with two exchanges in an iteration."""
    attend_echo(address, keys, name, n_exchanges=2)


def serve_echo(keys: Path, pipe: Connection) -> None:
    """Be the server of the bare echo, and measure what is asked for through the pipe."""
    asyncio.run(_serve_echo(keys, pipe, traffic(1)))


def serve_twice(keys: Path, pipe: Connection) -> None:
    """Be the server of the bare echo with two exchanges in an iteration."""
    asyncio.run(_serve_echo(keys, pipe, traffic(2)))


async def _serve_echo(keys: Path, pipe: Connection, pairs: Exchanges) -> None:
    contexts: list[Any] = []
    is_over, all_there = asyncio.Event(), asyncio.Event()

    async def handle(_: Any, context: Any) -> None:
        await context.read()
        contexts.append(context)
        if len(contexts) == len(NAMES):
            all_there.set()
        await is_over.wait()

    server = aio.server()
    handler = grpc.stream_stream_rpc_method_handler(handle)
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("echo", {"Attend": handler}),))
    key, chain, authority = ((keys / name).read_bytes() for name in ("server.key", "server.crt", "ca.crt"))
    credentials = grpc.ssl_server_credentials([(key, chain)], authority, require_client_auth=True)
    port = server.add_secure_port("127.0.0.1:0", credentials)
    await server.start()
    pipe.send(f"127.0.0.1:{port}")
    await all_there.wait()
    pipe.send("ready")

    while (asked := await asyncio.to_thread(pipe.recv)) is not None:
        kind, amount = asked
        measure = _echo_in_turn if kind == "synchronous" else _echoes_per_second
        pipe.send(await measure(contexts, pairs, amount))
    is_over.set()
    await server.stop(1)


async def _echo(context: Any, content: bytes) -> None:
    await context.write(content)
    await context.read()


async def _echo_in_turn(contexts: list[Any], pairs: Exchanges, n_iterations: int) -> list[float]:
    """Return the seconds of iterations with all clients."""
    took = []
    for _ in range(n_iterations):
        begin = time.perf_counter()
        for content, _ in pairs:
            await asyncio.gather(*(_echo(context, content) for context in contexts))
        took.append(time.perf_counter() - begin)
    return took


async def _echoes_per_second(contexts: list[Any], pairs: Exchanges, duration: float) -> float:
    """Return how many steps a second the clients take, each at its own pace."""
    begin, counts = time.perf_counter(), [0] * len(contexts)

    async def repeat(m: int) -> None:
        while time.perf_counter() < begin + duration:
            for content, _ in pairs:
                await _echo(contexts[m], content)
            counts[m] += 1

    await asyncio.gather(*map(repeat, range(len(contexts))))
    return sum(counts) / (time.perf_counter() - begin)


# Both


@dataclass(frozen=True)
class Parties:
    """A server and its clients, connected: processes, and the pipe to the server, which comes first."""

    processes: list[BaseProcess]
    pipe: Connection

    def ask(self, kind: str, amount: float) -> Any:
        """Return what the server measures."""
        self.pipe.send((kind, amount))
        return self.pipe.recv()

    def processor(self) -> NDArray[np.float64]:
        """Return the seconds that the processor has spent on the server, and on all clients."""
        server, *clients = (sum(psutil.Process(each.pid).cpu_times()[:2]) for each in self.processes)
        return np.array([server, sum(clients)])


@contextmanager
def parties(keys: Path, serve: Callable[..., None], attend: Callable[..., None]) -> Iterator[Parties]:
    """Yield a server whose clients are connected, all of them processes."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as in `verfedsv up`: all share one machine
    processes: list[BaseProcess] = [context.Process(target=serve, args=(keys, other), daemon=True)]
    processes[0].start()
    address = pipe.recv()
    processes += [context.Process(target=attend, args=(address, keys, name), daemon=True) for name in NAMES]
    for process in processes[1:]:
        process.start()
    pipe.recv()
    try:
        yield Parties(processes, pipe)
    finally:
        pipe.send(None)
        for process in processes:
            process.join(10)
            process.kill()


KINDS = {
    "verfedsv: hub, link, clients": (serve, attend),
    "bare gRPC echo": (serve_echo, attend_echo),
    "the echo, its clients take steps": (serve_echo, attend_working),
    "bare gRPC echo, in two exchanges": (serve_twice, attend_twice),
}


def of_messages() -> dict[str, NDArray[np.float64]]:
    """Return, of each of `KINDS`, (kinds, blocks): seconds, steps a second, their processor time, and loads.

    Seconds are medians and 95 % quantiles of synchronous iterations. Processor time is of an asynchronous step, by the
    server and by the client, (kinds, blocks, 2).
    """
    kinds = [*KINDS.values()]
    medians, tails, steps = np.empty((3, len(kinds), N_BLOCKS))
    spent = np.empty((len(kinds), N_BLOCKS, 2))
    loads = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        keys = Path(name) / "keys"
        make_keys(keys, NAMES)
        all_parties = [stack.enter_context(parties(keys, *kind)) for kind in kinds]
        for each in all_parties:
            each.ask("synchronous", _WARM_UP)
        for block in range(N_BLOCKS):
            for k, each in enumerate(all_parties):
                took = each.ask("synchronous", N_ITERATIONS)
                medians[k, block], tails[k, block] = np.quantile(took, (0.5, 0.95))
            for k, each in enumerate(all_parties):
                before = each.processor()
                steps[k, block] = each.ask("asynchronous", BLOCK_SECONDS)
                spent[k, block] = (each.processor() - before) / (steps[k, block] * BLOCK_SECONDS)
            loads.append(os.getloadavg()[0])
    return {"medians": medians, "tails": tails, "steps": steps, "spent": spent, "loads": np.array(loads)}


def run() -> str:
    """Measure, and return the table in Markdown, and a line about the load."""
    found = of_messages()
    medians, tails = np.median(found["medians"], axis=1), np.median(found["tails"], axis=1)
    steps = np.median(found["steps"], axis=1)
    # Ratios of neighbours in time: others share the machine.
    longer = np.median(found["medians"] / found["medians"][1], axis=1)
    faster = np.median(found["steps"] / found["steps"][1], axis=1)
    rows = [
        [name, *(f"{1e3 * took[k]:.2f} ms" for took in (medians, tails)), f"{longer[k]:.2f}"]
        for k, name in enumerate(KINDS)
    ]
    for k, row in enumerate(rows):
        row += [f"{steps[k]:,.0f}", f"{faster[k]:.2f}"]
    header = ["", "synchronous iteration", "95 %", "of the echo's", "asynchronous steps a second", "of the echo's"]
    spent, loads = np.median(found["spent"], axis=1), found["loads"]
    of_processor = [
        [name, *(f"{1e3 * part:.2f} ms" for part in (*own, own.sum())), f"{spent[1].sum() / own.sum():.2f}"]
        for name, own in zip(KINDS, spent, strict=True)
    ]
    of_step = ["an asynchronous step, processor time", "server", "client", "together", "echo / this"]
    return (
        f"{table(header, rows)}\n\n{table(of_step, of_processor)}\n\n"
        f"The load was {loads.min():.0f} to {loads.max():.0f}."
    )


if __name__ == "__main__":
    print(run())
