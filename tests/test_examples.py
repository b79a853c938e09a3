"""The examples run as they are."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import verfedsv

ROOT = Path(__file__).parents[1]
CREDIT = Path(os.environ.get("VERFEDSV_DATA") or "nowhere") / "credit"


@pytest.mark.skipif(not CREDIT.exists(), reason="the credit data are not on this machine; set $VERFEDSV_DATA")
def test_torch_loop(tmp_path):
    """A plain PyTorch training with three lines added is recorded and valued; both organisations contribute."""
    pytest.importorskip("torch")
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "torch_loop.py"), str(CREDIT), "--epochs", "3"]
    done = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert "guest: " in done.stdout
    result = verfedsv.value(tmp_path)
    assert result.n_rounds == 90
    assert (result.shares > 0.1).all()
    verfedsv.Transcript.open(tmp_path).verify()
    again = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True, check=False)  # noqa: S603
    assert again.returncode == 1
    assert again.stderr.startswith("error: the folder already holds a transcript")
    assert len(again.stderr.splitlines()) == 1
    assert verfedsv.Transcript.open(tmp_path).n_rounds == 90
