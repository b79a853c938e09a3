"""Training over a network: its messages beside a bare gRPC echo of the same bytes.

All of it with mutual TLS on the loopback address, the server and each client in a process of its own. The bare echo has
a server and clients of `grpc.aio`, which send bytes that were made before and do nothing else.
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
from pathlib import Path
from threading import Thread
from typing import Any

import grpc
import numpy as np
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


@dataclass(frozen=True)
class Traffic:
    """The bytes of an iteration, by the message they are."""

    embed: bytes
    embeddings: bytes
    gradients: bytes
    done: bytes

    @classmethod
    def of_iteration(cls) -> Traffic:
        """Return those of 2,000 samples with embeddings of one float."""
        about, column = ("client", 1000, 1000), np.random.default_rng(0).standard_normal((N_SAMPLES, 1))
        messages: list[Message] = [Embed(*about, np.arange(N_SAMPLES)), Embeddings(*about, column)]
        messages += [Gradients(*about, None, column), Done(*about)]
        return cls(*(b"".join(frames(to_bytes(message))) for message in messages))


# Ours


def client_of(name: str) -> Client:
    """Return a client with columns of zeros and ones."""
    features = (np.random.default_rng(0).random((N_ROWS, N_COLUMNS)) < 0.1).astype(float)
    return Client(name, features, Linear(N_COLUMNS, 1), Rate(0.1))


def attend(address: str, keys: Path, name: str) -> None:
    """Be a client, in a process of its own."""
    own = read_credentials(keys / f"{name}.crt", keys / f"{name}.key", keys / "ca.crt", "client", passphrase=None)
    client = client_of(name)
    hello = Hello(name, 0, 0, PROTOCOL, "0", name, f"of {name}", time.time(), "train", "", "")
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
    """Ask these clients for embeddings, and then to learn from gradients."""
    number, batch, values = next(numbers), np.arange(N_SAMPLES), np.zeros((N_SAMPLES, 1))
    answers = hub.exchange([Embed(name, number, 2 * number, batch) for name in names], 60.0)
    answers += hub.exchange([Gradients(name, number, 2 * number + 1, None, values) for name in names], 60.0)
    if sum(isinstance(answer, Embeddings | Done) for answer in answers) < 2 * len(names):
        raise ArithmeticError(f"{answers}")


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


def attend_echo(address: str, keys: Path, name: str, *, works: bool = False) -> None:
    """Be a client of the bare echo, in a process of its own; if it `works`, it also takes the step of a client."""
    own = [(keys / file).read_bytes() for file in ("ca.crt", f"{name}.key", f"{name}.crt")]
    traffic, client, numbers = Traffic.of_iteration(), client_of(name), count(1)
    batch, values = np.arange(N_SAMPLES), np.zeros((N_SAMPLES, 1))

    def work(number: int) -> None:
        if works:
            client.answer(Embed(name, number, 2 * number, batch))

    def learn(number: int) -> None:
        if works:
            client.answer(Gradients(name, number, 2 * number + 1, None, values))

    async def run() -> None:
        async with aio.secure_channel(address, grpc.ssl_channel_credentials(*own)) as channel:
            call = channel.stream_stream(_ECHO)()  # type: ignore[call-arg]
            await call.write(b"hello")
            for number in numbers:
                for content, task in ((traffic.embeddings, work), (traffic.done, learn)):
                    if await call.read() is aio.EOF:  # type: ignore[attr-defined]
                        return
                    task(number)
                    await call.write(content)

    asyncio.run(run())


def attend_working(address: str, keys: Path, name: str) -> None:
    """Be a client of the bare echo that takes steps."""
    attend_echo(address, keys, name, works=True)


def serve_echo(keys: Path, pipe: Connection) -> None:
    """Be the server of the bare echo, and measure what is asked for through the pipe."""
    asyncio.run(_serve_echo(keys, pipe))


async def _serve_echo(keys: Path, pipe: Connection) -> None:
    contexts: list[Any] = []
    traffic, is_over, all_there = Traffic.of_iteration(), asyncio.Event(), asyncio.Event()

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

    async def ask(context: Any, content: bytes) -> None:
        await context.write(content)
        await context.read()

    async def synchronous(n_iterations: int) -> list[float]:
        took = []
        for _ in range(n_iterations):
            begin = time.perf_counter()
            await asyncio.gather(*(ask(context, traffic.embed) for context in contexts))
            await asyncio.gather(*(ask(context, traffic.gradients) for context in contexts))
            took.append(time.perf_counter() - begin)
        return took

    async def per_second(duration: float) -> float:
        begin, counts = time.perf_counter(), [0] * len(contexts)

        async def repeat(m: int) -> None:
            while time.perf_counter() < begin + duration:
                await ask(contexts[m], traffic.embed)
                await ask(contexts[m], traffic.gradients)
                counts[m] += 1

        await asyncio.gather(*map(repeat, range(len(contexts))))
        return sum(counts) / (time.perf_counter() - begin)

    while (asked := await asyncio.to_thread(pipe.recv)) is not None:
        kind, amount = asked
        pipe.send(await (synchronous(amount) if kind == "synchronous" else per_second(amount)))
    is_over.set()
    await server.stop(1)


# Both


@contextmanager
def parties(keys: Path, serve: Callable[..., None], attend: Callable[..., None]) -> Iterator[Connection]:
    """Yield the pipe to a server whose clients are connected, all of them processes."""
    context = multiprocessing.get_context("spawn")
    pipe, other = context.Pipe()
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # as in `verfedsv up`: all share one machine
    processes = [context.Process(target=serve, args=(keys, other), daemon=True)]
    processes[0].start()
    address = pipe.recv()
    processes += [context.Process(target=attend, args=(address, keys, name), daemon=True) for name in NAMES]
    for process in processes[1:]:
        process.start()
    pipe.recv()
    try:
        yield pipe
    finally:
        pipe.send(None)
        for process in processes:
            process.join(10)
            process.kill()


def _ask(pipe: Connection, kind: str, amount: float) -> Any:
    pipe.send((kind, amount))
    return pipe.recv()


def of_messages() -> dict[str, NDArray[np.float64]]:
    """Return, of ours, the echo and the echo whose clients work, (3, blocks) each: seconds, steps a second, and loads.

    Seconds are medians and 95 % quantiles of synchronous iterations.
    """
    kinds = (serve, attend), (serve_echo, attend_echo), (serve_echo, attend_working)
    medians, tails, steps = np.empty((3, len(kinds), N_BLOCKS))
    loads = []
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        keys = Path(name) / "keys"
        make_keys(keys, NAMES)
        pipes = [stack.enter_context(parties(keys, *kind)) for kind in kinds]
        for pipe in pipes:
            _ask(pipe, "synchronous", _WARM_UP)
        for block in range(N_BLOCKS):
            for k, pipe in enumerate(pipes):
                took = _ask(pipe, "synchronous", N_ITERATIONS)
                medians[k, block], tails[k, block] = np.quantile(took, (0.5, 0.95))
            for k, pipe in enumerate(pipes):
                steps[k, block] = _ask(pipe, "asynchronous", BLOCK_SECONDS)
            loads.append(os.getloadavg()[0])
    return {"medians": medians, "tails": tails, "steps": steps, "loads": np.array(loads)}


def run() -> str:
    """Measure, and return the table in Markdown, and a line about the load."""
    found = of_messages()
    medians, tails = np.median(found["medians"], axis=1), np.median(found["tails"], axis=1)
    steps = np.median(found["steps"], axis=1)
    # Ratios of neighbours in time: others share the machine.
    longer = np.median(found["medians"] / found["medians"][1], axis=1)
    faster = np.median(found["steps"] / found["steps"][1], axis=1)
    names = "verfedsv: hub, link, clients", "bare gRPC echo", "the echo, its clients take steps"
    rows = [
        [name, *(f"{1e3 * took[k]:.2f} ms" for took in (medians, tails)), f"{longer[k]:.2f}"]
        for k, name in enumerate(names)
    ]
    for k, row in enumerate(rows):
        row += [f"{steps[k]:,.0f}", f"{faster[k]:.2f}"]
    header = ["", "synchronous iteration", "95 %", "of the echo's", "asynchronous steps a second", "of the echo's"]
    loads = found["loads"]
    return f"{table(header, rows)}\n\nThe load was {loads.min():.0f} to {loads.max():.0f}."


if __name__ == "__main__":
    print(run())
