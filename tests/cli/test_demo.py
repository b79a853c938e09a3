import json
import os
import subprocess
import sys

import numpy as np
import pytest

import verfedsv


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(  # noqa: S603  # our own command line
        [sys.executable, "-m", "verfedsv", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env=os.environ | environment,
    )


def test_demo_prints_a_table_and_checks_itself():
    """The demo values a round of Adult and compares with all coalitions."""
    done = run("demo")
    assert done.returncode == 0, done.stderr
    assert "14 clients, 48,842 samples" in done.stdout
    assert "marital-status" in done.stdout
    assert "16,384 coalitions" in done.stdout


def test_demo_as_json():
    """With --json nothing but the values is printed, and they are those of the library."""
    done = run("demo", "--clients", "5", "--json")
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    adult = verfedsv.data.load_adult_round(5)
    expected = verfedsv.shapley_values(adult.previous, adult.current, adult.labels)
    np.testing.assert_array_equal(printed["values"], expected.values)
    assert printed["clients"] == list(adult.clients)
    assert {"clients", "values", "shares", "errors", "method", "n_rounds"} <= set(printed)


@pytest.mark.slow
def test_demo_where_there_are_no_block_characters():
    """On a terminal of another encoding the bars are question marks, and all else is as it should be."""
    done = run("demo", "--clients", "3", PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert "features 1-41" in done.stdout


@pytest.mark.slow
def test_demo_in_a_narrow_terminal():
    """Forty columns: names may be cut, numbers may not."""
    done = run("demo", "--clients", "3", COLUMNS="40")
    assert "%" in done.stdout
    assert "…e-0" not in done.stdout
    assert "e-04" in done.stdout


def test_version():
    """--version prints the version."""
    assert run("--version").stdout == f"verfedsv {verfedsv.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["demo", "--help"]])
def test_help_has_an_example(arguments):
    """Without arguments and with --help there is help; that of a command has an example."""
    done = run(*arguments)
    assert "Usage" in done.stdout
    assert arguments != ["demo", "--help"] or "Example: verfedsv demo --clients 8" in done.stdout


@pytest.mark.parametrize("arguments", [["demo", "--clients", "0"], ["demo", "--clients", "124"], ["dmeo"], ["--nope"]])
def test_wrong_arguments_end_with_code_2(arguments):
    """Wrong arguments are answered with what is allowed, without a traceback, and exit code 2."""
    done = run(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
