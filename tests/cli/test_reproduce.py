import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import verfedsv
from experiments import EXPERIMENTS, command
from experiments.parallel import Order, measure_at_once, measure_in_turn
from experiments.results import ResultFile
from tests.cli.inprocess import call as run
from verfedsv.errors import DataError, InputError

FAST = "random-features-async"


def test_experiments_are_listed():
    """Without a name, all of them with their titles and data sets."""
    done = run("reproduce", COLUMNS="120")
    assert done.returncode == 0
    assert all(name in done.stdout for name in EXPERIMENTS)


def test_an_installed_package_asks_for_a_checkout(tmp_path, monkeypatch):
    """Without the experiments, one sentence says where to find them."""
    monkeypatch.setattr(sys.modules["verfedsv.cli.reproduce"], "REPOSITORY", tmp_path)
    done = run("reproduce", "rank")
    assert done.returncode == 2
    assert done.stderr.startswith("error: the paper's experiments are not part of the installed package: clone the ")
    assert done.stderr.count("\n") == 1


def test_the_study_is_found_from_any_folder(tmp_path):
    """A process elsewhere, with only the library on its path, finds the experiments in the checkout."""
    source = Path(verfedsv.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-P", "-m", "verfedsv", "reproduce"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(source), "COLUMNS": "120"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "similar-features" in done.stdout


def test_importing_the_library_imports_no_experiment():
    """Only their command loads the experiments."""
    loaded = subprocess.check_output(
        [sys.executable, "-c", "import sys, verfedsv.cli, verfedsv.public; print(*sys.modules)"]
    )
    assert b"experiments" not in loaded.split()


def test_an_experiment_prints_tables_and_writes_a_page(tmp_path):
    """Ours beside the paper's, in the terminal and in Markdown; the second time nothing is measured."""
    arguments = ["reproduce", FAST, "--quick", "--data", "adult", "-o", str(tmp_path)]
    done = run(*arguments, COLUMNS="120")
    assert done.returncode == 0, done.stderr
    assert "artificial client 5" in done.stdout
    assert "2.09 %, much lower" in done.stdout
    page = (tmp_path / "paper-quick.md").read_text()
    assert "| all regular clients |" in page
    assert "--quick" in page
    path = tmp_path / "paper-quick" / f"{FAST}-adult.json"
    content = json.loads(path.read_text())
    content["parts"]["seed 0"]["found"]["accuracy"] = -1.0
    path.write_text(json.dumps(content))
    done = run(*arguments, "--json")
    assert json.loads(done.stdout)[FAST]["adult"]["seed 0"] == content["parts"]["seed 0"]["found"]
    done = run(*arguments, "--again", "--seeds", "1")
    assert f"{FAST}, adult: earlier results are set aside as {FAST}-adult.json.old: --again" in done.stdout
    assert "The page shows results of 2 seeds and more." in done.stdout
    assert list(json.loads(path.read_text())["parts"]) == ["seed 0"]
    assert json.loads(path.with_name(f"{path.name}.old").read_text()) == content


def test_several_data_sets_follow_one_option(tmp_path):
    """`--data adult web` means both."""
    done = run("reproduce", FAST, "--quick", "--data", "adult", "web", "-o", str(tmp_path))
    if "web is not on this machine" in done.stderr:
        pytest.skip("web is not on this machine: set VERFEDSV_DATA")
    assert done.returncode == 0, done.stderr
    assert "Web, 2 seeds" in (tmp_path / "paper-quick.md").read_text()


def test_several_results_at_once_are_the_same(tmp_path):
    """Those of processes of their own, and those of one after the other."""
    here, there = (Order(tmp_path / name, FAST, "adult", quick=True) for name in ("here", "there"))
    news = list(measure_in_turn([here], 1))
    assert [latest.part for latest in news] == ["seed 0", None]
    assert [latest._replace(order=here) for latest in measure_at_once([there], 1, 2)] == news
    assert here.open().found == there.open().found != {}


def test_timed_experiments_are_measured_last_and_alone(tmp_path, monkeypatch):
    """Others are measured at once; with one job, all are measured in turn."""
    measured = []

    def note(kind, orders):
        measured.append((kind, [order.experiment for order in orders]))
        return iter(())

    monkeypatch.setattr(command, "measure_at_once", lambda orders, _seeds, _jobs: note("at once", orders))
    monkeypatch.setattr(command, "measure_in_turn", lambda orders, _seeds: note("in turn", orders))
    for jobs in ("1", "2"):
        run(
            "reproduce",
            "efficiency",
            "rank",
            "--quick",
            "--json",
            "--jobs",
            jobs,
            "--data",
            "adult",
            "-o",
            str(tmp_path),
        )
    assert measured == [
        ("at once", []),
        ("in turn", ["efficiency", "rank"]),
        ("at once", ["rank"]),
        ("in turn", ["efficiency"]),
    ]


def test_a_process_that_dies_is_an_error(tmp_path):
    """One sentence, and no process is left behind."""
    order = Order(tmp_path, FAST, "adult", quick=True)
    running = measure_at_once([order], None, 2)
    assert next(running).part == "seed 0"
    (process,) = multiprocessing.active_children()
    process.kill()
    with pytest.raises(InputError, match="a process that measured results has died"):
        list(running)
    assert not multiprocessing.active_children()


def test_an_error_in_a_process_is_one_here(tmp_path, monkeypatch):
    """With its own message, as if it had been measured here."""
    for name in ("VERFEDSV_DATA", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")  # nobody listens there
    with pytest.raises(DataError, match="'web' is not on this machine"):
        list(measure_at_once([Order(tmp_path, FAST, "web", quick=True)], None, 1))
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["figure-9"], "unknown experiment 'figure-9'; allowed are metadata, rank, similar-features"),
        (["all", "--data", "mnist"], "unknown data set 'mnist'; allowed are adult, web"),
        (
            ["all", "--data", "web"],
            "web is not on this machine; `verfedsv data fetch web` gets it, or says where to put it",
        ),
        (["--data", "adult", "web"], "name an experiment, one of metadata, rank"),
        (["frequency", "--data", "adult", "letter"], "none of these experiments is for letter"),
    ],
)
def test_wrong_names(arguments, message, tmp_path):
    """One line that says what is allowed."""
    done = run("reproduce", *arguments, VERFEDSV_DATA=str(tmp_path), XDG_CACHE_HOME=str(tmp_path))
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_data_set_that_an_experiment_does_not_know(tmp_path):
    """The error comes before anything is measured."""
    done = run("reproduce", "efficiency", "--data", "letter", "-o", str(tmp_path))
    assert (done.returncode, done.stderr) == (2, "error: efficiency is for adult; received letter\n")


def test_a_stopped_experiment_continues(tmp_path, monkeypatch):
    """Ctrl-C between parts loses nothing that was measured."""
    arguments, path = (
        ("reproduce", "efficiency", "--quick", "-o", tmp_path),
        tmp_path / "paper-quick" / "efficiency-adult.json",
    )
    measure = ResultFile.measure

    def measure_one(file, seeds):
        for step in measure(file, seeds):
            if path.exists():
                signal.raise_signal(signal.SIGINT)
            yield step

    with monkeypatch.context() as patch:
        patch.setattr(ResultFile, "measure", measure_one)
        patch.setattr(os, "_exit", sys.exit)  # this process has more to do
        stopped = run(*arguments)
    assert stopped.returncode == 130, stopped.stderr
    assert "the same command continues" in stopped.stdout
    before = json.loads(path.read_text())["parts"]
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    after = json.loads(path.read_text())["parts"]
    assert len(after) > len(before)
    assert all(after[name] == part for name, part in before.items())
