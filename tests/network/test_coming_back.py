"""Parties that end at any message and come back, in one process."""

import errno
import os
import shutil
import threading
import time
from importlib import import_module

import numpy as np
import pytest

from tests.cli.inprocess import call
from tests.network.rehearsal import Killed, RandomKills, Rehearsal, wait_until
from verfedsv.cli import EXIT_MISSING
from verfedsv.errors import InputError, MissingClientError
from verfedsv.federation.messages import Embed, Gradients, Predict, Restore, Save
from verfedsv.network import messages as net
from verfedsv.network.journal import Journal
from verfedsv.network.member import Member
from verfedsv.network.serving import NetworkRun
from verfedsv.settlement.audit import audit

SHORT = {"rounds": 30, "evaluate_every": 5}
VIRTUAL = {"mode": "asynchronous", "clock": "virtual", "rounds": None, "duration": 3.0, "stamp_every": 0.1}
VIRTUAL |= {"period": 0.1, "evaluate_every": 5}
MODES = {"synchronous": SHORT, "virtual": VIRTUAL}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The records of trainings in which nothing happens, by mode."""
    found = {}
    for mode, training in MODES.items():
        whole = Rehearsal(tmp_path_factory.mktemp(mode), training=training)
        whole.join()
        assert not whole.serve()
        whole.wait_for_parties()
        whole.check_uploads(is_repeated=False)
        found[mode] = whole.records()
    return found


def once(kind, *, is_done):
    """Return a tap that kills once, at the second message of a kind, before or after it is carried out."""
    seen = []

    def tap(_, message, done):
        if isinstance(message, kind) and done == is_done:
            seen.append(message)
            if len(seen) == 2:
                raise Killed

    return tap


@pytest.mark.parametrize("is_done", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("kind", [Embed, Gradients, Predict, Save, net.Deliver], ids=lambda kind: kind.__name__)
def test_a_client_killed_at_a_message(tmp_path, undisturbed, kind, is_done):
    """Before it is carried out, or before its answer is sent: nothing changes."""
    whole = Rehearsal(tmp_path, training=SHORT)
    whole.join("telco", tap=once(kind, is_done=is_done))
    whole.join("shop")
    assert not whole.serve()
    whole.wait_for_parties()
    assert whole.parties["telco"].n_killed == 1
    assert whole.records() == undisturbed["synchronous"]
    whole.check_uploads(is_repeated=False)


@pytest.mark.parametrize("mode", MODES)
def test_a_server_killed_at_any_exchange(tmp_path, undisturbed, mode):
    """And clients at any message, many times: what is recorded is the same as without, each upload once."""
    whole = Rehearsal(tmp_path, training=MODES[mode])
    whole.join(tap=RandomKills(10, 0.03, 1))
    n_killed = whole.serve_again(RandomKills(6, 0.03, 2))
    whole.wait_for_parties()
    assert n_killed + sum(party.n_killed for party in whole.parties.values()) >= 10
    assert whole.records() == undisturbed[mode]
    whole.check_uploads(is_repeated=True)


@pytest.mark.parametrize("when", [net.Begin, Save, Restore], ids=lambda kind: kind.__name__)
def test_a_server_killed_before_training(tmp_path, undisturbed, when):
    """Before clients begin, before the first checkpoint, and before they have gone back to one."""
    whole = Rehearsal(tmp_path, training=SHORT)
    whole.join()
    kinds = []

    def tap(messages):
        if isinstance(messages[0], when) and when not in kinds:
            kinds.append(when)
            raise Killed
        if isinstance(messages[0], Embed) and messages[0].round == 12 and "middle" not in kinds:
            kinds.append("middle")
            raise Killed

    assert whole.serve_again(tap) == 2
    assert {*kinds} == {when, "middle"}
    whole.wait_for_parties()
    assert whole.records() == undisturbed["synchronous"]


# Alignment


@pytest.mark.parametrize("kind", [net.Introduce, net.StartAlignment, net.Blind, net.Open, net.Finish, net.Agree])
def test_an_alignment_begins_again(tmp_path, kind):
    """If a client is killed in it, at whatever message; nothing of it is left behind."""
    whole = Rehearsal(tmp_path, training=SHORT, data={"aligned": False})
    killed = []

    def tap(_, message, is_done):
        if isinstance(message, kind) and is_done and not killed:
            killed.append(message)
            raise Killed

    whole.join("telco", tap=tap)
    whole.join("shop")
    assert not whole.serve()
    whole.wait_for_parties()
    assert killed
    if kind in (net.Blind, net.Open):  # what came before is lost with the key; earlier, nothing was
        assert any("the alignment begins again" in line for line in whole.log)
    assert len(whole.records()) == 30 * 4
    for folder in (tmp_path / "of-telco", tmp_path / "of-shop", tmp_path / "run.private"):
        assert not [path for path in folder.rglob("*") if path.is_dir() and path.name.startswith(("tmp", "verfedsv-"))]
        assert not (folder / "alignment").exists()


def test_an_alignment_whose_server_is_killed(tmp_path):
    """The next server aligns anew, and the training uses what all have agreed on."""
    whole = Rehearsal(tmp_path, training=SHORT, data={"aligned": False})
    whole.join()
    kinds = [net.Blind, net.Agree, net.Begin]

    def tap(messages):
        if kinds and isinstance(messages[0], kinds[0]):
            kinds.pop(0)
            raise Killed

    assert whole.serve_again(tap) == 3
    whole.wait_for_parties()
    assert any("were aligned before" in line for line in whole.log)  # Begin came after all had agreed
    assert len(whole.records()) == 30 * 4


def test_a_training_is_never_aligned_again(tmp_path):
    """Its samples would be in another order. The message says so, and what the others have kept is not overwritten."""
    whole = Rehearsal(tmp_path, training=SHORT, data={"aligned": False})
    whole.join("telco")
    whole.join("shop")
    with pytest.raises(Killed):
        whole.serve(stop_at(12))
    kept = [tmp_path / name / "aligned" for name in ("run.private", "of-telco")]
    before = [path.read_bytes() for path in kept]
    whole.parties["shop"].restart(lambda: (tmp_path / "of-shop").rename(tmp_path / "backup"))
    with pytest.raises(InputError, match=r"not the same at all parties any more, the server and shop, telco"):
        whole.serve()
    assert [path.read_bytes() for path in kept] == before

    def put_back():
        shutil.rmtree(tmp_path / "of-shop")
        (tmp_path / "backup").rename(tmp_path / "of-shop")

    whole.parties["shop"].restart(put_back)
    assert not whole.serve()
    assert len(whole.records()) == 30 * 4


def stop_at(number):
    """Return a tap that kills the server before a round."""

    def tap(messages):
        if isinstance(messages[0], Embed) and messages[0].round == number:
            raise Killed

    return tap


# Delivery


def test_who_was_away_gets_its_results_later(tmp_path):
    """From a server that is started on the finished run: it asks nobody else, and trains nothing."""
    whole = Rehearsal(tmp_path, training=SHORT)
    gone = []

    def leave(_, message, is_done):
        if isinstance(message, net.Deliver) and not is_done:
            gone.append(message)
            whole.parties["shop"].is_stopped = True
            raise Killed

    whole.join("telco")
    whole.join("shop", tap=leave)
    assert whole.serve(timeout=1.0) == ["shop"]
    whole.parties["telco"].join(10)
    assert whole.parties["telco"].end.is_finished
    received = tmp_path / "of-shop" / "received"
    assert not received.exists()
    before, asked = whole.records(), []
    whole.join("shop")
    assert not whole.serve(asked.extend, timeout=None)
    whole.parties["shop"].join(10)
    assert {type(message) for message in asked} == {net.Deliver}
    assert {message.client for message in asked} == {"shop"}
    assert {path.name for path in received.iterdir()} == {"value.json", "uploads.extract"}
    assert whole.records() == before


def test_a_service_serves_who_missed_its_results(tmp_path, monkeypatch):
    """The command ends with the code after which systemd starts it again, and then waits for that client."""
    whole, finish = Rehearsal(tmp_path, training=SHORT), NetworkRun.finish

    def leave(_, message, is_done):
        if isinstance(message, net.Deliver) and not is_done:
            whole.parties["shop"].is_stopped = True
            raise Killed

    whole.join("telco")
    whole.join("shop", tap=leave)
    monkeypatch.setattr(NetworkRun, "finish", lambda self, key: finish(self, key, 1.0))
    done = call("serve", whole.config, "--insecure")
    assert (done.returncode, done.stderr) == (EXIT_MISSING, "")
    assert "shop was not there to get its results" in done.stdout
    monkeypatch.undo()
    whole.join("shop")
    assert call("serve", whole.config, "--insecure").returncode == 0
    whole.wait_for_parties()
    assert (tmp_path / "of-shop" / "received" / "value.json").exists()


def test_who_has_lost_its_results_gets_them_again(tmp_path, monkeypatch):
    """From a server that is started although everybody has them, which then waits only some seconds."""
    monkeypatch.setattr("verfedsv.network.delivery.LATE", 2.0)
    whole = Rehearsal(tmp_path, training=SHORT)
    whole.join()
    assert not whole.serve()
    whole.wait_for_parties()
    shutil.rmtree(tmp_path / "of-shop")
    whole.join("shop")
    assert not whole.serve(timeout=None)
    whole.parties["shop"].join(10)
    assert (tmp_path / "of-shop" / "received" / "value.json").exists()


def test_leftovers_of_interrupted_writes_are_removed(tmp_path, undisturbed):
    """At a client and in the private folder of the server; other files stay."""
    whole = Rehearsal(tmp_path, training=SHORT)
    left = [
        tmp_path / "of-shop" / ".client-0-5.npz.abcd1234",
        tmp_path / "of-shop" / "received" / ".value.json.x_y_z_12",
    ]
    left += [tmp_path / "run.private" / ".aligned.abcd1234", tmp_path / "run.private" / "verfedsv-alignment-x" / "0"]
    kept = [tmp_path / "of-shop" / ".notes", tmp_path / "run.private" / "mine"]
    for path in (*left, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    whole.join()
    assert not whole.serve()
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in kept)
    assert whole.records() == undisturbed["synchronous"]


# Lost files


def killed_at_round(number):
    """Return a tap that kills a client once, when it has embedded in a round, and before it answers."""
    seen = []

    def tap(_, message, is_done):
        if isinstance(message, Embed) and message.round == number and is_done and not seen:
            seen.append(message)
            raise Killed

    return tap


def cut_journal(folder):
    """Take the last three messages from a journal: a step of training."""
    journal = Journal(folder / "journal", "shop")
    journal.begin(*[*journal][:-3])


def lose_checkpoints(folder):
    for path in folder.glob("client-*"):
        path.unlink()


def keep_checkpoints(folder):
    for path in folder.iterdir():
        if not path.name.startswith(("client-", "training")):
            path.unlink() if path.is_file() else shutil.rmtree(path)


LOSSES = {
    "the last messages": (cut_journal, "as after a power failure", False),
    "all but checkpoints": (keep_checkpoints, "another, or empty", False),
    "checkpoints": (lose_checkpoints, "another, or empty", True),
    "all": (shutil.rmtree, "another, or empty", True),
}


@pytest.mark.parametrize("what", LOSSES)
def test_a_client_that_lost_files_is_refused(tmp_path, undisturbed, what):
    """With what to do: the server is restarted, and if checkpoints are gone, its own are deleted first."""
    lose, message, is_begun_anew = LOSSES[what]
    whole = Rehearsal(tmp_path, training=SHORT, server={"deadline": 1.5})
    whole.join("telco")
    whole.join("shop", tap=killed_at_round(12), on_killed=lambda: lose(tmp_path / "of-shop"))
    with pytest.raises(MissingClientError, match=r"'shop' did not answer in round 12"):
        whole.serve()
    assert message in str(whole.parties["shop"].error)
    assert "let the server be restarted" in str(whole.parties["shop"].error)
    whole.parties["shop"].restart()
    if is_begun_anew:
        with pytest.raises(InputError, match=r"'shop' cannot go back to round 0, the last checkpoint") as raised:
            whole.serve()
        assert f"delete {whole.run / 'checkpoints'} and start the server again" in str(raised.value)
        shutil.rmtree(whole.run / "checkpoints")
    assert not whole.serve()
    assert whole.records() == undisturbed["synchronous"]
    whole.check_uploads(is_repeated=True)


@pytest.mark.parametrize("kind", [Embed, Gradients, Save, net.Begin, net.Deliver], ids=lambda kind: kind.__name__)
def test_a_client_whose_disk_is_full_ends(tmp_path, undisturbed, monkeypatch, kind):
    """With the reason, instead of being left out of a round; when it is started again, nothing is missing."""
    whole, failed = Rehearsal(tmp_path, training=SHORT), []
    original = Member._carry_out

    def carry_out(self, message):
        is_hit = self.name == "shop" and isinstance(message, kind) and message.round in (0, 10, 12) and not failed
        if not is_hit:
            return original(self, message)
        failed.append(message)
        full.add(threading.get_ident())
        try:
            return original(self, message)
        finally:
            full.clear()

    full = set()  # the threads, of one client each, whose disk is full

    def failing(write):
        def try_to(*arguments, **options):
            if threading.get_ident() in full:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "journal")
            return write(*arguments, **options)

        return try_to

    for place in ("network.journal.write_whole", "network.member.write_whole", "federation.checkpoints.writing"):
        module, _, name = place.rpartition(".")
        monkeypatch.setattr(f"verfedsv.{place}", failing(getattr(import_module(f"verfedsv.{module}"), name)))
    monkeypatch.setattr(Journal, "add", failing(Journal.add))
    monkeypatch.setattr(Member, "_carry_out", carry_out)
    whole.join()
    begun = threading.Thread(target=lambda: whole.parties["shop"].ended.wait(30) and whole.parties["shop"].restart())
    begun.start()
    assert not whole.serve()
    begun.join()
    assert failed
    assert "No space left" in str(whole.parties["shop"].first_error)
    assert whole.records() == undisturbed["synchronous"]


# Going on without a client


def test_a_round_without_a_client_is_not_repeated(tmp_path):
    """A server that went on without a client, and is killed, continues from what it recorded, and says where."""
    whole = Rehearsal(tmp_path, training=SHORT, server={"deadline": 0.5, "if_missing": "continue"})
    is_missed = lambda: any("goes on without it" in line for line in whole.log)  # noqa: E731
    whole.join("telco")
    whole.join("shop", tap=killed_at_round(8), on_killed=lambda: wait_until(is_missed))
    assert whole.serve_again(once_at(stop_at(25))) == 1
    whole.wait_for_parties()
    absent = [record for record in whole.records() if record[0] == "Stamp" and record[3]]
    assert 0 < len(absent) < 20
    assert sum("goes on without it" in line for line in whole.log) == 1
    assert [line for line in whole.log if line.startswith("continuing")] == ["continuing from round 24 of 30"]
    whole.check_uploads(is_repeated=False)
    assert audit(whole.run).passes


@pytest.mark.parametrize("is_aligned", [True, False], ids=["stated", "matched"])
def test_a_restarted_server_goes_on_without_a_client(tmp_path, is_aligned):
    """As before it was killed, after the deadline; the client catches up when it is back."""
    data = {"aligned": is_aligned}
    whole = Rehearsal(tmp_path, training=SHORT, data=data, server={"deadline": 0.5, "if_missing": "continue"})
    whole.join("telco")
    whole.join("shop", tap=killed_at_round(8), on_killed=lambda: wait_until(lambda: "gone on" in done, 60))

    def tap(messages):
        number = messages[0].round if isinstance(messages[0], Embed) else 0
        if number == 15 and "killed" not in done:
            done.append("killed")
            raise Killed
        if number == 18:
            done.append("gone on")
        if number == 22:
            wait_until(lambda: "shop" in whole.hub.connected(), 60)  # back before the end

    done = []
    assert whole.serve_again(tap) == 1
    whole.wait_for_parties()
    absent = [number for number, stamp in enumerate(stamps_of(whole), 1) if stamp[3]]
    assert {*range(8, 18)} <= {*absent}
    assert max(absent) < 23
    assert "'shop' is not there; the training goes on without it until it is back" in whole.log
    whole.check_uploads(is_repeated=False)
    assert audit(whole.run).passes


def stamps_of(whole):
    return [record for record in whole.records() if record[0] == "Stamp"]


def once_at(tap):
    """Return a tap that raises only once."""
    raised = []

    def once(messages):
        if not raised:
            try:
                tap(messages)
            except Killed:
                raised.append(True)
                raise

    return once


REAL = {"mode": "asynchronous", "clock": "real", "rounds": None, "duration": 3.0, "stamp_every": 0.1, "period": 0.02}
REAL |= {"evaluate_every": 2}


def test_nobody_waits_on_the_real_clock(tmp_path):
    """For a client that is away: not in evaluations, not between rounds, and not at the end."""
    whole = Rehearsal(tmp_path, training=REAL)
    times = []
    whole.join("telco")
    whole.join("shop", tap=killed_at_time(1.0), on_killed=lambda: wait_until(lambda: bool(times)))
    assert whole.serve(timeout=0.2) == ["shop"]
    times.append(True)
    uploads = [record for record in whole.records() if record[0] == "Upload"]
    last = max(record[2] for record in uploads if record[1] == "shop")
    assert last < 2.0
    gaps = np.diff([record[2] for record in uploads if record[1] == "telco"])
    assert gaps.max() < 1.0
    assert sum(record[2] > last for record in uploads if record[1] == "telco") > 10
    assert sum(record[0] == "Stamp" for record in whole.records()) == 30
    assert audit(whole.run).passes
    assert not whole.serve(timeout=None)
    whole.wait_for_parties()


def killed_at_time(seconds):
    """Return a tap that kills a client once, so many seconds after its first message."""
    begin, done = [], []

    def tap(_, message, _is_done):
        begin.append(time.monotonic())
        if not done and time.monotonic() - begin[0] > seconds and isinstance(message, Embed):
            done.append(True)
            raise Killed

    return tap


def test_kills_on_the_real_clock(tmp_path):
    """What was uploaded and answered is recorded, once; a restarted server continues from the last record."""
    whole = Rehearsal(tmp_path, training=REAL)
    whole.join(tap=RandomKills(6, 0.02, 3))
    n_killed = whole.serve_again(RandomKills(4, 0.01, 4))
    whole.wait_for_parties()
    assert n_killed + sum(party.n_killed for party in whole.parties.values()) >= 6
    whole.check_uploads(is_repeated=False)
    assert audit(whole.run).passes
