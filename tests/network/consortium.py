"""A consortium of real processes on loopback: a server and clients that can be killed and started again."""

import contextlib
import os
import resource
import signal
import socket
import subprocess
import sys
import time

import numpy as np

import verfedsv
from verfedsv.network.label_file import ORDER_KEY

N_SAMPLES = 240
ORDER = bytes(range(32))
"""The key of the order of samples, so that trainings can be compared."""


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def write_csv(path, ids, columns, rng, **named):
    """Write a file with a column of ids, some of numbers, and others by name."""
    numbers = {f"{path.stem} {k}": rng.standard_normal(len(ids)).round(6) for k in range(columns)} | named
    lines = [",".join(["id", *numbers])]
    lines += [",".join([str(own), *(str(column[row]) for column in numbers.values())]) for row, own in enumerate(ids)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


class Consortium:
    """A server with the labels and own columns, `bank`, and other clients, in a folder.

    Every process has a log there. `training` has settings of [training], `server` of [server], `data` of [data].
    """

    def __init__(
        self, folder, clients=("telco", "shop"), *, training=None, server=None, data=None, extra="", is_witnessed=False
    ):
        self.folder, self.clients, self.port, self._is_witnessed = folder, clients, free_port(), is_witnessed
        folder.mkdir(parents=True, exist_ok=True)
        rng, ids = np.random.default_rng(0), np.arange(N_SAMPLES)
        labels = rng.integers(0, 2, N_SAMPLES)
        write_csv(folder / "bank.csv", ids, 3, rng, label=labels)
        for name in clients:
            write_csv(folder / f"{name}.csv", ids, 3, rng)
        training = {"batch_size": 40, "rate": 0.3, "rounds": 400, "evaluate_every": 50} | (training or {})
        server = {"address": f"127.0.0.1:{self.port}", "deadline": 60.0} | (server or {})
        data = {"label_client": "bank", "label": "label", "aligned": True} | (data or {})
        self.is_aligned = data["aligned"]
        own = '[[client]]\nname = "bank"\nfile = "bank.csv"\n' + ("" if data["aligned"] else 'id = "id"\n')
        others = "".join(f'[[client]]\nname = "{name}"\n' for name in clients)
        tables = {"server": server, "data": data, "training": training, "output": {"folder": "run"}}
        written = "".join(f"[{name}]\n{toml(content)}" for name, content in tables.items())
        self.config = folder / "consortium.toml"
        self.config.write_text(written + own + others + extra, encoding="utf-8")
        self.run = folder / "run"
        if not self.is_aligned:
            self.give_key(ORDER)
        self.processes, self._number = {}, 0

    def give_key(self, key):
        """Give the server the key of the order of samples, before it begins."""
        private = self.folder / "run.private"
        private.mkdir(mode=0o700, exist_ok=True)
        (private / ORDER_KEY).write_bytes(key)

    def start(self, name, *options, largest_file=None, is_insecure=True):
        """Start the server (`serve`) or a client, in a process of its own, whose files may have so many bytes.

        If it is witnessed (see `witness`), what it sends is noted in a file, and its wall clock jumps.
        """
        command = [sys.executable, "-m", "tests.network.witness" if self._is_witnessed else "verfedsv"]
        if name == "serve":
            command += ["serve", str(self.config), *["--insecure"] * is_insecure]
        else:
            command += ["join", f"127.0.0.1:{self.port}", "--features", str(self.folder / f"{name}.csv")]
            command += ["--name", name, "--insecure", "--folder", str(self.folder / f"of-{name}")]
            command += ["--aligned"] * self.is_aligned
        self._number += 1
        log = self.folder / f"{name}-{self._number}.log"
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "200"}
        if self._is_witnessed:
            environment |= {"VERFEDSV_WITNESS": str(self.noted_path(name)), "VERFEDSV_JUMPS": str(self._number)}

        with log.open("wb") as file:
            process = subprocess.Popen(  # noqa: S603
                [*command, *options], stdout=file, stderr=subprocess.STDOUT, env=environment
            )
        if largest_file is not None:
            resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (largest_file, largest_file))
        self.processes[name] = process, log
        return process

    def noted_path(self, name):
        """Return the file of what a client sent."""
        return self.folder / f"{name}-noted.jsonl"

    def start_all(self):
        for name in ("serve", *self.clients):
            self.start(name)

    def log(self, name):
        return self.processes[name][1].read_text(encoding="utf-8")

    def n_bytes(self):
        """Return how large the transcript is."""
        total = 0
        for path in (self.run / "transcript").glob("*"):
            with contextlib.suppress(FileNotFoundError):  # a temporary file, which has got its name
                total += path.stat().st_size
        return total

    def wait_for(self, is_so, timeout=90):
        """Wait until a function returns True."""
        end = time.monotonic() + timeout
        while not is_so():
            assert time.monotonic() < end, {name: self.log(name) for name in self.processes}
            time.sleep(0.01)

    def kill(self, name, number=signal.SIGKILL):
        process, _ = self.processes[name]
        process.send_signal(number)
        process.wait(60)

    def is_over(self, name):
        return self.processes[name][0].poll() is not None

    def finish(self, timeout=120):
        """Wait until all processes have ended, and return their exit codes by name."""
        self.wait_for(lambda: all(self.is_over(name) for name in self.processes), timeout)
        return {name: process.returncode for name, (process, _) in self.processes.items()}

    def stop(self):
        """Kill what still runs."""
        for process, _ in self.processes.values():
            if process.poll() is None:
                process.kill()
                process.wait()

    def records(self):
        """Return what was recorded, as plain values."""
        found = []
        for record in verfedsv.Transcript.open(self.run).records():
            content = {name: getattr(record, name) for name in record.__dataclass_fields__}
            found.append([type(record).__name__, *(_plain(value) for value in content.values())])
        return found


def toml(settings):
    """Return settings as lines of TOML, without those that are None."""
    shown = {True: "true", False: "false"}
    return "".join(
        f"{name} = {shown[value] if isinstance(value, bool) else repr(value).replace(chr(39), chr(34))}\n"
        for name, value in settings.items()
        if value is not None
    )


def _plain(value):
    return value.tolist() if isinstance(value, np.ndarray) else value
