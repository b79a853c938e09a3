"""The examples run as they are."""

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

import verfedsv
from tests.cli.inprocess import call
from verfedsv.runs import Run

ROOT = Path(__file__).parents[1]


def test_regression(tmp_path):
    """The configuration runs as it is, with R² as good as that of least squares, and ends with nothing to be noted."""
    shutil.copy(ROOT / "examples" / "regression.toml", tmp_path)
    done = call("run", tmp_path / "regression.toml")
    assert (done.returncode, done.stderr) == (0, "")
    run = Run.of_file(tmp_path / "regression.toml")
    columns, is_train = np.hstack([client.numeric.toarray() for client in run.data.clients]), ~run.data.is_test
    best = LinearRegression().fit(columns[is_train], run.data.labels[is_train])
    for part, rows in (("train", is_train), ("test", run.data.is_test)):
        found = run.last_metrics()[f"{part}_r2"]
        assert found == pytest.approx(best.score(columns[rows], run.data.labels[rows]), abs=0.01)
        assert f"{found:.4f}" in done.stdout


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


def test_split_learning(tmp_path):
    """A plain PyTorch training with a head is recorded and valued, the server apart from the clients."""
    pytest.importorskip("torch")
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "split_learning.py"), "--epochs", "2"]
    done = subprocess.run([*command, "--output", str(tmp_path)], capture_output=True, text=True, check=False)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, "")
    transcript = verfedsv.Transcript.open(tmp_path)
    transcript.verify()
    assert transcript.n_rounds == 26
    assert transcript.widths == {"employer": 8, "registry": 8, "bank": 4}
    for client in transcript.clients:
        assert f"\n{client}: " in done.stdout
    assert "\nthe clients lowered it by " in done.stdout
    assert "the server's own top model by " in done.stdout
