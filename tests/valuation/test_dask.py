"""Runs are valued by the processes of a real Dask cluster, also if one of them is killed, or the driver."""

from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import pytest

from tests.trainings import train
from tests.valuation.test_partitioned import assert_same
from verfedsv import value
from verfedsv.valuation import completed, partitioned

distributed = pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def cluster():
    """Return two workers, each a process."""
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None, silence_logs=50
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
