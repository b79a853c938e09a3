import json
import os
from functools import partial

import numpy as np
import pytest

from tests.cli.inprocess import call
from tests.network.consortium import Consortium
from verfedsv.network.authority import Authority
from verfedsv.network.consortium import make_keys
from verfedsv.network.handshakes import Handshakes
from verfedsv.network.messages import End
from verfedsv.network.requests import new_request, read_request
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


def test_another_host_than_those_in_the_certificate(consortium):
    """The hosts that the certificate has are said."""
    keys = consortium.folder / "keys"
    new_request(keys / "other", "other", ("bank.example", "10.0.0.1"))
    authority = Authority.open(keys)
    authority.approve(read_request(keys / "other.csr"), authority.read_key(lambda _: b""), keys / "other.crt")
    text = consortium.config.read_text(encoding="utf-8")
    consortium.config.write_text(text.replace("keys/server.", "keys/other."), encoding="utf-8")
    run = NetworkRun.of_file(consortium.config)
    port = run.open(*run.credentials(None))
    try:
        result = call("doctor", f"127.0.0.1:{port}", *OPTIONS)
    finally:
        run.close(End("", 0, 0, "over", is_finished=True))
    assert result.returncode == 1, result.stdout
    state, text = states(result)["server"]
    assert state == "bad"
    assert text.endswith("than the one dialled; dial one of those that it has: bank.example, 10.0.0.1")


def test_nobody_listens(consortium):
    """The port is said to be closed, and no connection is tried."""
    result = call("doctor", f"127.0.0.1:{consortium.port}", *OPTIONS)
    assert result.returncode == 1
    found = states(result)
    assert found["port"] == (
        "bad",
        f"nothing answers at 127.0.0.1:{consortium.port}: is the server started?",  # no firewall on loopback
    )
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
    assert found["certificate"][0] == found["labels"][0] == "bad"
    assert "has no column 'y'" in found["labels"][1]
    assert found["folder"][0] == "ok"  # the rest is checked all the same


def relabel(consortium, label_of):
    """Replace the labels in the server's file."""
    path = consortium.folder / "bank.csv"
    header, *lines = path.read_text(encoding="utf-8").splitlines()
    place = header.split(",").index("label")
    rows = [line.split(",") for line in lines]
    for number, row in enumerate(rows):
        row[place] = label_of(number)
    path.write_text("\n".join([header, *map(",".join, rows)]) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("label_of", "says"),
    [
        (lambda number: f"{number + 0.5}", 'If they are amounts, set loss = "squared"'),
        (lambda _: "1", "labels need 2 to 1,000 different values; there are 1"),
        (lambda _: "", "there are 0"),
    ],
)
def test_labels_that_cannot_be_trained_on(consortium, label_of, says):
    """The doctor says what to do, and serve ends before it listens."""
    relabel(consortium, label_of)
    done = call("doctor", str(consortium.config), "--json")
    state, text = states(done)["labels"]
    assert (done.returncode, state) == (1, "bad")
    assert says in text
    done = call("serve", consortium.config, "--insecure")
    assert (done.returncode, "listening" in done.stdout) == (2, False)
    assert says.split(";")[0] in done.stderr


def test_labels_that_are_missing(consortium):
    """Are counted, and no error."""
    relabel(consortium, lambda number: "" if number < 7 else str(number % 2))
    state, text = states(call("doctor", str(consortium.config), "--json"))["labels"]
    assert state == "ok"
    assert text.endswith("; 7 rows have no label, and are left out")


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
