import signal

import numpy as np
import pytest

from tests.cli.inprocess import call
from tests.network.consortium import Consortium, write_csv

MEND = (
    "the server stopped with an error, which its operator has to mend; waiting for it (Ctrl-C ends this, the same "
    "command continues)"
)


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
    consortium.wait_for(lambda: MEND in consortium.log("telco"))
    assert "no id can be common" not in consortium.log("telco")


def test_labels_that_cannot_be_trained_on_among_common_rows(consortium):
    """The clients read that somebody has to act, and how to stop waiting, but nothing about the labels."""
    bank, shop = (consortium.folder / f"{name}.csv" for name in ("bank", "shop"))
    header, *lines = bank.read_text(encoding="utf-8").splitlines()
    lines = [f"{line.rpartition(',')[0]},{int(number >= 120)}" for number, line in enumerate(lines)]
    bank.write_text("\n".join([header, *lines]), encoding="utf-8")
    shop.write_text("\n".join(shop.read_text(encoding="utf-8").splitlines()[:121]), encoding="utf-8")
    consortium.start_all()
    consortium.wait_for(lambda: consortium.is_over("serve"))
    assert consortium.processes["serve"][0].returncode == 2
    assert "there are 1" in consortium.log("serve")
    consortium.wait_for(lambda: MEND in consortium.log("telco"))
    assert "labels" not in consortium.log("telco")
    assert not consortium.is_over("telco")


def test_a_client_whose_columns_cannot_be_used(consortium):
    """Its owner reads why, and it ends; the server and its log are told only whose columns they are."""
    rng, n_rows = np.random.default_rng(0), 640
    employers = [f"secret {own}" if own < 240 else "none" for own in range(n_rows)]  # 240 ids are common
    write_csv(consortium.folder / "telco.csv", np.arange(n_rows), 3, rng, employer=employers)
    consortium.start_all()
    consortium.wait_for(lambda: consortium.is_over("serve") and consortium.is_over("telco"))
    assert [consortium.processes[name][0].returncode for name in ("serve", "telco")] == [2, 2]
    assert "'telco' cannot begin: its columns or files cannot be used; its owner has" in consortium.log("serve")
    assert "secret" not in consortium.log("serve")
    assert "employer" not in consortium.log("serve")
    assert "error: " in consortium.log("telco")
    assert "column 'employer' is text with 192 different values" in consortium.log("telco")
    assert not consortium.is_over("shop")


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
