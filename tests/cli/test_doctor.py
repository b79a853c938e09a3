import json
import os
from functools import partial

import numpy as np
import pytest

from tests.cli.inprocess import call
from tests.network.consortium import Consortium
from verfedsv.network.consortium import make_keys
from verfedsv.network.handshakes import Handshakes
from verfedsv.network.messages import End
from verfedsv.network.serving import NetworkRun


@pytest.fixture
def consortium(tmp_path, monkeypatch):
    """A consortium with certificates; its folder is the current one."""
    keys = {"certificate": "keys/server.crt", "key": "keys/server.key", "authority": "keys/ca.crt"}
    whole = Consortium(tmp_path, server=keys | {"revoked": "keys/revoked.crl"}, data={"aligned": False})
    make_keys(tmp_path / "keys", whole.clients)
    monkeypatch.chdir(tmp_path)
    return whole


def states(result):
    """Return what was found of each thing, worst last."""
    found = {}
    for check in sorted(json.loads(result.stdout), key=lambda each: ["ok", "note", "bad"].index(each["state"])):
        found[check["what"]] = check["state"], check["text"]
    return found


@pytest.fixture
def serving(consortium):
    """A server that listens, with its port."""
    run = NetworkRun.of_file(consortium.config)
    admit, credentials = run.credentials(None)
    port = run.open(admit, credentials)
    yield f"127.0.0.1:{port}"
    run.close(End("", 0, 0, "over", is_finished=True))


def test_a_healthy_doctor_is_no_stranger(consortium, monkeypatch):
    """The server does not count its connection as one that came to nothing."""
    monkeypatch.setattr("verfedsv.network.server_keys.Handshakes", partial(Handshakes, late=0.0))
    run = NetworkRun.of_file(consortium.config)
    admit, handshakes = run.credentials(None)
    port = run.open(admit, handshakes)
    try:
        assert call("doctor", f"127.0.0.1:{port}", *OPTIONS).returncode == 0
        assert handshakes.ended() == 0
    finally:
        run.close(End("", 0, 0, "over", is_finished=True))


OPTIONS = ["--features", "telco.csv", "--certificate", "keys/telco.crt", "--json"]


def test_all_is_well(serving):
    """A client with everything in its place: all lines are ok, and the exit code is 0."""
    result = call("doctor", serving, *OPTIONS)
    assert result.returncode == 0, result.stdout
    found = states(result)
    assert {*found} == {"certificate", "ids", "columns", "folder", "host", "port", "server", "clock"}
    assert {state for state, _ in found.values()} <= {"ok", "note"}
    assert "lets you in as 'telco'" in found["server"][1]
    assert "240 different ones in column 'id'" in found["ids"][1]


@pytest.mark.parametrize(
    ("options", "what", "says"),
    [
        (["--certificate", "keys/server.crt"], "certificate", "is for a server"),
        (["--certificate", "none.crt", "--ca", "keys/ca.crt"], "certificate", "none.crt"),
        (["--ca", "keys/telco.crt"], "certificate", "not that of an authority"),
        (["--id", "customer"], "features", "has no column 'customer'; it has id"),
        (["--features", "none.csv"], "features", "none.csv"),
        (["--name", "bank"], "server", "says that it is"),
    ],
)
def test_what_is_wrong_at_a_client(serving, options, what, says):
    """One line says what, and the exit code is 1."""
    result = call("doctor", serving, *OPTIONS, *options)
    assert result.returncode == 1, result.stdout
    found = states(result)
    state, text = found[what]
    assert state == "bad"
    assert ("folder" in found) == (what != "certificate")  # it is named by the certificate
    assert says in text


def test_nobody_listens(consortium):
    """The port is said to be closed, and no connection is tried."""
    result = call("doctor", f"127.0.0.1:{consortium.port}", *OPTIONS)
    assert result.returncode == 1
    found = states(result)
    assert found["port"][0] == "bad"
    assert "server" not in found
    result = call("doctor", "no-such-host.invalid:8443", *OPTIONS)
    assert states(result)["host"][0] == "bad"


@pytest.mark.parametrize("address", ["127.0.0.1:99999", "127.0.0.1:-1", "127.0.0.1", "foo:", "https://127.0.0.1:8443"])
def test_what_is_no_address_is_a_wrong_option(consortium, address):
    """Of the server as well as of a client: never another port, and never a traceback."""
    for command in (["serve"], ["doctor", "--json"]):
        done = call(*command, consortium.config, "--address", address)
        assert (done.returncode, "--address should be HOST:PORT" in done.stderr) == (2, True), done.stderr
    if ":" in address:
        done = call("doctor", address, *OPTIONS)
        assert (done.returncode, "the address of the server should be HOST:PORT" in done.stderr) == (2, True)


def test_folders_that_cannot_be_written_to(serving, consortium, monkeypatch):
    """As on a file system that is read only: a client's, the server's, and its private one."""
    monkeypatch.setattr(os, "access", lambda _, mode: not mode & os.W_OK)
    assert states(call("doctor", serving, *OPTIONS))["folder"][0] == "bad"
    found = states(call("doctor", str(consortium.config), "--json"))
    assert found["folder"][0] == found["private"][0] == "bad"
    assert "cannot be written to" in found["private"][1]


def test_the_server_before_the_day(consortium):
    """Configuration, certificate, labels, folder and port; what is missing is said with what to do."""
    result = call("doctor", str(consortium.config), "--json")
    found = states(result)
    assert result.returncode == 0, result.stdout
    assert found["signing"][0] == "note"
    assert "240 rows" in found["labels"][1]
    consortium.config.write_text(consortium.config.read_text().replace('label = "label"', 'label = "y"'))
    (consortium.folder / "keys" / "server.key").unlink()
    found = states(call("doctor", str(consortium.config), "--json"))
    assert found["certificate"][0] == found["run"][0] == "bad"
    assert "has no column 'y'" in found["run"][1]


def test_cautions_on_columns_are_notes(serving, consortium):
    """Such as an empty column."""
    ids = np.arange(240)
    lines = ["id,x,empty", *(f"{own},{own % 7}," for own in ids)]
    (consortium.folder / "telco.csv").write_text("\n".join(lines), encoding="utf-8")
    state, text = states(call("doctor", serving, *OPTIONS))["columns"]
    assert (state, "no values in 'empty'" in text) == ("note", True)


def test_numbers_with_a_few_words_are_a_note(serving, consortium):
    """As they are read as text, which nothing else would say."""
    lines = ["id,x", *(f"{own},{own % 7 or '-'}" if own < 20 else f"{own},{own % 7}" for own in range(240))]
    (consortium.folder / "telco.csv").write_text("\n".join(lines), encoding="utf-8")
    state, text = states(call("doctor", serving, *OPTIONS))["columns"]
    assert (state, "column 'x' is text, as 3 of its 240 filled cells are not" in text) == ("note", True)


@pytest.mark.parametrize(("n_different", "state"), [(60, "ok"), (61, "note")])
def test_text_that_a_training_may_refuse_is_a_note(serving, consortium, n_different, state):
    """From half of the limit on, as common rows are fewer: here 61 different values in 240 rows."""
    lines = ["id,x,employer", *(f"{own},{own % 7},name {own % n_different}" for own in range(240))]
    (consortium.folder / "telco.csv").write_text("\n".join(lines), encoding="utf-8")
    found = states(call("doctor", serving, *OPTIONS))["columns"]
    assert found[0] == state
    assert ("'employer' is text with 61 different values in 240 rows" in found[1]) == (state == "note")
