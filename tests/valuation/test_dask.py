"""Runs are valued by the processes of a real Dask cluster, also if one of them is killed, or the driver."""

import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from tests.cli.inprocess import call
from tests.trainings import train
from tests.valuation.test_partitioned import assert_same, still_in
from verfedsv import value
from verfedsv.valuation import completed, partitioned, shuffle
from verfedsv.valuation.scratch import FOLDER

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster():
    """Return two workers, each a process."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=":0", silence_logs=50
    ) as made:
        yield made


@pytest.fixture(scope="module", autouse=True)
def few_sweeps():
    """End fits after three sweeps, each of which takes 16 tasks."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (completed, partitioned):
            patched.setattr(module, "MAX_SWEEPS", 3)
        yield


@pytest.fixture(scope="module")
def run(tmp_path_factory, few_sweeps):  # noqa: ARG001  # it values
    """Return the folder of a recorded run, and its values."""
    folder = tmp_path_factory.mktemp("run")
    train(n_samples=600, batch=150, n_epochs=4).record(folder).close()
    return folder, value(folder, rank=2)


def test_a_cluster_gives_the_same_numbers(cluster, run):
    """Through the executor of a client, whose workers' memory is the limit."""
    folder, expected = run
    with distributed.Client(cluster) as client:
        assert_same(value(folder, rank=2, executor=client.get_executor()), expected)


def test_other_processes_give_the_same_numbers(run):
    """A pool of processes is an executor like any other."""
    folder, expected = run
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        assert_same(value(folder, rank=2, executor=processes, memory="1GB"), expected)


def test_workers_that_are_killed_change_nothing(cluster, run):
    """One dies while pieces are merged, another while clients are completed: their tasks are repeated."""
    folder, expected = run
    kills = [5, 18]
    with distributed.Client(cluster) as client:

        def kill(done, _total):
            if kills and done >= kills[0]:
                kills.pop(0)
                os.kill(next(iter(client.run(os.getpid).values())), signal.SIGKILL)

        assert_same(value(folder, rank=2, executor=client.get_executor(), progress=kill), expected)
    assert not kills


def test_a_driver_that_was_killed_is_continued(run):
    """Another process goes on with its pieces and fits."""
    folder, _ = run
    code = "import sys, verfedsv; from verfedsv.valuation import partitioned; partitioned.MAX_SWEEPS = 3; "
    code += "verfedsv.value(sys.argv[1], memory='1GB')"
    with subprocess.Popen([sys.executable, "-c", code, str(folder)]) as driver:  # noqa: S603  # our own code
        while not list((folder / FOLDER).glob("*/fit-0-1.npz")):
            assert driver.poll() is None
            time.sleep(0.005)
        driver.kill()
    assert_same(value(folder, memory="1GB", resume=True, progress=still_in(folder / FOLDER)), value(folder))
    assert not (folder / FOLDER).exists()


def test_tasks_of_a_killed_driver_change_nothing(tmp_path):
    """One that a worker ends later, when the next valuation has merged its pieces, fails: its folder is gone."""
    folder, ended, go = tmp_path / "run", tmp_path / "ended", tmp_path / "go"
    train(n_samples=300, batch=70, n_epochs=3).record(folder).close()
    code = "import sys, distributed, verfedsv\nif __name__ == '__main__':\n"
    code += "    with distributed.Client(sys.argv[1]) as client:\n"
    code += "        verfedsv.value(sys.argv[2], seed=0, executor=client.get_executor())"
    script = tmp_path / "driver.py"
    script.write_text(code)

    def stall():
        merge = shuffle.merge

        def stalled(piece, layout):
            is_first = layout.seed == 0 and piece == 0
            while is_first and not go.exists():
                time.sleep(0.01)
            try:
                merge(piece, layout)
            except Exception as error:
                ended.write_text(type(error).__name__)
                raise
            if is_first:
                ended.write_text("written")

        shuffle.merge = stalled

    def release(done, _total):
        if done >= n_merged and not go.exists():
            go.touch()
            while not ended.exists():
                time.sleep(0.01)

    with (
        distributed.LocalCluster(
            n_workers=1, threads_per_worker=2, processes=True, dashboard_address=":0", silence_logs=50
        ) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(stall)
        with subprocess.Popen([sys.executable, str(script), cluster.scheduler_address, str(folder)]) as driver:  # noqa: S603
            while not list((folder / FOLDER).glob("*/summary-1.npz")):
                assert driver.poll() is None
                time.sleep(0.005)
            driver.kill()
        n_merged = len(list((folder / FOLDER).glob("*/uploads-*.npz"))) + 16
        found = value(folder, seed=1, executor=client.get_executor(), progress=release)
    assert ended.read_text() == "FileNotFoundError"
    assert_same(found, value(folder, seed=1))


def test_the_command_uses_a_cluster(cluster, run, monkeypatch):
    """With the address of a scheduler; if there is none, or it has no workers, it says what to start."""
    folder, expected = run
    done = call("value", folder, "--dask", cluster.scheduler_address, "--rank", 2, "--json")
    np.testing.assert_array_equal(json.loads(done.stdout)["values"], expected.values)
    monkeypatch.setattr("verfedsv.cli.cluster.PATIENCE", "0.5s")
    done = call("value", folder, "--dask", "tcp://127.0.0.1:9")
    assert done.returncode == 2
    assert "no Dask scheduler answers at 'tcp://127.0.0.1:9'" in done.stderr
    with distributed.LocalCluster(n_workers=0, dashboard_address=":0") as empty:
        done = call("value", folder, "--dask", empty.scheduler_address)
    assert "has no workers; start some with 'dask worker tcp://" in " ".join(done.stderr.split())
