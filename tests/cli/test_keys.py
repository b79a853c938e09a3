"""`verfedsv keys ca`, `request`, `approve`, `revoke` and `show`."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from tests.cli.inprocess import call
from tests.network.parties import make, openssl
from verfedsv import InputError
from verfedsv.network.admission import Allowed, Checker
from verfedsv.network.credentials import read_credentials
from verfedsv.settlement.keys import read_private_key, read_public_key

GOOD, OTHER, SHORT = "four words are enough", "something else altogether", "short"


def done(*arguments, **environment):
    """Return what a command prints that has to succeed."""
    result = call("keys", *arguments, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout


def refused(*arguments, **environment):
    """Return the error of a command that has to fail."""
    result = call("keys", *arguments, **environment)
    assert (result.returncode, result.stderr[:7]) == (2, "error: "), result.stdout
    return result.stderr


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return an empty folder that is the present one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("VERFEDSV_PASSPHRASE", raising=False)
    return tmp_path


@pytest.fixture
def consortium(place):
    """Return a folder with an authority in `ca`, and the requests of a client and a server."""
    done("ca", "ca")
    done("request", "--name", "telco")
    done("request", "--name", "server", "--host", "localhost", "--host", "10.0.0.5")
    return place


def names_in(folder):
    """Return the names of all files in a folder and below it."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def fingerprint_in(text):
    """Return the one fingerprint in a text."""
    (found,) = set(re.findall(r"[0-9a-f]{4}(?:-[0-9a-f]{4}){7}", text))
    return found


def test_three_machines_get_what_they_need(place):
    """The operator, a client and a server: only requests, certificates and the list travel, and both can connect."""
    machines = operator, client, server = [place / name for name in ("operator", "client", "server")]
    for machine in machines:
        machine.mkdir()
    os.chdir(operator)
    assert "ca.key: keep this secret and safe; whoever can read it can use it" in done("ca")
    told = {}
    for machine, name, hosts in ((client, "telco", ()), (server, "bank-server", ("--host", "localhost"))):
        os.chdir(machine)
        told[name] = fingerprint_in(done("request", "--name", name, *hosts))
        (machine / f"{name}.csr").rename(operator / f"{name}.csr")
        os.chdir(operator)
        shown = done("approve", f"{name}.csr", "--yes", *(["--server"] if hosts else []))
        assert f"fingerprint: {told[name]}\n" in shown
        for file in ("ca.crt", f"{name}.crt"):
            (machine / file).write_bytes((operator / file).read_bytes())
    (server / "revoked.crl").write_bytes((operator / "revoked.crl").read_bytes())
    assert names_in(client) == ["ca.crt", "telco.crt", "telco.key"]
    assert names_in(server) == ["bank-server.crt", "bank-server.key", "ca.crt", "revoked.crl"]
    serving = read_credentials(server / "bank-server.crt", server / "bank-server.key", server / "ca.crt", "server")
    joining = read_credentials(client / "telco.crt", client / "telco.key", client / "ca.crt", "client")
    checker = Checker(serving.authorities, Allowed.of({"telco": told["telco"]}), server / "revoked.crl")
    assert checker.check(joining.chain) == "telco"


@pytest.mark.usefixtures("consortium")
def test_the_operator_sees_what_it_signs():
    """Name, use, hosts, fingerprint and validity; a server's request is refused unless it is asked for."""
    shown = done("approve", "telco.csr", "--ca", "ca", "--yes", "--days", 30)
    assert shown.splitlines()[:3] == ["name:        telco", "for:         a client", "hosts:       none"]
    assert re.search(r"valid:       \d{4}-\d\d-\d\d \d\d:\d\d UTC to \d{4}-\d\d-\d\d \d\d:\d\d UTC\n", shown)
    message = refused("approve", "server.csr", "--ca", "ca", "--yes")
    assert "is for a server at localhost, 10.0.0.5; whoever gets that certificate can pass for the server" in message
    assert "hosts:       localhost, 10.0.0.5" in done("approve", "server.csr", "--ca", "ca", "--yes", "--server")
    done("request", "--name", "shop")
    assert "this request names no hosts" in refused("approve", "shop.csr", "--ca", "ca", "--yes", "--server")


def test_nothing_is_signed_if_nobody_can_be_asked(consortium):
    """A script has to say --yes."""
    before = names_in(consortium)
    assert "nobody can be asked here; compare the fingerprint, then add --yes" in refused(
        "approve", "telco.csr", "--ca", "ca"
    )
    assert names_in(consortium) == before


