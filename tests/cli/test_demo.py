import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import verfedsv
from tests.cli.inprocess import call as run
from tests.cli.processes import run_process
from verfedsv import InputError
from verfedsv.cli.demo import CONFIGS, HEADER, show

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_demo_trains_and_values_in_both_ways(tmp_path):
    """It prints the shares of both side by side, and leaves two complete runs."""
    folder = tmp_path / "demo"
    done = run("demo", "--output", str(folder))
    assert done.returncode == 0, done.stderr
    assert "synchronous" in done.stdout
    assert "client 8" in done.stdout
    assert f"Results: {folder}" in done.stdout
    assert f"verfedsv report {folder / 'synchronous'}" in done.stdout
    results = [
        verfedsv.Valuation.from_json((folder / mode / "valuation.json").read_text())
        for mode in ("synchronous", "asynchronous")
    ]
    for result in results:
        assert result.values.sum() * result.n_rounds > 0.3
        assert result.tolerance_met
    # The four largest clients do not depend on the way of training.
    largest = [np.argsort(-result.values)[:4].tolist() for result in results]
    assert set(largest[0]) == set(largest[1])


SMALL = """
from pytest import MonkeyPatch
from tests.cli.test_demo import small
from verfedsv.cli import app

small(MonkeyPatch())
app()
"""


def test_a_second_demo_replaces_the_first(tmp_path):
    """With --json only both valuations are printed, even if the terminal cannot show the bars."""
    for mode in ("synchronous", "asynchronous"):
        (tmp_path / mode).mkdir()
        (tmp_path / mode / "config.toml").write_text(HEADER)
    command = [sys.executable, "-c", SMALL, "demo", "--json", "--output", str(tmp_path)]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    done = subprocess.run(  # noqa: S603  # our own script
        command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment
    )
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    for mode in ("synchronous", "asynchronous"):
        assert {"clients", "values", "shares", "errors", "method", "n_rounds"} <= set(printed[mode])
        assert (tmp_path / mode / "config.toml").read_text() != HEADER


def test_demo_does_not_overwrite_what_is_not_its_own(tmp_path):
    """A folder of that name with other content is unchanged."""
    (tmp_path / "synchronous").mkdir()
    (tmp_path / "synchronous" / "thesis.txt").write_text("mine")
    done = run("demo", "--output", str(tmp_path))
    assert done.returncode == 2
    assert "is not an unchanged result of an earlier demo" in " ".join(done.stderr.split())
    assert (tmp_path / "synchronous" / "thesis.txt").read_text() == "mine"


def small(monkeypatch):
    """Shorten the demo."""
    for mode, before, after in (("synchronous", "epochs = 20", "rounds = 3"), ("asynchronous", "10.0", "0.2")):
        text = CONFIGS[mode].replace(before, after).replace("clients = 8", "clients = 8\nsamples = 500")
        monkeypatch.setitem(CONFIGS, mode, text)


def test_demo_checks_everything_before_it_removes_anything(tmp_path, monkeypatch):
    """Earlier results stay if something else is in the way of others."""
    small(monkeypatch)
    show(Console(quiet=True), tmp_path)
    kept = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    for name in ("asynchronous/thesis.txt", "asynchronous/config.toml", "asynchronous.toml", "synchronous.toml"):
        before = kept.get(tmp_path / name)
        (tmp_path / name).write_text("mine")
        with pytest.raises(InputError, match="already exists and is not an unchanged result of an earlier demo"):
            show(Console(quiet=True), tmp_path)
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink() if before is None else (tmp_path / name).write_bytes(before)
        assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == kept
    assert set(show(Console(quiet=True), tmp_path)) == {"synchronous", "asynchronous"}


def test_a_demo_that_was_killed_is_begun_anew(tmp_path, monkeypatch):
    """Whether it had only made its folder, or begun to write there."""
    small(monkeypatch)
    (tmp_path / "synchronous").mkdir()
    (tmp_path / "asynchronous").mkdir()
    (tmp_path / "asynchronous" / ".config.toml.abcd_123").write_text("")
    assert set(show(Console(quiet=True), tmp_path)) == {"synchronous", "asynchronous"}


@pytest.mark.parametrize("place", ["file", "file/demo", "/proc/nowhere"])
def test_a_demo_into_a_file(tmp_path, place):
    """It ends with one line and code 2."""
    (tmp_path / "file").write_text("mine")
    done = run("demo", "-o", str(tmp_path / place))
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: cannot use")
    assert (tmp_path / "file").read_text() == "mine"


def test_version():
    """--version prints the version, and python -m verfedsv is verfedsv."""
    assert run_process("--version").stdout == f"verfedsv {verfedsv.__version__}\n"


COMMANDS = [
    *(["demo"], ["run"], ["value"], ["report"], ["watch"], ["settle"], ["statement"], ["audit"], ["extract"]),
    *(["keys", "new"], ["keys", "ca"], ["keys", "request"], ["keys", "approve"], ["keys", "revoke"], ["keys", "show"]),
    *(["data", "list"], ["data", "fetch"], ["data", "show"], ["reproduce"]),
]


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_has_an_example_and_exit_codes(command):
    """For every command, and no line is longer than the terminal."""
    lines = run(*command, "--help").stdout.splitlines()
    assert any(line.startswith(f" Example: verfedsv {' '.join(command)}") for line in lines)
    assert any(line.startswith(" Exit codes: 0 ") for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize("arguments", [[], ["--help"], ["data"]])
def test_help_lists_the_commands(arguments):
    """Without arguments and with --help."""
    done = run(*arguments)
    assert "Usage" in done.stdout + done.stderr
    for command in COMMANDS:
        if arguments != ["data"] or command[0] == "data":
            assert command[-1 if arguments == ["data"] else 0] in done.stdout + done.stderr


@pytest.mark.parametrize("arguments", [["demo", "--nope"], ["dmeo"], ["--nope"], ["data", "fetch"]])
def test_wrong_arguments_end_with_code_2(arguments):
    """The error says what is allowed, without a traceback."""
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
