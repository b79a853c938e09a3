"""`verfedsv keys`, `statement`, `extract` and `audit`."""

import json
import re
import shutil
import sys

import numpy as np
import pytest

from tests.cli.inprocess import call
from tests.settlement.runs import ASYNCHRONOUS, CLIENTS, CONFIG, diverge, make_run, without_derived
from verfedsv import Recorder, value


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return a folder with keys, payouts and a signed run."""
    place = tmp_path_factory.mktemp("place")
    make_run(place / "run")
    for arguments in (
        ("keys", "new", place / "k"),
        ("settle", place / "run", "--budget", 50, "--currency", "CHF", "--negative", "zero", "-o", place / "p.json"),
        ("statement", place / "run", "--key", place / "k.key", "--settlement", place / "p.json"),
    ):
        done = call(*arguments)
        assert done.returncode == 0, done.stderr
    return place


@pytest.fixture
def place(original, tmp_path):
    """Return a copy of it."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_keys_are_made_shown_and_kept(place):
    """The fingerprint is the same for both halves; nothing is overwritten."""
    shown = {call("keys", "show", place / name).stdout for name in ("k.key", "k.pub")}
    assert len(shown) == 1
    done = call("keys", "new", place / "k")
    assert (done.returncode, "exists, and a key is never overwritten" in done.stderr) == (2, True)
    assert "PRIVATE KEY" not in done.stdout + done.stderr


def test_help_marks_the_key_as_required():
    """As the arguments that typer itself asks for."""
    (line,) = [line for line in call("statement", "--help").stdout.splitlines() if "--key " in line and "FILE" in line]
    assert "* " in line


def test_a_statement_passes_its_audit(place):
    """By its own path, by the folder, and as JSON."""
    for path in (place / "run" / "statement.json", place / "run"):
        done = call("audit", path, "--public-key", place / "k.pub")
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.splitlines()[-1] == "passes"
        assert "50.00 CHF" in done.stdout
    done = call("audit", place / "run", "--json")
    assert json.loads(done.stdout)["passes"] is True
    assert "whose key that is" in json.loads(done.stdout)["notes"][0]


def test_a_difference_is_one_line_and_code_1(place):
    """On standard output, with what was found before it."""
    (place / "run" / "config.toml").write_text("")
    done = call("audit", place / "run")
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1] == "differs: 'config.toml' was changed"
    done = call("audit", place / "run", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout)["difference"] == "'config.toml' was changed"


def test_what_passes_with_reservation_only_has_a_code_of_its_own(place):
    """If another version halves the errors, the values agree, and a line says what does not."""
    path = place / "run" / "valuation.json"
    fields = json.loads(path.read_text())
    fields |= {"package": "verfedsv 0.0.1", "estimator_errors": [error / 9 for error in fields["estimator_errors"]]}
    path.write_text(json.dumps(without_derived(fields)))
    (place / "run" / "statement.json").unlink()
    done = call("audit", place / "run")
    assert done.returncode == 3, done.stdout
    assert done.stdout.splitlines()[-1] == "passes only with reservation"
    assert "reservation: error of client 'bank': valuation.json says 9.2e-07, the transcript gives" in done.stdout
    found = json.loads(call("audit", place / "run", "--json").stdout)
    assert (found["passes"], found["difference"], len(found["reservations"])) == (False, None, 2)


def test_values_by_settings_that_were_not_agreed_are_signed_and_audited_only_if_asked(place):
    """With an option of each command."""
    (place / "run" / "valuation.json").write_text(value(place / "run", seed=3).to_json())
    arguments = ("statement", place / "run", "--key", place / "k.key", "-o", place / "new.json")
    done = call(*arguments)
    assert done.returncode == 2
    assert "not computed with the agreed settings: seed is 3 and not 0" in done.stderr
    done = call(*arguments, "--accept-settings")
    assert done.returncode == 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "Accepted, although the values were not computed with the agreed settings: seed is 3 and not 0." in said
    assert call("audit", place / "new.json", "--run", place / "run").returncode == 1
    done = call("audit", place / "new.json", "--run", place / "run", "--accept-settings")
    assert done.returncode == 0, done.stdout
    assert "seed is 3 and not 0; accepted, as asked" in " ".join(done.stdout.split())


