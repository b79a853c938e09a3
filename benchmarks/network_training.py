"""A whole training of Adult over mutual TLS, with real processes, beside the same in one process.

Both read the same files, whose rows are in the same order, record, evaluate every 20 rounds, and save checkpoints.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.measure import seconds, table
from verfedsv.data import load
from verfedsv.network.consortium import make_keys
from verfedsv.network.messages import End
from verfedsv.network.serving import NetworkRun
from verfedsv.runs import Run

NAMES = tuple(f"client-{m}" for m in range(4))
N_REPETITIONS = 5
CONFIG = """[data]
aligned = true
label = "label"
label_client = "holder"
test = 0.333
[training]
batch_size = 2837
rate = 0.2
epochs = 20
[output]
folder = "{folder}"
[[client]]
name = "holder"
file = "holder.csv"
"""
NETWORK = '[server]\naddress = "127.0.0.1:0"\ncertificate = "x"\nkey = "x"\nauthority = "x"\n[up]\nid = "id"\n'


def write_files(folder: Path) -> None:
    """Write a file for the holder of the labels and for each client, with its part of Adult's columns."""
    samples = load("adult")
    columns, ids = samples.features.toarray().astype(int), np.arange(len(samples.labels))
    edges = np.linspace(0, columns.shape[1], len(NAMES) + 1).astype(int)
    parts = {"holder": (["label"], samples.labels[:, np.newaxis])}
    for name, (a, b) in zip(NAMES, pairwise(edges), strict=True):
        parts[name] = [f"column {k}" for k in range(a, b)], columns[:, a:b]
    for name, (header, part) in parts.items():
        content = np.column_stack([ids, part])
        np.savetxt(folder / f"{name}.csv", content, "%d", ",", header=",".join(["id", *header]), comments="")


def write_configs(folder: Path, number: int) -> tuple[Path, Path]:
    """Return the configurations of a training in one process and over a network."""
    alone, remote = folder / f"alone-{number}.toml", folder / f"remote-{number}.toml"
    files = "".join(f'[[client]]\nname = "{name}"\nfile = "{name}.csv"\n' for name in NAMES)
    alone.write_text(CONFIG.format(folder=alone.stem) + files, encoding="utf-8")
    names = "".join(f'[[client]]\nname = "{name}"\n' for name in NAMES)
    features = "".join(f'{name} = "{name}.csv"\n' for name in NAMES)
    remote.write_text(CONFIG.format(folder=remote.stem) + names + NETWORK + f"[up.features]\n{features}", "utf-8")
    return alone, remote


def train(run: Run) -> tuple[float, float]:
    """Train and record; return the seconds of all rounds but the first, and those from reading the files on."""
    times = [time.perf_counter(), *(time.perf_counter() for _ in run.train())]
    return times[-1] - times[1], times[-1] - times[0]


@contextmanager
def connected(config: Path, folder: Path) -> Iterator[NetworkRun]:
    """Yield a run whose clients are processes of their own, and are there."""
    run, keys = NetworkRun.of_file(config), folder / f"{config.stem}-keys"
    make_keys(keys, NAMES)
    run.listen_at("127.0.0.1:0", keys)
    address = f"127.0.0.1:{run.open(*run.credentials(None))}"
    processes = []
    for name in NAMES:
        command = [sys.executable, "-m", "verfedsv", "join", address, "--features", f"{name}.csv", "--name", name]
        command += ["--aligned", "--certificate", str(keys / f"{name}.crt"), "--folder", f"{config.stem}-of-{name}"]
        environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        processes.append(subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL))  # noqa: S603
    try:
        run.gather(60.0, lambda: False)
        run.align()
        yield run
    finally:
        run.close(End("", 0, 0, "over", is_finished=True))
        for process in processes:
            process.wait(30)


def measure() -> NDArray[np.float64]:
    """Return seconds, (repetitions, 2, 2): in one process and over the network, in turn; as `train` returns them."""
    found = np.empty((N_REPETITIONS, 2, 2))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(folder)
        for number in range(N_REPETITIONS):
            alone, remote = write_configs(folder, number)
            found[number, 0] = train(Run.of_file(alone))
            with connected(remote, folder) as run:
                found[number, 1] = train(run)
            print(f"  {found[number].round(2).tolist()}", flush=True)
    return found


def run() -> str:
    """Measure, and return the table in Markdown."""
    found = measure()
    rows = []
    for number, what in enumerate(
        ["239 rounds, recorded and evaluated", "the same, with reading files and the first round"]
    ):
        (alone, remote), ratio = (
            np.median(found[:, :, number], axis=0),
            np.median(found[:, 1, number] / found[:, 0, number]),
        )
        rows.append([what, seconds(alone), seconds(remote), f"{ratio:.1f}"])
    return table(["Adult, 20 epochs, 4 clients", "in one process", "mutual TLS, 5 processes", "times as long"], rows)


if __name__ == "__main__":
    print(run(), os.getloadavg())
