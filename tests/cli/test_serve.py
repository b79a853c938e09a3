import signal

import pytest

from tests.cli.inprocess import call
from tests.network.consortium import Consortium


@pytest.fixture
def consortium(tmp_path):
    whole = Consortium(tmp_path, data={"aligned": False}, training={"rounds": 20, "evaluate_every": 10})
    yield whole
    whole.stop()


def test_its_own_file_is_read_before_it_listens(consortium):
    """What is wrong with it is said before anybody waits."""
    (consortium.folder / "bank.csv").unlink()
    done = call("serve", consortium.config, "--insecure")
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is no file ")
    assert "listening" not in done.stdout


def test_interrupted_while_it_waits(consortium):
    """It says so, and how to continue."""
    consortium.start("serve")
    consortium.wait_for(lambda: "listening" in consortium.log("serve"))
    consortium.kill("serve", signal.SIGINT)
    assert consortium.processes["serve"][0].returncode == 130
    assert consortium.log("serve").endswith("stopped; the same command begins again\n")


def test_ids_that_cannot_be_aligned(consortium):
    """The operator sees why; the clients, who may not know how others write their ids, are told whom to ask."""
    lines = (consortium.folder / "shop.csv").read_text(encoding="utf-8").splitlines()
    lines[1:] = [f"K-{line}" for line in lines[1:]]
    (consortium.folder / "shop.csv").write_text("\n".join(lines), encoding="utf-8")
    consortium.start_all()
    consortium.wait_for(lambda: consortium.is_over("serve"))
    assert "error: no id can be common" in consortium.log("serve")
    consortium.wait_for(lambda: "its operator knows why" in consortium.log("telco"))
    assert "no id can be common" not in consortium.log("telco")


def test_interrupted_while_a_client_is_away_from_the_alignment(consortium):
    """The server ends at once, and not when the client has run out of time."""
    for name in ("bank", *consortium.clients):
        path = consortium.folder / f"{name}.csv"
        header, *lines = path.read_text(encoding="utf-8").splitlines()
        rows = [f"{number},{lines[number % len(lines)].partition(',')[2]}" for number in range(20_000)]
        path.write_text("\n".join([header, *rows]), encoding="utf-8")
    consortium.start_all()
    consortium.wait_for(lambda: all("connected to" in consortium.log(name) for name in consortium.clients))
    consortium.kill("telco")
    consortium.kill("serve", signal.SIGINT)  # waits for 60 seconds, less than a client has
    assert consortium.processes["serve"][0].returncode == 130
    assert "stopped; the same command begins again\n" in consortium.log("serve")