def test_an_extract_is_checked_against_a_statement(place):
    """And shows what its client gets."""
    done = call("extract", place / "run", "--client", "telco", "-o", place / "telco.extract")
    assert "6 uploads of client 'telco'" in done.stdout
    options = ("--statement", place / "run" / "statement.json", "--public-key", place / "k.pub")
    done = call("audit", place / "telco.extract", *options)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "own payout" in done.stdout
    content = bytearray((place / "telco.extract").read_bytes())
    content[-1] ^= 1  # in the client's last embedding
    (place / "telco.extract").write_bytes(content)
    done = call("audit", place / "telco.extract", *options)
    assert done.returncode == 1
    assert done.stdout.endswith("is not the one of the transcript: round 6, client 'telco'\n")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["statement", "run"], "pass --key FILE; verfedsv keys new NAME makes one"),
        (["statement", "run", "--key", "none.key"], "cannot read the key none.key"),
        (["statement", "run", "--key", "k.pub"], "is a public key; sign with the private one"),
        (["statement", "run", "--key", "k.key"], "it is a signed statement, which is never overwritten"),
        (["statement", "run", "--key", "k.key", "-o", "run"], "it is a folder; name a file"),
        (["statement", "run", "--key", "k.key", "-o", "k.pub"], "it is a key, which is never overwritten"),
        (["settle", "k.pub", "--budget", "1", "--currency", "EUR"], "Name the folder of a run, or a valuation.json"),
        (
            ["statement", "run", "--key", "k.key", "-o", "new.json", "--settlement", "p.csv"],
            "p.csv is a table for people",
        ),
        (
            ["statement", "run", "--key", "k.key", "-o", "new.json", "--settlement", "k.pub"],
            "not the JSON of a settlement",
        ),
        (["statement", "none", "--key", "k.key"], "there is no transcript in none"),
        (["audit", "none.json"], "cannot read none.json: No such file"),
        (["audit", "p.json"], "this is a settlement, not a statement that verfedsv wrote"),
        (["audit", "."], "there is no run in ."),
        (["audit", "run", "--run", "run"], "--run is not for the folder of a run"),
        (["audit", "run", "--public-key", "p.json"], "p.json is not a key in PEM"),
        (["audit", "run", "--public-key", "k.key"], "k.key is a private key, which only its owner should have"),
        (["audit", "telco.extract", "--public-key", "k.pub"], "add --statement FILE to check it by the key"),
        (["audit", "run/statement.json", "--run", "empty"], "none of the files that the statement lists is in empty"),
        (["audit", "odd.extract"], "the extract is damaged"),
        (["audit", "p.json", "--statement", "run/statement.json"], "this is a settlement, not a statement"),
        (["extract", "run", "--client", "nobody", "-o", "x.json"], "there is no client 'nobody'; there are 'bank'"),
        (["keys", "show", "p.json"], "p.json is not a key in PEM"),
    ],
)
def test_what_cannot_be_used_ends_with_a_message_and_code_2(place, monkeypatch, arguments, message):
    """In one line, without a traceback, and nothing is written."""
    monkeypatch.chdir(place)
    call("extract", "run", "--client", "telco", "-o", "telco.extract")
    (place / "empty").mkdir()
    (place / "p.csv").touch()
    content = (place / "telco.extract").read_bytes()
    (place / "odd.extract").write_bytes(content.replace(b'{"client"', b'{"foo": "1", "client"'))
    before = sorted(place.rglob("*"))
    done = call(*arguments)
    assert done.returncode == 2, done.stdout
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert sorted(place.rglob("*")) == before


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"per_round": [[1.0, 0.0, 0.0]] * 6, "values": [1.0, 0.0, 0.0]},
            "value of client 'bank': valuation.json says 6, the transcript gives",
        ),
        ({"estimator_errors": [0.0, 0.0, 0.0]}, "error of client 'bank': valuation.json says 0"),
        ({"n_samples": 9}, "n_samples: valuation.json says 9, the transcript gives 40"),
    ],
)
def test_a_valuation_that_was_changed_is_not_signed(place, change, message):
    """It is computed again first, even if it exists and is of this transcript."""
    path = place / "run" / "valuation.json"
    path.write_text(json.dumps(without_derived(json.loads(path.read_text()) | change)))
    done = call("statement", place / "run", "--key", place / "k.key", "-o", place / "new.json")
    assert done.returncode == 2
    assert "valuation.json is not signed, as it is not what the transcript gives: " in done.stderr
    assert message in done.stderr
    assert not (place / "new.json").exists()


@pytest.mark.parametrize("is_valued", [True, False])
def test_a_run_is_valued_once_to_be_signed(place, monkeypatch, is_valued):
    """Whether its valuation exists and is compared, or not."""
    calls = []
    module = sys.modules["verfedsv.cli.valuing"]
    monkeypatch.setattr(module, "value_run", lambda *a, **o: calls.append(o) or value(*a, **o))
    if not is_valued:
        (place / "run" / "valuation.json").unlink()
    done = call("statement", place / "run", "--key", place / "k.key", "-o", place / "new.json")
    assert done.returncode == 0, done.stderr
    assert len(calls) == 1


