import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import verfedsv
from tests.cli.test_demo import run
from tests.trainings import train


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a small synchronous run."""
    path = tmp_path_factory.mktemp("runs") / "credit"
    with train(n_samples=200, batch=50, n_epochs=5).record(path):
        return path


def test_a_table_is_printed(folder):
    """With the clients, and where the errors come from."""
    done = run("value", str(folder))
    assert done.returncode == 0, done.stderr
    assert "Synchronous training: 3 clients, 20 rounds, 200 samples" in done.stdout
    for word in ("client 1", "client 3", "share", "error", "(proven)", "(estimated)", "Proposition 2"):
        assert word in " ".join(done.stdout.split())
    assert done.stderr == ""


def test_json_is_that_of_the_library(folder, tmp_path):
    """With --json nothing else is printed; --output writes the same to a file."""
    done = run("value", str(folder), "--json", "--output", str(tmp_path / "values.json"))
    assert done.returncode == 0, done.stderr
    printed, expected = verfedsv.Valuation.from_json(done.stdout), verfedsv.value(folder)
    np.testing.assert_array_equal(printed.values, expected.values)
    np.testing.assert_array_equal(printed.errors, expected.errors)
    assert (tmp_path / "values.json").read_text() == done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["values.json"]


def test_options_reach_the_library(folder):
    """Method, rank, rows, tolerance and seed are those of the call."""
    done = run("value", str(folder), "--json", "--method", "exact", "--rank", "2", "--seed", "3", "--tolerance", "0.01")
    settings = json.loads(done.stdout)["settings"]
    assert (settings["method"], settings["rank"], settings["seed"], settings["tolerance"]) == ("exact", 2, 3, 0.01)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no transcript in nowhere"),
        (["{folder}", "--rank", "three"], "rank must be a whole number; received 'three'"),
        (["{folder}", "--rank", "0"], "rank must be at least 1; received 0"),
        (["{folder}", "--method", "magic"], "'magic' is not one of"),
        (["{folder}", "--tolerance", "-1"], "tolerance must be a positive number; received -1.0"),
        (["{folder}", "--rows", "no-gradient"], "means no sample at all"),
        (
            ["{folder}", "--output", "nowhere/values.json"],
            "cannot write nowhere/values.json: No such file or directory",
        ),
        ([], "Missing argument 'RUN'"),
    ],
)
def test_bad_input_ends_with_a_message_and_code_2(folder, arguments, message):
    """Not with a traceback."""
    done = run("value", *(argument.format(folder=folder) for argument in arguments))
    assert done.returncode == 2
    assert message.lower() in " ".join(done.stderr.replace("│", " ").split()).lower()
    assert "Traceback" not in done.stderr


def test_a_damaged_run_ends_with_a_message(tmp_path):
    """A run whose description was cut off, or of another version, is named as such."""
    for content, message in (
        (b"{", "is damaged"),
        (b'{"format": "verfedsv transcript", "version": 7}', "format version 7"),
    ):
        (tmp_path / "transcript.json").write_bytes(content)
        done = run("value", str(tmp_path))
        assert done.returncode == 2
        assert message in done.stderr


def test_a_note_tells_what_cannot_be_estimated(tmp_path):
    """Warnings of the library are one line each, on the standard error."""
    with train(n_samples=100, batch=20, n_epochs=1).record(tmp_path / "run"):
        pass
    done = run("value", str(tmp_path / "run"))
    assert done.returncode == 0
    assert done.stderr.startswith("note: no sample was uploaded in two rounds")
    assert "unknown (estimated)" in " ".join(done.stdout.split())


def test_interrupted(tmp_path):
    """Ctrl-C ends it with code 130, without a traceback and without a file."""
    training = train(n_samples=20_000, batch=500, n_epochs=3, n_clients=8)
    with training.record(tmp_path / "run"):
        pass
    # Minutes of work, so that it is still at it after two seconds.
    options = ["--method", "permutation", "--output", str(tmp_path / "values.json")]
    command = [sys.executable, "-m", "verfedsv", "value", str(tmp_path / "run"), *options]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=os.environ)  # noqa: S603
    time.sleep(2)
    assert process.poll() is None
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 130
    assert "Traceback" not in errors
    assert not list(tmp_path.glob("values*"))