@pytest.mark.usefixtures("consortium")
def test_one_organisation_has_one_certificate():
    """A second is refused until it renews the first, which has its own number to revoke."""
    done("approve", "telco.csr", "--ca", "ca", "--yes")
    assert "--renew makes another" in refused("approve", "telco.csr", "--ca", "ca", "--yes")  # before the file's name
    done("request", "--name", "telco", "--key", "telco.key", "-o", "telco-2")
    message = refused("approve", "telco-2.csr", "--ca", "ca", "--yes")
    assert "one organisation has one certificate; --renew makes another" in message
    result = call("keys", "approve", "telco-2.csr", "--ca", "ca", "--yes", "--renew")
    assert "note: The key is that of an earlier certificate." in result.stderr
    (serial,) = re.findall(r"The certificate ([0-9a-f]+) stays valid until", result.stderr)
    assert f"revoked {serial} of telco, which was valid until" in done("revoke", serial, "--ca", "ca")
    assert f"revoked:     {serial}\n" in done("show", "ca/revoked.crl")
    openssl("verify", "-crl_check", "-CAfile", "ca/ca.crt", "-CRLfile", "ca/revoked.crl", "telco-2.crt")
    assert "was revoked at" in refused("revoke", "telco.crt", "--ca", "ca")


def test_files_are_never_overwritten(consortium):
    """No key, request, certificate or authority; the message says how to name others."""
    done("approve", "telco.csr", "--ca", "ca", "--yes")
    kept = {path: path.read_bytes() for path in consortium.rglob("*") if path.is_file()}
    assert "ca.key exists, and an authority is never overwritten" in refused("ca", "ca")
    assert "telco.key exists, and is never overwritten; name other files" in refused("request", "--name", "telco")
    assert "telco.csr exists" in refused("request", "--name", "telco", "--key", "telco.key")
    message = refused("approve", "telco.csr", "--ca", "ca", "--yes", "--renew")
    assert "telco.crt exists, and a certificate is never overwritten; name another file with -o" in message
    assert {path: path.read_bytes() for path in consortium.rglob("*") if path.is_file()} == kept


@pytest.mark.parametrize("name", ["a/b", "..", "a\\b"])
def test_names_that_are_no_names_of_files_need_one(place, name):
    """Otherwise a name could lead out of the folder."""
    if name != "..":
        assert "cannot be the name of a file; name the files with -o" in refused("request", "--name", name)
    done("request", "--name", name, "-o", "party")
    assert names_in(place) == ["party.csr", "party.key"]
    assert f"name:        {name}\n" in done("show", "party.csr")


def test_what_a_request_is_called_inside_does_not_decide_where_files_are_written(consortium):
    """The certificate is written beside the request, under its name."""
    done("request", "--name", "../../evil", "-o", "x")
    assert "x.crt: send this back, with ca/ca.crt" in done("approve", "x.csr", "--ca", "ca", "--yes")
    assert (consortium / "x.crt").exists()


def test_passphrases_come_from_the_environment_or_a_file(place):
    """For all keys: those that are made, and those that are used."""
    done("ca", "--passphrase", VERFEDSV_PASSPHRASE=GOOD)
    (place / "secret").write_text(f"{GOOD}\n")
    (place / "secret").chmod(0o600)
    assert "telco.key: keep this secret, on this machine; it is encrypted" in done(
        "request", "--name", "telco", "--passphrase-file", "secret"
    )
    for path in ("ca.key", "telco.key"):
        assert b"ENCRYPTED" in (place / path).read_bytes()
        assert "set VERFEDSV_PASSPHRASE, or name a file with --passphrase-file" in refused("show", path)
        assert done("show", path, "--passphrase-file", "secret") == done("show", path, VERFEDSV_PASSPHRASE=GOOD)
    assert "ca.key is encrypted" in refused("approve", "telco.csr", "--yes")
    assert "the passphrase is wrong" in refused("approve", "telco.csr", "--yes", VERFEDSV_PASSPHRASE=OTHER)
    done("approve", "telco.csr", "--yes", VERFEDSV_PASSPHRASE=GOOD)
    done("revoke", "telco", "--passphrase-file", "secret")
    done("request", "--name", "telco", "--key", "telco.key", "-o", "next", "--passphrase-file", "secret")


@pytest.mark.parametrize("command", [("ca",), ("request", "--name", "telco")])
def test_a_passphrase_that_cannot_be_asked_for_or_is_short_is_an_error(place, command):
    """And no key is written."""
    assert "nobody can be asked for a passphrase here: set VERFEDSV" in refused(*command, "--passphrase")
    assert "at least 12 characters; received 5" in refused(*command, "--passphrase", VERFEDSV_PASSPHRASE=SHORT)
    assert names_in(place) == []


@pytest.mark.usefixtures("consortium")
def test_a_passphrase_of_no_new_key_is_an_error():
    """It would protect nothing."""
    message = refused("request", "--name", "telco", "--key", "telco.key", "-o", "next", "--passphrase")
    assert "--passphrase encrypts a new key; with --key, no key is written" in message