def test_how_to_check_a_statement_is_said_so_that_it_works(place, monkeypatch):
    """If the run is not below the statement, the command names its folder."""
    monkeypatch.chdir(place)
    (place / "elsewhere").mkdir()
    for output in ("run/new.json", "elsewhere/new.json"):
        done = call("statement", "run", "--key", "k.key", "-o", output)
        command = done.stdout.splitlines()[-1].removeprefix("to check it: verfedsv ")
        assert call(*command.split()).returncode == 0
        assert ("--run run" in command) == (output == "elsewhere/new.json")


def test_a_key_in_the_folder_of_the_run_is_refused(place):
    """It would be handed to auditors with the run."""
    shutil.copy(place / "k.key", place / "run" / "k.key")
    done = call("statement", place / "run", "--key", place / "run" / "k.key", "-o", place / "new.json")
    assert done.returncode == 2
    assert "keep it elsewhere" in done.stderr


def test_an_unfinished_run_is_settled_and_signed_as_such(tmp_path):
    """On the terminal of both commands, and in what they write."""
    run = make_run(tmp_path / "run", n_rounds=4)
    call("keys", "new", tmp_path / "k")
    options = ("--budget", 50, "--currency", "CHF", "--negative", "zero", "-o", tmp_path / "p.json")
    done = call("settle", run, *options)
    assert "The training was stopped after 4 of 6 rounds" in done.stdout
    assert "stopped after 4 of 6 rounds" in call("settle", run, *options, "--json").stderr
    assert "stopped after 4 of 6 rounds" in call("settle", run / "valuation.json", *options).stdout
    assert json.loads((tmp_path / "p.json").read_text())["n_planned"] == 6
    done = call("statement", run, "--key", tmp_path / "k.key", "--settlement", tmp_path / "p.json")
    assert done.returncode == 0, done.stderr
    assert "doubt: The training was stopped after 4 of 6 rounds" in done.stderr
    assert json.loads((run / "statement.json").read_text())["n_planned"] == 6
    assert "doubt: The training was stopped after 4 of 6 rounds" in " ".join(call("audit", run).stdout.split())


def test_a_run_that_is_still_running_is_neither_settled_nor_signed(place):
    """The error says so, and does not mention unfinished records."""
    with Recorder(place / "run" / "transcript", np.arange(40) % 2, CLIENTS, resume=True):
        with (place / "run" / "transcript" / "uploads-00001.arrows").open("ab") as file:
            file.write(b"half a record")
        done = call("statement", place / "run", "--key", place / "k.key", "-o", place / "new.json")
        assert (done.returncode, "the training is still running" in done.stderr) == (2, True)
        options = ("--budget", 50, "--currency", "CHF", "--negative", "zero")
        for arguments in (
            ("settle", place / "run", *options),
            ("settle", place / "run" / "valuation.json", *options),
            ("extract", place / "run", "--client", "telco", "-o", place / "telco.extract"),
            ("audit", place / "run"),
        ):
            done = call(*arguments)
            assert (done.returncode, "the training is still running" in done.stderr) == (2, True), arguments


def test_a_valuation_of_another_version_is_not_signed_if_it_differs(place):
    """The message names the version and what to do."""
    path = place / "run" / "valuation.json"
    fields = json.loads(path.read_text())
    fields |= {"package": "verfedsv 0.0.1", "estimator_errors": [9 * error for error in fields["estimator_errors"]]}
    path.write_text(json.dumps(without_derived(fields)))
    done = call("statement", place / "run", "--key", place / "k.key", "-o", place / "new.json")
    assert done.returncode == 2
    assert "gives (it was made with verfedsv 0.0.1, and this is verfedsv " in done.stderr
    assert "Delete it, and the run is valued again" in done.stderr


