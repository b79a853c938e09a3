"""Trainings of real processes that are killed, cut off and started again."""

import signal
import time

import pytest

from tests.network.consortium import Consortium
from verfedsv.cli import EXIT_MISSING


@pytest.fixture
def consortium(tmp_path):
    """A factory of consortia, whose processes end with the test."""
    opened = []

    def make(name="one", **options):
        opened.append(Consortium(tmp_path / name, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.stop()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The records of a training in which nothing happens."""
    whole = Consortium(tmp_path_factory.mktemp("undisturbed"))
    whole.start_all()
    try:
        assert {*whole.finish().values()} == {0}
    finally:
        whole.stop()
    return whole.records()


def test_killed_processes_come_back_to_the_same_training(consortium, undisturbed):
    """A client and then the server are killed in the middle: the records are those of an undisturbed training."""
    whole = consortium()
    whole.start_all()
    whole.wait_for(lambda: whole.n_bytes() > 300_000)
    whole.kill("telco")
    whole.start("telco")
    before = whole.n_bytes()
    whole.wait_for(lambda: whole.n_bytes() > before + 100_000)
    whole.kill("serve")
    whole.start("serve")
    assert {*whole.finish().values()} == {0}
    assert whole.records() == undisturbed
    assert (whole.folder / "run.html").stat().st_size > 10_000
    for name in whole.clients:
        assert (whole.folder / f"of-{name}" / "received" / "uploads.extract").exists()
        assert (whole.folder / f"of-{name}" / "model.npz").exists()


def test_a_client_that_stays_away_ends_the_training_cleanly(consortium):
    """After the deadline the server stops with an exit code of its own, and its run can be continued."""
    whole = consortium(server={"deadline": 2.0})
    whole.start_all()
    whole.wait_for(lambda: whole.n_bytes() > 100_000)
    whole.kill("shop")
    whole.wait_for(lambda: whole.is_over("serve"))
    assert whole.processes["serve"][0].returncode == EXIT_MISSING
    assert "'shop' did not answer in round" in whole.log("serve")
    whole.start("shop")
    whole.start("serve")
    assert {*whole.finish().values()} == {0}


def test_the_training_goes_on_without_a_client(consortium):
    """If so configured, rounds after the deadline are without it, and it may come back."""
    whole = consortium(server={"deadline": 1.0, "if_missing": "continue"})
    whole.start_all()
    whole.wait_for(lambda: whole.n_bytes() > 100_000)
    whole.kill("shop")
    whole.wait_for(lambda: "goes on without it" in whole.log("serve"))
    before = whole.n_bytes()
    whole.wait_for(lambda: whole.n_bytes() > before + 10_000)
    whole.start("shop")
    assert {*whole.finish().values()} == {0}
    absent = [record for record in whole.records() if record[0] == "Stamp" and record[3]]
    assert absent
    assert all("shop" in record[3] for record in absent)


def test_ctrl_c_while_a_client_is_away(consortium, undisturbed):
    """The server waits some seconds for it, not up to the deadline, and the same commands continue."""
    whole = consortium()
    whole.start_all()
    whole.wait_for(lambda: whole.n_bytes() > 200_000)
    whole.kill("shop")
    whole.wait_for(lambda: "shop left" in whole.log("serve"))
    begin = time.monotonic()
    whole.kill("serve", signal.SIGINT)
    assert time.monotonic() - begin < 20
    assert whole.processes["serve"][0].returncode == 130
    assert "Traceback" not in whole.log("serve")
    whole.start("serve")
    whole.start("shop")
    assert {*whole.finish().values()} == {0}
    assert whole.records() == undisturbed


def test_ctrl_c_stops_everybody_cleanly(consortium, undisturbed):
    """The server and a client are interrupted, and the same commands continue to the same records."""
    whole = consortium()
    whole.start_all()
    whole.wait_for(lambda: whole.n_bytes() > 200_000)
    whole.kill("serve", signal.SIGINT)
    assert whole.processes["serve"][0].returncode == 130
    whole.kill("shop", signal.SIGINT)
    assert whole.processes["shop"][0].returncode == 130
    for name in ("serve", "shop"):
        assert "Traceback" not in whole.log(name)
    whole.start("serve")
    whole.start("shop")
    assert {*whole.finish().values()} == {0}
    assert whole.records() == undisturbed
