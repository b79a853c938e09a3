import json
import os
import signal
import subprocess
import sys
import time

import pytest

import verfedsv
from tests.network.consortium import Consortium
from verfedsv.network.authority import Authority
from verfedsv.network.certificates import read_certificates
from verfedsv.network.consortium import file_name, make_keys


@pytest.fixture
def consortium(tmp_path):
    """A configuration of three parties with the files of all."""
    features = '{ telco = "telco.csv", shop = "shop.csv" }'
    settings = {"rounds": 60, "evaluate_every": 10}
    data = {"aligned": False}
    return Consortium(tmp_path, training=settings, data=data, extra=f"[up]\nfeatures = {features}\n")


def command(config, *options):
    return [sys.executable, "-m", "verfedsv", "up", str(config), *options]


ENVIRONMENT = {**os.environ, "NO_COLOR": "1", "COLUMNS": "160", "OMP_NUM_THREADS": "1"}


def test_all_parties_on_one_machine(consortium):
    """By mutual TLS: ids are aligned, all train, every client gets its part, and the report is written."""
    done = subprocess.run(  # noqa: S603
        command(consortium.config), capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "round 60 of 60" in done.stdout
    assert (consortium.folder / "run.html").stat().st_size > 10_000
    transcript = verfedsv.Transcript.open(consortium.run)
    assert transcript.clients == ("bank", "telco", "shop")
    assert transcript.n_rounds == 60
    private = consortium.folder / "run.private"
    assert private.stat().st_mode & 0o777 == 0o700
    for name in ("telco", "shop"):
        own = json.loads((private / name / "received" / "value.json").read_text(encoding="utf-8"))
        assert own["client"] == name
        assert own["transcript"] == transcript.head
    assert "240 ids are common to all: 100.0% of bank's 240" in (private / "telco.log").read_text(encoding="utf-8")


def test_ctrl_c_ends_all_and_the_same_command_continues(consortium):
    """No process is left, nothing is printed as a traceback, and the certificates are those of before."""
    process = subprocess.Popen(  # noqa: S603
        command(consortium.config), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
    )
    end = time.monotonic() + 60
    while consortium.n_bytes() < 20_000:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "Traceback" not in text
    keys = consortium.folder / "run.private" / "keys"
    before = (keys / "ca.crt").read_bytes()
    running = subprocess.run(["pgrep", "-f", str(consortium.folder)], capture_output=True, check=False)  # noqa: S603, S607
    assert running.stdout == b""
    done = subprocess.run(  # noqa: S603
        command(consortium.config), capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 0, done.stdout
    assert verfedsv.Transcript.open(consortium.run).n_rounds == 60
    assert (keys / "ca.crt").read_bytes() == before


def test_a_second_ctrl_c_does_not_wait(consortium):
    """For a server that takes its time: all are killed."""
    process = subprocess.Popen(  # noqa: S603
        command(consortium.config), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=ENVIRONMENT
    )
    end = time.monotonic() + 60
    while consortium.n_bytes() < 20_000:
        assert process.poll() is None
        assert time.monotonic() < end
        time.sleep(0.05)
    found = subprocess.run(["pgrep", "-f", f"serve {consortium.config}"], capture_output=True, check=True)  # noqa: S603, S607
    os.kill(int(found.stdout), signal.SIGSTOP)
    process.send_signal(signal.SIGINT)
    with pytest.raises(subprocess.TimeoutExpired):
        process.communicate(timeout=1)
    process.send_signal(signal.SIGINT)
    text, _ = process.communicate(timeout=10)
    assert process.returncode == 130, text
    assert "Traceback" not in text
    running = subprocess.run(["pgrep", "-f", str(consortium.folder)], capture_output=True, check=False)  # noqa: S603, S607
    assert running.stdout == b""


def test_what_failed_is_said(consortium):
    """The party and its own words."""
    (consortium.folder / "shop.csv").write_text("id,x\n1,2\n1,3\n", encoding="utf-8")
    done = subprocess.run(  # noqa: S603
        command(consortium.config), capture_output=True, text=True, env=ENVIRONMENT, check=False
    )
    assert done.returncode == 2
    assert "shop: " in done.stderr
    assert "ids must be unique" in done.stderr


def test_every_party_gets_a_certificate_of_its_own(tmp_path):
    """Whatever its name; existing keys are kept, and what an interrupted start left is made anew."""
    names = ("telco", "../shop", "ca")
    assert [file_name(names, name) for name in names] == ["telco", "client-2", "client-3"]
    (tmp_path / "keys.part").mkdir()
    make_keys(tmp_path / "keys", names)
    found = {path.name: read_certificates(path)[0].name for path in (tmp_path / "keys").glob("*.crt")}
    authority = Authority.open(tmp_path / "keys").certificate.name
    expected = {"ca.crt": authority, "server.crt": "server", "telco.crt": "telco", "client-2.crt": "../shop"}
    assert found == expected | {"client-3.crt": "ca"}
    make_keys(tmp_path / "keys", names)
    assert not (tmp_path / "keys.part").exists()