def test_a_training_that_diverged_is_neither_settled_nor_signed_unless_asked(tmp_path):
    """Clients would be paid for undoing what the server's intercept did; with the option, every output says so."""
    run = diverge(tmp_path / "run")
    call("keys", "new", tmp_path / "k")
    pay = ("settle", run, "--budget", 50, "--currency", "CHF", "-o", tmp_path / "p.json")
    sign = ("statement", run, "--key", tmp_path / "k.key", "--settlement", tmp_path / "p.json")
    rose = "The loss rose over the training, from 0.6931 to 12.92: the model became worse."
    mostly = "The server's own part changed the loss more than all clients together: it raised it by 36.43, the clients"
    books = "loss 0.6931 at the start, 12.9176 at the end; the clients lowered it by 24.2061, the server raised it by "
    done = call(*pay)
    assert (done.returncode, done.stdout, (tmp_path / "p.json").exists()) == (2, "", False)
    assert f"not settled: {rose}" in done.stderr
    assert "To continue anyway, add --even-if-the-loss-rose" in done.stderr
    done = call(*pay, "--even-if-the-loss-rose")
    assert done.returncode == 0, done.stderr
    shown = " ".join(done.stdout.split())
    assert all(text in shown for text in (rose, mostly, f"Books: {books}"))
    assert json.loads((tmp_path / "p.json").read_text())["books"]["end"] == pytest.approx(12.92, abs=0.01)
    done = call(*sign)
    assert (done.returncode, f"not signed: {rose}" in done.stderr) == (2, True)
    done = call(*sign, "--even-if-the-loss-rose")
    assert done.returncode == 0, done.stderr
    assert f"books: {books}" in done.stdout
    assert rose in " ".join(done.stderr.split())
    done = call("audit", run)
    assert done.returncode == 0, done.stdout
    shown = " ".join(done.stdout.split())
    assert all(text in shown for text in (rose, mostly, "books ok loss 0.6931 at the start"))


def test_the_server_can_be_paid(tmp_path):
    """Only with an option, under a name of its own."""
    run = make_run(tmp_path / "run", mode="asynchronous")
    (run / "config.toml").unlink()
    pay = ("settle", run, "--budget", 50, "--currency", "CHF", "--negative", "deduct")
    assert "hub" not in call(*pay).stdout
    done = call(*pay, "--pay-server", "hub")
    assert done.returncode == 0, done.stderr
    assert any(line.startswith("hub ") for line in done.stdout.splitlines())
    assert re.search(r"the server pays in \d+\.\d\d CHF for its own part, as 'hub'", " ".join(done.stdout.split()))
    call(*pay, "--pay-server", "hub", "-o", tmp_path / "p.json")
    done = call("report", run, "--settlement", tmp_path / "p.json", "-o", tmp_path / "report.md")
    assert done.returncode == 0, done.stderr
    assert "| hub |" in (tmp_path / "report.md").read_text()
    done = call(*pay, "--pay-server", "telco")
    assert (done.returncode, "cannot have the name of client 'telco'" in done.stderr) == (2, True)


def test_a_name_for_the_server_that_looks_like_a_clients_is_said_when_it_is_settled_and_signed(tmp_path):
    """Whoever signs should see it too."""
    run = make_run(tmp_path / "run", mode="asynchronous")
    (run / "config.toml").unlink()
    warned = r"'telco' and 't\u0435lco' look alike"
    options = ("--budget", 50, "--currency", "CHF", "--negative", "zero", "--pay-server", "t\u0435lco")
    assert warned in call("settle", run, *options, "-o", tmp_path / "p.json").stdout
    call("keys", "new", tmp_path / "k")
    done = call("statement", run, "--key", tmp_path / "k.key", "--settlement", tmp_path / "p.json")
    assert done.returncode == 0, done.stderr
    assert warned in done.stderr


def test_an_own_part_of_the_server_that_was_not_agreed_on_is_neither_settled_nor_signed(tmp_path):
    """Unless an option allows it: the configuration says that there is none."""
    run = make_run(tmp_path / "run", mode="asynchronous")
    config = CONFIG.replace("rounds = 6", ASYNCHRONOUS.replace("intercept = true", "intercept = false"))
    (run / "config.toml").write_text(config)
    call("keys", "new", tmp_path / "k")
    pay = ("settle", run, "--budget", 50, "--currency", "CHF", "--negative", "zero")
    for command in (pay, ("statement", run, "--key", tmp_path / "k.key")):
        done = call(*command)
        assert done.returncode == 2
        assert "it was agreed that the server has no intercept" in done.stderr
        assert call(*command, "--accept-settings").returncode == 0


def test_what_the_run_noted_is_repeated_where_it_is_settled_and_signed(tmp_path):
    """On standard error, as `value` does: whoever signs should know it."""
    run = make_run(tmp_path / "run")
    (run / "notes.json").write_text(json.dumps(["telco: column 'paid' gives the label away"]))
    call("keys", "new", tmp_path / "k")
    pay = ("settle", run, "--budget", 50, "--currency", "CHF", "--negative", "zero")
    for command in (("value", run), pay, ("statement", run, "--key", tmp_path / "k.key")):
        done = call(*command)
        assert done.returncode == 0, done.stderr
        assert "note: telco: column 'paid' gives the label away.\n" in done.stderr
        assert "note: The loss was still falling at the end" in done.stderr
