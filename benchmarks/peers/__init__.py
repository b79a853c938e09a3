"""The same traffic in other frameworks. Each is run by a Python of its own that has the framework."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from pathlib import Path

from benchmarks.measure import seconds, table
from verfedsv.network.consortium import make_keys

SCRIPTS = {
    "NVFlare": ("VERFEDSV_NVFLARE_PYTHON", "nvflare_messages.py"),
    "Flower": ("VERFEDSV_FLOWER_PYTHON", "flower_messages.py"),
}
"""By name: the environment variable with the path of a Python that has the framework, and the script."""

N_ROUNDS = 240
"""Of the training of Adult, which the last column extrapolates to."""


def are_there() -> bool:
    """Return whether any of the other frameworks can be measured."""
    return any(variable in os.environ for variable, _ in SCRIPTS.values())


def run() -> str:
    """Measure those that are there, and return the table in Markdown."""
    rows = []
    for name, (variable, script) in SCRIPTS.items():
        python = os.environ.get(variable)
        if python is None:
            print(f"  {name} is skipped: {variable} does not name a Python that has it")
            rows.append([name, "not measured", "", ""])
            continue
        with tempfile.TemporaryDirectory() as folder:
            keys = Path(folder) / "keys"
            make_keys(keys, ("client-0",))
            command = [python, str(Path(__file__).with_name(script)), str(keys)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=folder)  # noqa: S603
        found = json.loads(done.stdout.splitlines()[-1])
        shown = f"{found['load'][0]:.0f}"
        rows.append([name, seconds(found["exchange"]), shown, seconds(N_ROUNDS * found["exchange"])])
    return table(["", "one exchange with 4 clients", "load", f"{N_ROUNDS} of them"], rows)


if __name__ == "__main__":
    print(run())
