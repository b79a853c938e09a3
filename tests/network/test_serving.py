"""Whole runs over a network, in one process: watched, with a client that leaves, with one that refuses."""

import json
import threading
import time
from urllib.request import urlopen

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from tests.network.rehearsal import Killed, Rehearsal
from verfedsv.errors import InputError, MissingClientError
from verfedsv.federation import Client
from verfedsv.federation.messages import Embed, Embeddings, Restore, Save
from verfedsv.network.member import Member
from verfedsv.network.serving import NetworkRun
from verfedsv.report.reading import facts_of
from verfedsv.runs.folder import RunFolder
from verfedsv.valuation.verdict import judge
from verfedsv.watch.server import Watch

SHORT = {"rounds": 30, "evaluate_every": 5}


def test_watch_follows_a_run_over_a_network(tmp_path):
    """From before its first round to its end."""
    whole, states = Rehearsal(tmp_path, training=SHORT), []
    page = Watch(whole.run, every=0.1)
    threading.Thread(target=page.run, daemon=True).start()

    def state():
        with urlopen(f"{page.address}state.json", timeout=30) as response:  # noqa: S310  # of this process
            return json.load(response)

    states.append(state())
    whole.join()
    assert not whole.serve()
    whole.wait_for_parties()
    end = time.monotonic() + 60
    while states[-1]["n_rounds"] < 30 and time.monotonic() < end:
        time.sleep(0.05)
        states.append(state())
    page.stop()
    assert states[0]["n_rounds"] == 0
    assert states[-1]["n_rounds"] == 30
    assert {"bank", "telco", "shop"} <= {cell[0] for row in states[-1]["table"]["rows"] for cell in row}


@pytest.mark.parametrize("private", ["run", "run/ids", "other/../run", "link/ids"])
def test_what_is_private_is_not_in_the_folder_of_the_run(tmp_path, private):
    """Which auditors get: by no detour, and the operator is told before anything is written."""
    whole = Rehearsal(tmp_path, server={"private": private}, data={"aligned": True})
    (tmp_path / "link").symlink_to(tmp_path / "run", target_is_directory=True)
    with pytest.raises(InputError, match="must not be in the folder of the run"):
        NetworkRun.of_file(whole.config)


def test_who_left_is_asked_for_its_checkpoint(tmp_path):
    """Once, as it may come back; then it is asked for nothing more, until a killed server takes all back."""
    whole, asked = Rehearsal(tmp_path, training=SHORT, extra="leaves_after = 12\n"), []

    def note(_, message, is_done):
        if is_done:
            asked.append(message)

    def kill_at_the_end(messages):
        if isinstance(messages[0], Save) and messages[0].round == 30 and not killed:
            killed.append(True)
            raise Killed

    killed = []
    whole.join("telco")
    whole.join("shop", tap=note)
    assert whole.serve_again(kill_at_the_end) == 1
    whole.wait_for_parties()
    assert max(message.round for message in asked if isinstance(message, Embed)) == 12
    last = [message.round for message in asked if isinstance(message, Save)]
    assert last[-1] == 30
    assert sum(number > 12 for number in last) == 1
    assert any(isinstance(message, Restore) for message in asked)
    assert [record[1] for record in whole.records() if record[0] == "Leave"] == ["shop"]


def test_a_training_whose_loss_rose_is_not_signed(tmp_path):
    """As by `verfedsv statement`, unless it is accepted; clients get the rest, and that statement later."""
    whole, key = (
        Rehearsal(tmp_path, training={"rounds": 3, "batch_size": 240, "rate": 5000.0}),
        Ed25519PrivateKey.generate(),
    )
    whole.join()
    assert not whole.serve(signing_key=key)
    whole.wait_for_parties()
    assert any("not signed: The loss rose" in line for line in whole.log)
    assert not (whole.run / "statement.json").exists()
    received = tmp_path / "of-shop" / "received"
    assert sorted(path.name for path in received.iterdir()) == ["uploads.extract", "value.json"]


def test_a_client_that_uploads_the_labels_is_doubted(tmp_path, monkeypatch):
    """It has no data of use, and answers evaluations by its columns: these contradict what it uploaded."""
    whole, answer = Rehearsal(tmp_path, training={"rounds": 3, "batch_size": 240, "evaluate_every": 1}), Member.answer

    def memorise(self, message):
        found = answer(self, message)
        if self.name == "shop" and isinstance(found, Embeddings):
            found.embeddings[:, 0] = 6.0 * (2.0 * labels[message.samples] - 1)
        return found

    for patch, kinds in ((answer, set()), (memorise, {"evaluation"})):
        monkeypatch.setattr(Member, "answer", patch)
        whole.join()
        assert not whole.serve()
        whole.wait_for_parties()
        folder = RunFolder(whole.run)
        labels = folder.open().labels
        verdict = judge(folder.read_valuation(), facts_of(folder, folder.open()))
        assert {reason.kind for reason in verdict.reasons if reason.weight == "doubt"} == kinds
        whole = Rehearsal(tmp_path / "again", training={"rounds": 3, "batch_size": 240, "evaluate_every": 1})


def test_a_refused_step_ends_a_training_that_waits_for_all(tmp_path, monkeypatch):
    """With if_missing = "stop": a round without it could not be repeated. The same command continues."""
    whole, learn, failed = Rehearsal(tmp_path, training=SHORT), Client._learn, []

    def refuse_once(self, message):
        if self.name == "shop" and message.round == 7 and not failed:
            failed.append(message)
            raise InputError("not today")
        learn(self, message)

    monkeypatch.setattr(Client, "_learn", refuse_once)
    whole.join()
    with pytest.raises(MissingClientError, match=r"shop refused: round 8: not today\. What was recorded is kept"):
        whole.serve()
    assert not whole.serve()
    whole.wait_for_parties()
    monkeypatch.undo()
    beside = Rehearsal(tmp_path / "beside", training=SHORT)
    beside.join()
    assert not beside.serve()
    assert whole.records() == beside.records()
