"""A run that one processor began is gone on with on another.

Loops are compiled for the processor they run on, and sums then round differently. A second process compiles them for
any processor of this kind ("generic"), without the instructions that this one has beyond that.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.cli.inprocess import call
from verfedsv import Transcript, Valuation

ROOT = Path(__file__).parents[2]
CACHE = ROOT / ".venv" / "numba-generic"  # that of `make processor`, so that loops are compiled once

SYNCHRONOUS = """[data]
label = "y"
label_client = "bank"
test = 0

[training]
batch_size = 40
rate = 0.5
rounds = 12
intercept = true

[[client]]
name = "bank"
file = "bank.csv"

[[client]]
name = "telco"
file = "telco.csv"

[output]
folder = "NAME"
"""
ASYNCHRONOUS = SYNCHRONOUS.replace("rounds = 12", "mode = 'asynchronous'\nduration = 0.5")

ELSEWHERE = """
import itertools, json, sys
from tests.cli.inprocess import call
from verfedsv import Recorder

def carry_out(*command):
    done = call(*command)
    assert done.returncode == 0, (command, done)

class Killed(Exception):
    pass

for command in json.loads(sys.argv[1]):
    carry_out(*command)

count = itertools.count(1)
def killed(write):
    def wrapped(*arguments, **options):
        write(*arguments, **options)
        if next(count) == 8:
            raise Killed
    return wrapped
for name in ("log", "update"):
    setattr(Recorder, name, killed(getattr(Recorder, name)))
try:
    call("run", "cut.toml")
except Killed:
    sys.exit(0)
sys.exit("was not killed")
"""


def elsewhere(folder: Path, *commands: tuple[str, ...]) -> None:
    """Carry out commands in a process that compiles for another processor; finally, kill the run `cut.toml`."""
    environment = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "", "NUMBA_CACHE_DIR": str(CACHE)}
    done = subprocess.run(  # noqa: S603  # our own script
        [sys.executable, "-c", ELSEWHERE, json.dumps(commands)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=os.environ | environment | {"PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, sys.path)])},
    )
    assert done.returncode == 0, done.stderr
    assert list(CACHE.rglob("*.nbi"))


def write_data(folder: Path) -> None:
    """Write the columns of two clients about the same 120 people."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(120, 4))
    y = x @ [2.0, -1.0, 1.0, 0.5] + rng.normal(size=120) > 0
    bank = [f"{i},{int(y[i])},{x[i, 0]},{x[i, 1]}" for i in range(120)]
    telco = [f"{i},{x[i, 2]},{x[i, 3]}" for i in range(120)]
    (folder / "bank.csv").write_text("\n".join(["id,y,income,age", *bank]))
    (folder / "telco.csv").write_text("\n".join(["id,calls,months", *telco]))


@pytest.mark.parametrize("text", [SYNCHRONOUS, ASYNCHRONOUS], ids=["synchronous", "asynchronous"])
def test_a_run_of_another_processor(tmp_path, monkeypatch, text):
    """It is valued, settled, signed, audited and resumed here; and what was signed there passes its audit here."""
    monkeypatch.chdir(tmp_path)
    write_data(tmp_path)
    for name in ("whole", "cut", "here"):
        (tmp_path / f"{name}.toml").write_text(text.replace("NAME", name))
    payouts = ("--budget", "1000", "--currency", "EUR", "--negative", "zero", "-o")
    elsewhere(
        tmp_path,
        ("run", "whole.toml"),
        ("keys", "new", "there"),
        ("settle", "whole", *payouts, "there.json"),
        ("statement", "whole", "--key", "there.key", "--settlement", "there.json"),
    )
    for command in (
        ("audit", "whole", "--public-key", "there.pub"),
        ("value", "whole"),
        ("report", "whole"),
        ("settle", "whole", *payouts, "here.json"),
        ("keys", "new", "here"),
        ("statement", "whole", "--key", "here.key", "--settlement", "here.json", "-o", "here-statement.json"),
        ("audit", "here-statement.json", "--run", "whole", "--public-key", "here.pub"),
        ("run", "cut.toml", "--resume"),
        ("run", "here.toml"),
    ):
        done = call(*command)
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    Transcript.open(tmp_path / "cut").verify()
    cut, here = (Valuation.from_json((tmp_path / name / "valuation.json").read_text()) for name in ("cut", "here"))
    assert cut.n_rounds == here.n_rounds > 8
    assert (np.abs(cut.values - here.values) <= cut.errors + here.errors).all()
