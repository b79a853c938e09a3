"""Time messages between a ServerApp and four ClientApps of Flower: SuperLink and SuperNodes as processes, with TLS.

Run it by a Python that has flwr; arguments: the folder of certificates that `make_keys` made. Each message and each
reply carries 2,000 float64. `send_and_receive` looks for replies every 3 s; so that this is not what is measured, the
ServerApp pushes and pulls by itself, every 50 ms. Prints a line of JSON.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

N_CLIENTS, N_EXCHANGES = 4, 10

APP = """
import json
import os
import time

import numpy as np
from flwr.app import Array, ArrayRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

client = ClientApp()
server = ServerApp()


def content():
    return RecordDict({"arrays": ArrayRecord([np.zeros(2000)])})


@client.train()
def train(message: Message, context: Context) -> Message:
    return Message(content(), reply_to=message)


@server.main()
def main(grid: Grid, context: Context) -> None:
    path, n_clients, n_exchanges = (context.run_config[name] for name in ("path", "n-clients", "n-exchanges"))
    while len(nodes := list(grid.get_node_ids())) < n_clients:
        time.sleep(0.2)
    took = []
    for _ in range(1 + n_exchanges):
        begin = time.perf_counter()
        left = set(grid.push_messages([Message(content(), node, "train") for node in nodes]))
        while left:
            for reply in grid.pull_messages(left):
                if reply.has_error():
                    raise RuntimeError(str(reply.error))
                left.discard(reply.metadata.reply_to_message_id)
            if left:
                time.sleep(0.05)
        took.append(time.perf_counter() - begin)
        with open(path + ".part", "w") as file:
            json.dump({"seconds": took[1:], "finished": len(took) > n_exchanges}, file)
        os.rename(path + ".part", path)
"""
PROJECT = """[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"
[project]
name = "traffic"
version = "1.0.0"
description = "Messages"
license = "Apache-2.0"
dependencies = []
[tool.hatch.build.targets.wheel]
packages = ["."]
[tool.flwr.app]
publisher = "nobody"
[tool.flwr.app.components]
serverapp = "traffic.app:server"
clientapp = "traffic.app:client"
[tool.flwr.app.config]
path = "{path}"
n-clients = {n_clients}
n-exchanges = {n_exchanges}
"""


def free_port() -> int:
    """Return a port of the loopback address that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def write_app(folder: Path, result: Path) -> None:
    """Write a Flower app whose server asks and whose clients answer."""
    (folder / "traffic").mkdir(parents=True)
    (folder / "traffic" / "__init__.py").touch()
    (folder / "traffic" / "app.py").write_text(APP)
    settings = {"path": result, "n_clients": N_CLIENTS, "n_exchanges": N_EXCHANGES}
    (folder / "pyproject.toml").write_text(PROJECT.format(**settings))


def main(keys: Path) -> None:
    """Start everything, wait for the result, print it, stop everything."""
    programs, processes = Path(sys.executable).parent, []
    port = free_port()
    with tempfile.TemporaryDirectory() as name:
        folder, result = Path(name), Path(name) / "result.json"
        write_app(folder / "app", result)
        (folder / "home").mkdir()
        settings = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{port}"\n'
        (folder / "home" / "config.toml").write_text(f'{settings}root-certificates = "{keys / "ca.crt"}"\n')
        path = f"{programs}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0", "PATH": path}
        environment |= {"OPENBLAS_NUM_THREADS": "1"}

        def start(log: str, program: str, *arguments: str) -> None:
            with (folder / f"{log}.log").open("w") as file:
                command = [str(programs / program), *arguments]
                processes.append(
                    subprocess.Popen(  # noqa: S603
                        command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True
                    )
                )

        certificates = ["--ssl-certfile", f"{keys}/server.crt", "--ssl-keyfile", f"{keys}/server.key"]
        certificates += ["--ssl-ca-certfile", f"{keys}/ca.crt"]
        start(
            "superlink",
            "flower-superlink",
            "--port",
            str(port),
            *certificates,
            "--disable-runtime-dependency-installation",
        )
        try:
            time.sleep(10)
            for m in range(N_CLIENTS):
                options = ["--root-certificates", f"{keys}/ca.crt", "--superlink", f"127.0.0.1:{port}"]
                start(f"supernode-{m}", "flower-supernode", *options, "--port", str(free_port()), *certificates)
            time.sleep(10)
            done = subprocess.run(  # noqa: S603
                [str(programs / "flwr"), "run", str(folder / "app"), "here"],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            print(done.stdout[-1500:], done.stderr[-1500:], file=sys.stderr)
            done.check_returncode()
            end, found = time.monotonic() + 360, {}
            while not found.get("finished") and time.monotonic() < end:
                time.sleep(0.5)
                found = json.loads(result.read_text()) if result.exists() else {}
            if not found.get("seconds"):
                for log in folder.glob("*.log"):
                    print(log.name, log.read_text()[-3000:], file=sys.stderr)
                raise SystemExit("no result")
        finally:
            for process in reversed(processes):
                process.terminate()
            for process in processes:
                process.wait(30)
    took = sorted(found["seconds"])
    print(json.dumps({"exchange": took[len(took) // 2], "n": len(took), "slowest": took[-1], "load": os.getloadavg()}))


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve())
