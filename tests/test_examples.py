"""The examples run as they are."""

import bz2
import os
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


def prepare(folder, *options, data):
    """Run prepare.py of the consortium with a folder of data, and return what it prints."""
    command = [sys.executable, "-W", "error", str(ROOT / "examples" / "consortium" / "prepare.py")]
    environment = {**os.environ, "VERFEDSV_DATA": str(data)}
    options = ["--folder", str(folder), *options]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, env=environment)  # noqa: S603
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def read_ids(path):
    return [line.partition(",")[0] for line in path.read_text(encoding="utf-8").splitlines()[1:]]


def test_consortium(tmp_path):
    """One command aligns, trains and values three parties, each with a certificate, and writes the report."""
    text = prepare(tmp_path, "--people", "1500", data=tmp_path)
    assert text.startswith("From Adult, as there are no credit data in $VERFEDSV_DATA:\n")
    common = set.intersection(*({*read_ids(tmp_path / f"{name}.csv")} for name in ("bank", "telco", "shop")))
    shutil.copy(ROOT / "examples" / "consortium" / "consortium.toml", tmp_path)
    environment = {**os.environ, "NO_COLOR": "1", "COLUMNS": "120", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "verfedsv", "up", "consortium.toml"],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "round 60 of 60; loss 0." in done.stdout
    for doubt in ("doubt", "alarm"):
        assert doubt not in done.stdout
    result = verfedsv.value(tmp_path / "run")
    assert {*result.clients} == {"bank", "telco", "shop"}
    assert result.shares.min() > 0.1
    assert result.error_kind == "certified"
    log = (tmp_path / "run.private" / "server.log").read_text(encoding="utf-8")
    assert f'"event": "{len(common):,} ids are common to all' in log
    assert '"stage": "aligning ids"' in log
    assert (tmp_path / "run.html").exists()


def test_files_of_the_consortium_from_the_credit_data(tmp_path):
    """Every person keeps all columns, of both files, and every party has an order of its own."""
    (tmp_path / "credit").mkdir()
    for side, letter, n_columns in (("guest", "g", 13), ("host", "h", 10)):
        rows = [[str(row), *(f"{letter}{k} of {row}" for k in range(n_columns))] for row in range(200)]
        header = ["id", *(f"x{k}" for k in range(n_columns))]
        if side == "guest":
            header.insert(1, "y")
            rows = [[own, f"y of {own}", *others] for own, *others in rows]
        content = "\n".join(",".join(row) for row in [header, *rows]).encode()
        (tmp_path / "credit" / f"default_credit_{side}.csv.bz2").write_bytes(bz2.compress(content))
    assert prepare(tmp_path, data=tmp_path).startswith(f"From the credit data in {tmp_path / 'credit'}:\n")
    files = {name: tmp_path / f"{name}.csv" for name in ("bank", "telco", "shop")}
    ids = {name: read_ids(path) for name, path in files.items()}
    assert {name: len(own) for name, own in ids.items()} == {"bank": 190, "telco": 180, "shop": 170}
    someone = min(set.intersection(*map(set, ids.values())))
    found = []
    for name, path in files.items():
        assert ids[name] != sorted(ids[name], key=int)
        (line,) = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith(f"{someone},")]
        found += line.replace('"', "").split(",")[1:]
    expected = ["y", *(f"g{k}" for k in range(13)), *(f"h{k}" for k in range(10))]
    assert sorted(found) == sorted(f"{column} of {someone}" for column in expected)
