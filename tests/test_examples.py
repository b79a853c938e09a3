"""The examples run as they are."""

import subprocess
import sys
from pathlib import Path

import pytest

import verfedsv

ROOT = Path(__file__).parents[1]


def test_torch_loop(tmp_path):
    """A plain PyTorch training with three lines added is recorded and valued, and prints bounds on shares."""
    pytest.importorskip("torch")
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "torch_loop.py"), "--epochs", "4"]
    done = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True, check=False)  # noqa: S603
    assert done.returncode == 0, done.stderr
    result = verfedsv.value(tmp_path)
    assert result.n_rounds == 4 * 13
    for client, share, (low, high) in zip(result.clients, result.shares, result.share_bounds, strict=True):
        assert 0.1 < low < share < high
        assert f"{client}: {share:.1%} of what was learnt, between {low:.1%} and {high:.1%}\n" in done.stdout
    verfedsv.Transcript.open(tmp_path).verify()
    again = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True, check=False)  # noqa: S603
    assert again.returncode == 1
    assert again.stderr.startswith("error: the folder already holds a transcript")
    assert len(again.stderr.splitlines()) == 1
    assert verfedsv.Transcript.open(tmp_path).n_rounds == 4 * 13
