"""Three machines on one: a network namespace each, joined by a bridge in a fourth one."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOSTS = Path("/etc/netns")
"""Where `ip netns exec` looks for files that a namespace has in place of those in /etc."""


def ip(*arguments):
    subprocess.run(["ip", *map(str, arguments)], check=True, capture_output=True)  # noqa: S603, S607


class Machines:
    """Machines with these names, each with a folder; `bank.example` is the name of the first in the network."""

    def __init__(self, folder, names):
        self.folder, self.names = folder, names
        self._prefix = f"vf{os.getpid()}"
        self.hosts = {f"{name}.example": f"10.99.0.{k}" for k, name in enumerate(names, 1)}
        self._processes = []

    def __enter__(self):
        if os.geteuid() or not shutil.which("ip"):
            pytest.skip("network namespaces need root and iproute2")
        try:
            self._connect()
        except (subprocess.CalledProcessError, OSError) as error:
            self.__exit__()
            pytest.skip(f"network namespaces cannot be made here: {getattr(error, 'stderr', error)!r}")
        for name in self.names:
            (self.folder / name).mkdir()
        return self

    def _connect(self):
        switch = f"{self._prefix}-net"
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "link", "set", "bridge", "up")
        lines = "".join(f"{address} {host}\n" for host, address in self.hosts.items())
        for name, address in zip(self.names, self.hosts.values(), strict=True):
            space = self._space(name)
            ip("netns", "add", space)
            ip("-n", space, "link", "add", "eth0", "type", "veth", "peer", "name", name, "netns", switch)
            ip("-n", switch, "link", "set", name, "master", "bridge", "up")
            ip("-n", space, "addr", "add", f"{address}/24", "dev", "eth0")
            ip("-n", space, "link", "set", "eth0", "up")
            ip("-n", space, "link", "set", "lo", "up")
            (HOSTS / space).mkdir(parents=True)
            (HOSTS / space / "hosts").write_text(f"127.0.0.1 localhost\n{lines}", encoding="ascii")

    def __exit__(self, *_):
        for process in self._processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        for name in (*self.names, "net"):
            subprocess.run(["ip", "netns", "del", self._space(name)], check=False, capture_output=True)  # noqa: S603, S607
            shutil.rmtree(HOSTS / self._space(name), ignore_errors=True)

    def _space(self, name):
        return f"{self._prefix}-{name}"

    def start(self, machine, *arguments, output=subprocess.PIPE):
        """Start `verfedsv` with these arguments on a machine, in its folder; return the process, as text."""
        command = ["ip", "netns", "exec", self._space(machine), sys.executable, "-m", "verfedsv", *map(str, arguments)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1", "COLUMNS": "120"}
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.PIPE if output == subprocess.PIPE else subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder / machine,
            env=environment,
        )
        self._processes.append(process)
        return process

    def run(self, machine, *arguments, answer="", timeout=60):
        """Return the exit code of a command and what it prints, after an answer to what it asks."""
        process = self.start(machine, *arguments)
        text, _ = process.communicate(answer, timeout=timeout)
        return process.returncode, text
