"""All parties of a consortium as processes on this machine, with certificates of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Any, Literal, NamedTuple, Self

from verfedsv.errors import InputError
from verfedsv.network.authority import new_authority
from verfedsv.network.belonging import training_of
from verfedsv.network.requests import new_request, read_request
from verfedsv.network.serving import NetworkRun

_HOST = "127.0.0.1"
_GRACE = 30.0
"""Seconds that a process has to end by itself."""


State = Literal["running", "waiting", "connected", "done", "failed"]
"""Of a party's process. A client is waiting until the server has let it in, and after it has lost the connection."""


class PartyState(NamedTuple):
    """A party's name, how its process is, and the last line that it printed."""

    name: str
    state: State
    said: str


class Consortium:
    """The server, and the clients named in [up] of a configuration, as processes; use it as a context.

    `update` is what the server printed after the last evaluation, as `verfedsv serve --json` does, and `stage` how far
    alignment or valuation is.
    """

    update: Mapping[str, Any] = MappingProxyType({})
    stage: Mapping[str, Any] = MappingProxyType({})

    def __init__(self, config: Path, run: NetworkRun) -> None:
        self._config, self._run = config, run
        self.folder = run.private
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self._last: dict[str, str] = {}
        self._connected: set[str] = set()

    def __enter__(self) -> Self:
        keys = self.folder / "keys"
        names = self._run.others
        self._check_folders()
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        make_keys(keys, names)
        address = f"{_HOST}:{_free_port()}"
        command = [sys.executable, "-m", "verfedsv"]
        self._start(
            "server", [*command, "serve", str(self._config), "--address", address, "--keys", str(keys), "--json"]
        )
        up = self._run.config.up
        for name, file in {} if up is None else up.features.items():
            own = keys / file_name(names, name)
            options = ["--features", str(file), "--id", up.id if up else "id", "--name", name]
            options += ["--certificate", f"{own}.crt", "--key", f"{own}.key", "--ca", str(keys / "ca.crt")]
            options += ["--folder", str(self._folder_of(name))]
            if self._run.config.data.aligned:
                options.append("--aligned")
            self._start(name, [*command, "join", address, *options])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all processes, the server first, so that it can save where it is; pressing Ctrl-C again kills them."""
        try:
            for name, process in self._processes.items():
                if process.poll() is None:
                    process.send_signal(signal.SIGINT if name == "server" else signal.SIGTERM)
                    with suppress(subprocess.TimeoutExpired):
                        process.wait(_GRACE)
        finally:
            for process in self._processes.values():
                if process.poll() is None:
                    process.kill()

    def _folder_of(self, name: str) -> Path:
        return self.folder / file_name(self._run.others, name)

    def _check_folders(self) -> None:
        """Raise InputError if clients hold models of a run that is not in the folder of the run any more."""
        held = {training_of(self._folder_of(name)) for name in self._run.others}
        if held - {"", self._run.identity}:
            raise InputError(
                f"{self.folder} holds the models of clients of a run that is not in {self._run.folder}: put that back, "
                f"or delete {self.folder} to begin anew"
            )

    def _start(self, name: str, command: list[str]) -> None:
        # Clients share one machine, where threads of their matrix products wait for each other: with 4 clients on two
        # cores, 3.65 instead of 3.24 ms for an iteration of 2,000 samples.
        alone = {} if name == "server" else {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
        # In a session of its own: Ctrl-C in the terminal is for this process, which ends the others in order.
        process = subprocess.Popen(  # noqa: S603  # of this program
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            env={**alone, **os.environ},
        )
        self._processes[name], self._last[name] = process, "starting"
        threading.Thread(target=self._follow, args=(name, process), daemon=True).start()

    def _follow(self, name: str, process: subprocess.Popen[str]) -> None:
        """Keep the last line that a process prints, and write all of them to its log."""
        with (self.folder / f"{file_name(('server', *self._run.others), name)}.log").open("a", encoding="utf-8") as log:
            for line in process.stdout or ():
                log.write(line)
                log.flush()
                text = line.strip()
                if name == "server" and text.startswith("{"):
                    text = self._read(json.loads(text))
                if text:
                    self._last[name] = text

    def _read(self, found: dict[str, Any]) -> str:
        """Take a line of the server's JSON; return the event that it is about, if any."""
        if "round" in found:
            self.update = found
        elif "stage" in found:
            self.stage = found
        self._connected = set(found.get("connected", self._connected))
        event = str(found.get("event", ""))
        return f"{found['time']} {event}" if event else ""

    def wait(self, should_stop: Callable[[], bool]) -> bool:
        """Wait until all have ended, or one has failed, or told to stop; return whether all is well."""
        while not should_stop():
            codes = [process.poll() for process in self._processes.values()]
            if all(code == 0 for code in codes):
                return True
            if any(codes):
                return False
            time.sleep(0.1)
        return False

    def explain(self) -> str:
        """Return what a process that failed has said."""
        failed = [name for name, process in self._processes.items() if process.poll()]
        said = "; ".join(f"{name}: {self._last[name].removeprefix('error: ')}" for name in failed)
        return f"{said}. Logs are in {self.folder}"

    def parties(self) -> list[PartyState]:
        """Return how each process is, the server first."""
        return [
            PartyState(name, self._describe(name, process.poll()), self._last[name])
            for name, process in self._processes.items()
        ]

    def _describe(self, name: str, code: int | None) -> State:
        if code is not None:
            return "failed" if code else "done"
        if name == "server":
            return "running"
        return "connected" if name in self._connected else "waiting"


def file_name(names: tuple[str, ...], name: str) -> str:
    """Return the name of a party's files: its own if that can be one, else with its number.

    >>> file_name(("telco", "../shop"), "telco"), file_name(("telco", "../shop"), "../shop")
    ('telco', 'client-2')
    """
    is_plain = name.replace("-", "").replace("_", "").isalnum() and name.isascii() and len(name) <= 64
    return (
        name
        if (is_plain and name not in ("ca", "server", "client")) or name == "server"
        else (f"client-{names.index(name) + 1}")
    )


def make_keys(folder: Path, names: tuple[str, ...]) -> None:
    """Make an authority and certificates for a server on loopback and these clients, unless they are there."""
    if folder.exists():
        return
    part = folder.with_name(f"{folder.name}.part")  # only what is complete gets the name
    shutil.rmtree(part, ignore_errors=True)
    authority = new_authority(part)
    key = authority.read_key(lambda _: b"")
    for name, own, hosts in [("server", "server", (_HOST,)), *((name, file_name(names, name), ()) for name in names)]:
        new_request(part / own, name if name != "server" else "server", hosts)
        authority.approve(read_request(part / f"{own}.csr"), key, part / f"{own}.crt")
    part.rename(folder)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((_HOST, 0))
        return int(listener.getsockname()[1])