@pytest.mark.usefixtures("consortium")
def test_show_prints_what_is_in_a_file():
    """The fingerprint is the same in a key, its request and its certificate; a key shows nothing else."""
    done("approve", "server.csr", "--ca", "ca", "--yes", "--server")
    texts = [done("show", f"server.{ending}") for ending in ("key", "csr", "crt")]
    assert len(set(map(fingerprint_in, texts))) == 1
    assert texts[0] == f"{fingerprint_in(texts[0])}\n"
    labels = [line.partition(":")[0] for line in texts[2].splitlines()]
    assert labels == ["kind", "name", "for", "hosts", "from", "until", "serial", "fingerprint", "sha256"]
    assert re.search(r"until:       \d{4}-\d\d-\d\d \d\d:\d\d UTC", texts[2])
    assert "for:         authority" in done("show", "ca/ca.crt")
    assert "kind:        revocation list" in done("show", "ca/revoked.crl")


@pytest.mark.usefixtures("consortium")
def test_show_as_json_has_the_same():
    """A list of objects, for all kinds of files."""
    done("approve", "telco.csr", "--ca", "ca", "--yes")
    done("new", "statements")
    (certificate,) = json.loads(done("show", "telco.crt", "--json"))
    assert (certificate["name"], certificate["for"], certificate["hosts"]) == ("telco", ["client"], [])
    assert certificate["until"].endswith("+00:00")
    kinds = {
        "telco.csr": "signing request",
        "telco.key": "private key for TLS",
        "statements.key": "private key for statements",
        "statements.pub": "public key for statements",
        "ca/revoked.crl": "revocation list",
    }
    for path, kind in kinds.items():
        (content,) = json.loads(done("show", path, "--json"))
        assert content["kind"] == kind
    assert done("show", "statements.key") == done("show", "statements.pub")


def test_several_certificates_in_one_file_are_all_shown(place):
    """As a chain."""
    (place / "chain.pem").write_bytes(make("telco").pem + make("Middle", is_authority=True).pem)
    assert re.findall(r"name: +(\w+)", done("show", "chain.pem")) == ["telco", "Middle"]


@pytest.mark.usefixtures("consortium")
def test_keys_of_the_other_kind_are_refused():
    """Keys for TLS sign no statements, and keys for statements are not for TLS."""
    done("new", "statements")
    message = refused("request", "--name", "bank", "--key", "statements.key")
    assert "is an Ed25519 key: that is for signing statements, and TLS needs another" in message
    done("approve", "telco.csr", "--ca", "ca", "--yes")
    with pytest.raises(InputError, match="keys for TLS sign no statements; make one: verfedsv keys new"):
        read_private_key(Path("telco.key"))
    for read in (read_private_key, read_public_key):
        with pytest.raises(InputError, match=r"telco\.crt is for TLS; statements are signed and checked with"):
            read(Path("telco.crt"))


CHILD = """
import os, sys
os.open(sys.argv[1], os.O_RDWR)  # makes it the terminal of this session, where passphrases are typed
from verfedsv.cli import app
for line in sys.argv[2:]:
    sys.argv = ["verfedsv", *line.split()]
    try:
        app()
    except SystemExit as end:
        print("code", end.code or 0, flush=True)
"""


def converse(commands, answers):
    """Return what commands print in a terminal where somebody answers these prompts, hidden or not."""
    ours, theirs = pty.openpty()
    child = subprocess.Popen(  # noqa: S603  # our own script
        [sys.executable, "-c", CHILD, os.ttyname(theirs), *commands],
        start_new_session=True,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=os.environ | {"TERM": "dumb", "NO_COLOR": "1", "COLUMNS": "200"},
    )
    seen, start, deadline = "", 0, time.monotonic() + 40
    pending = list(answers)
    while child.poll() is None and time.monotonic() < deadline:
        if select.select([ours], [], [], 0.05)[0]:
            seen += os.read(ours, 4096).decode()
        # What is typed before the terminal hides it would be discarded, as by any program that asks for a password.
        is_hidden = not termios.tcgetattr(theirs)[3] & termios.ECHO
        if pending and pending[0][0] in seen[start:] and is_hidden is pending[0][2]:
            start = len(seen)
            os.write(ours, pending.pop(0)[1].encode() + b"\n")
    while select.select([ours], [], [], 0.05)[0]:
        seen += os.read(ours, 4096).decode()
    child.kill()
    child.wait()
    os.close(ours)
    os.close(theirs)
    assert not pending, seen
    return seen.replace("\r\n", "\n")


def test_in_a_terminal_people_are_asked(place):
    """Twice for a new passphrase, which is not shown; for consent, with no as the default; and for the passphrase."""
    done("request", "--name", "telco")
    seen = converse(
        ["keys ca --passphrase", "keys approve telco.csr", "keys approve telco.csr"],
        [
            ("New passphrase", GOOD, True),
            ("The same again", OTHER, True),
            ("New passphrase", GOOD, True),
            ("The same again", GOOD, True),
            ("Is this the fingerprint", "", False),
            ("Is this the fingerprint", "y", False),
            ("Passphrase of ca.key", GOOD, True),
        ],
    )
    assert GOOD not in seen
    assert re.findall(r"^code (\d)", seen, re.MULTILINE) == ["0", "2", "0"]
    assert "error: nothing was signed" in seen
    assert "[y/N]" in seen
    assert (place / "telco.crt").exists()
    assert b"ENCRYPTED" in (place / "ca.key").read_bytes()
