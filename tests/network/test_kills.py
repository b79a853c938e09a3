"""Real processes that are killed, stopped and run out of disk, at random moments, while their wall clocks jump."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import pytest

from tests.network.consortium import Consortium
from tests.network.rehearsal import Rehearsal, check_uploads
from verfedsv.cli import EXIT_MISSING

N_KILLS = int(os.environ.get("VERFEDSV_NETWORK_KILLS", "3"))
"""Kills of processes, for each kind of training."""

KILLS_EACH = 6
"""Kills in one training."""

SYNCHRONOUS = {"rounds": 300, "evaluate_every": 50}
ASYNCHRONOUS = {"mode": "asynchronous", "rounds": None, "duration": 6.0, "stamp_every": 0.1, "period": 0.05}
ASYNCHRONOUS |= {"evaluate_every": 10}
VIRTUAL = ASYNCHRONOUS | {"clock": "virtual", "duration": 15.0}
KINDS = {
    "synchronous": {"training": SYNCHRONOUS},
    "virtual": {"training": VIRTUAL},
    "real": {"training": ASYNCHRONOUS | {"clock": "real"}},
    "aligning": {"training": SYNCHRONOUS, "data": {"aligned": False}},
}
soak = pytest.mark.soak


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The records of trainings in which nothing happens, by kind; others are not the same twice."""
    found = {}

    def records_of(kind):
        if kind not in found:
            whole = Rehearsal(tmp_path_factory.mktemp(kind), **KINDS[kind])
            whole.join()
            assert not whole.serve()
            whole.wait_for_parties()
            found[kind] = whole.records()
        return found[kind]

    return records_of


@pytest.fixture
def consortium(tmp_path):
    """A factory of consortia, whose processes end with the test."""
    opened = []

    def make(name="one", **options):
        opened.append(Consortium(tmp_path / name, is_witnessed=True, **options))
        return opened[-1]

    yield make
    for each in opened:
        each.stop()


def kill_at_random(whole, n_kills, rng):
    """Kill parties at random moments, and start them again after a while; return how many were killed."""
    names, done = ["serve", *whole.clients], 0
    while done < n_kills and not whole.is_over("serve"):
        # After a time, which may be in the start or the alignment, or once the transcript has grown.
        size = whole.n_bytes() + rng.randrange(150_000) if rng.random() < 0.7 else 0
        end = time.monotonic() + (20 if size else rng.uniform(0, 4))
        while time.monotonic() < end and not whole.is_over("serve") and not (size and whole.n_bytes() > size):
            time.sleep(0.005)
        for name in rng.sample(names, 1 + (rng.random() < 0.2)):
            if not whole.is_over(name):
                whole.kill(name)
                done += 1
                time.sleep(rng.uniform(0, 0.5))
                whole.start(name)
    return done


def bring_to_end(whole):
    """Wait until all parties have ended; the server is started again for those that missed its end."""
    whole.wait_for(lambda: whole.is_over("serve"), 180)
    for _ in range(3):
        assert whole.processes["serve"][0].returncode in (0, EXIT_MISSING), whole.log("serve")
        end = time.monotonic() + 3
        while time.monotonic() < end and not all(map(whole.is_over, whole.clients)):
            time.sleep(0.05)
        if all(map(whole.is_over, whole.clients)):
            break
        whole.start("serve")
        whole.wait_for(lambda: whole.is_over("serve"), 90)
    assert {*whole.finish(20).values()} == {0}


def check(whole, *, is_repeated):
    """Check what must be true of every finished training."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-m", "verfedsv", "audit", str(whole.run), "--json"], capture_output=True, check=False
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    for name in whole.clients:
        noted = [json.loads(line) for line in whole.noted_path(name).read_bytes().splitlines() if line.endswith(b"]")]
        check_uploads(whole.run, name, noted, is_repeated=is_repeated)
        folder = whole.folder / f"of-{name}"
        assert {path.name for path in (folder / "received").iterdir()} == {"value.json", "uploads.extract"}
        assert not [path for path in folder.rglob(".*") if path.name != ".lock"]
        assert not (folder / "alignment").exists()
    for folder in (whole.run, whole.folder / "run.private"):
        assert not [path for path in folder.rglob(".*") if path.name != ".lock"]


@pytest.mark.parametrize(
    "kind", ["synchronous", "real", pytest.param("virtual", marks=soak), pytest.param("aligning", marks=soak)]
)
def test_kills_at_random_moments(consortium, undisturbed, kind):
    """Of the server and of clients: nothing is lost or counted twice, and what can be the same is the same."""
    rng, n_done, number = random.Random(list(KINDS).index(kind)), 0, 0  # noqa: S311
    while n_done < N_KILLS:
        whole, number = consortium(f"number {number}", **KINDS[kind]), number + 1
        whole.start_all()
        n_done += kill_at_random(whole, min(KILLS_EACH, N_KILLS - n_done), rng)
        bring_to_end(whole)
        check(whole, is_repeated=kind != "real")
        if kind != "real":
            assert whole.records() == undisturbed(kind)
    print(f"{kind}: {n_done} kills in {number} trainings")  # noqa: T201


def test_a_full_disk_at_the_server(consortium, undisturbed):
    """Here, a limit of the size of files: the server ends, says why, and continues when there is room."""
    whole = consortium(training=SYNCHRONOUS)
    for name in whole.clients:
        whole.start(name)
    whole.start("serve", largest_file=100_000)
    whole.wait_for(lambda: whole.is_over("serve"))
    assert whole.processes["serve"][0].returncode == 2
    assert "File too large" in whole.log("serve")
    assert "continue with the same command" in whole.log("serve")
    assert "Traceback" not in whole.log("serve")
    whole.start("serve")
    assert {*whole.finish().values()} == {0}
    check(whole, is_repeated=True)
    assert whole.records() == undisturbed("synchronous")


def test_a_client_that_hangs_longer_than_the_deadline(consortium, undisturbed):
    """The server stops; when the client wakes up, it finds the next server and continues."""
    whole = consortium(training=SYNCHRONOUS, server={"deadline": 1.5})
    whole.start_all()
    whole.wait_for(lambda: whole.n_bytes() > 100_000)
    hanging, _ = whole.processes["shop"]
    hanging.send_signal(signal.SIGSTOP)
    whole.wait_for(lambda: whole.is_over("serve"))
    assert whole.processes["serve"][0].returncode == EXIT_MISSING
    hanging.send_signal(signal.SIGCONT)
    whole.start("serve")
    assert {*whole.finish().values()} == {0}
    check(whole, is_repeated=True)
    assert whole.records() == undisturbed("synchronous")


@soak
def test_a_client_that_hangs_longer_than_connections_live(consortium, undisturbed):
    """The server gives its connection up after half a minute, and the client comes back on another."""
    whole = consortium(training=SYNCHRONOUS, server={"deadline": 120.0})
    whole.start_all()
    whole.wait_for(lambda: whole.n_bytes() > 100_000)
    hanging, _ = whole.processes["shop"]
    hanging.send_signal(signal.SIGSTOP)
    whole.wait_for(lambda: "shop left" in whole.log("serve"), 60)
    hanging.send_signal(signal.SIGCONT)
    assert {*whole.finish().values()} == {0}
    check(whole, is_repeated=False)
    assert whole.records() == undisturbed("synchronous")
