"""What a client's program does with messages that no honest server sends."""

import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from tests.network.consortium import write_csv
from verfedsv.data.sources import ClientFile
from verfedsv.federation.messages import Done, Embed, Embeddings, Gradients, Predict, Prediction, Refusal, Restore, Save
from verfedsv.network import messages as net
from verfedsv.network.belonging import newest_checkpoint
from verfedsv.network.member import Member
from verfedsv.network.refusing import WITHHELD

LEARNING = net.Learning("linear", 32, 1, 0, 0.1, "constant", "sgd", 0.9, "standardise")


@pytest.fixture
def member(tmp_path):
    """A client with 50 rows, in the middle of a training."""
    rng = np.random.default_rng(0)
    write_csv(tmp_path / "telco.csv", np.arange(50), 3, rng)
    member = Member("telco", ClientFile(tmp_path / "telco.csv", "id"), tmp_path / "folder", aligned=True)
    assert isinstance(member.answer(begin()), Done)
    yield member
    member.close()


def begin(**changes):
    learning = replace(LEARNING, **changes)
    return net.Begin("telco", 0, 1, f"start {changes}", np.arange(50), np.zeros(50, np.uint8), learning, 10)


@pytest.mark.parametrize(
    "message",
    [
        Predict("telco", 1, 5, np.array(3)),
        Predict("telco", 1, 5, np.array([2**62])),
        Embed("telco", 1, 5, np.array([[1]])),
        Gradients("telco", 1, 5, None, np.ones((3, 1))),
        begin(width=2**62),
        begin(hidden=2**40, model="perceptron"),
        begin(width=0),
        begin(model="tree"),
        begin(optimizer="none"),
        begin(scale="none of these"),
        begin(rate=-1.0),
        net.Begin("telco", 0, 1, "other", np.array([0, 0]), np.zeros(2, np.uint8), LEARNING, 10),
        net.Begin("telco", 0, 1, "other", np.array([50]), np.zeros(1, np.uint8), LEARNING, 10),
        net.Begin("telco", 0, 1, "other", np.arange(5), np.zeros(2, np.uint8), LEARNING, 10),
        net.StartAlignment("telco", 0, 1, bytes(32), ["bank", "telco"], [2**32 - 1, 50], 4096),
        net.StartAlignment("telco", 0, 1, bytes(3), ["bank", "telco"], [5, 50], 4096),
        net.OwnPoints("telco", 0, 1, 0),
        net.Deliver("telco", 0, 1, "../aligned", b""),
        net.Deliver("telco", 0, 1, "", b""),
        net.Deliver("telco", 0, 1, "..", b""),
        net.Deliver("telco", 0, 1, ".bashrc", b""),
        net.Deliver("telco", 0, 1, "statement-2.json", b""),
        net.Welcome("telco", 0, 1, 1, "0", "telco", 0.0, "", ""),
    ],
    ids=lambda message: type(message).__name__,
)
def test_what_no_honest_server_asks_is_refused(member, message, tmp_path):
    """With a reason, without much memory or disk, and the training goes on as if it had not been asked."""
    before = sorted(path.name for path in (tmp_path / "folder").rglob("*"))
    answer = member.answer(message)
    assert isinstance(answer, Refusal)
    assert answer.reason
    assert sorted(path.name for path in (tmp_path / "folder").rglob("*")) == before
    assert isinstance(member.answer(Predict("telco", 1, 10, None)), Prediction)
    assert isinstance(member.answer(Embed("telco", 1, 11, np.arange(4))), Embeddings)


def test_no_row_is_used_before_an_alignment(tmp_path):
    """Unless its owner says that the files are aligned: otherwise the server would get all rows, also uncommon ones."""
    write_csv(tmp_path / "telco.csv", np.arange(50), 3, np.random.default_rng(0))
    said = []
    for aligned in (False, True):
        file = ClientFile(tmp_path / "telco.csv", "id")
        member = Member("telco", file, tmp_path / "folder", aligned=aligned, on_event=said.append)
        answers = [member.answer(message) for message in (begin(width=64), Predict("telco", 1, 5, None))]
        member.close()
        assert [isinstance(answer, Refusal) for answer in answers] == [not aligned] * 2
        assert "with --aligned" in answers[0].reason if not aligned else "server gets 64 numbers" in said[-1]


def test_reasons_show_the_server_nothing_of_the_file(tmp_path):
    """No cell, no name of a column and no path, whichever rows it asks for: those are in the client's own log."""
    path, said, n_rows = tmp_path / "telco.csv", [], 400
    secrets = [f"secret {own}" if own < 80 else "none" for own in range(n_rows)]
    write_csv(path, np.arange(n_rows), 1, np.random.default_rng(0), employer=secrets)
    member = Member("telco", ClientFile(path, "id"), tmp_path / "folder", aligned=True, on_event=said.append)
    few, answers = np.arange(80), []
    message = net.Begin("telco", 0, 1, "few rows", few, np.zeros(80, np.uint8), LEARNING, 10)
    answers.append(member.answer(message))
    assert "'employer'" in said[-1]
    assert "'secret 0'" in said[-1]
    assert "'employer'" in member.unusable
    everything = np.arange(n_rows)
    assert isinstance(member.answer(replace(message, samples=everything, is_test=np.zeros(n_rows, np.uint8))), Done)
    assert not member.unusable
    answers += [member.answer(Restore("telco", 7, 5)), member.answer(Predict("telco", 1, 6, np.array(3)))]
    assert str(tmp_path) in said[-2]
    member.close()
    told = "samples must be a list of whole numbers; received int64 ()"
    assert [answer.reason for answer in answers] == [WITHHELD, WITHHELD, told]


def test_what_was_received_is_never_replaced(member, tmp_path):
    """Another file of the same name gets a number, up to a limit; the same one is kept once."""
    for n, content in enumerate([b"first", b"second", b"first", b"second"]):
        assert isinstance(member.answer(net.Deliver("telco", 0, n, "statement.json", content)), Done)
    received = tmp_path / "folder" / "received"
    kept = {path.name: path.read_bytes() for path in received.iterdir()}
    assert kept == {"statement.json": b"first", "statement-2.json": b"second"}
    assert member.received == [received / "statement.json", received / "statement-2.json"]
    for n in range(18):
        assert isinstance(member.answer(net.Deliver("telco", 0, n, "statement.json", b"%d" % n)), Done)
    refusal = member.answer(net.Deliver("telco", 0, 99, "statement.json", b"one too many"))
    assert refusal.reason == WITHHELD
    assert len([*received.iterdir()]) == 20


def test_who_comes_back_says_where_it_continues(member, tmp_path):
    """After a kill; and where it goes back to, if the server says so."""
    member.answer(Embed("telco", 1, 2, np.arange(4)))
    member.answer(Gradients("telco", 1, 3, None, np.ones((4, 1))))
    member.answer(Save("telco", 1, 4, None))
    member.close()
    said = []
    file = ClientFile(tmp_path / "telco.csv", "id")
    again = Member("telco", file, tmp_path / "folder", aligned=True, on_event=said.append)
    again.answer(Restore("telco", 1, 5))
    again.close()
    assert said[-2:] == 2 * ["continuing from round 1 of 10"]


def test_the_newest_checkpoint_is_that_of_the_last_round(tmp_path):
    """Whatever the clock said when it was written."""
    for number, moment in ((100, 2_000_000_000), (20, 1_000_000_000), (200, 1_500_000_000)):
        path = tmp_path / f"client-0-{number}.npz"
        path.touch()
        os.utime(path, (moment, moment))
    (tmp_path / "client-0-x.npz").touch()
    assert newest_checkpoint(tmp_path) == tmp_path / "client-0-200.npz"
    assert newest_checkpoint(tmp_path / "nothing") is None


WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("grpc", "rbcl") or name.startswith("google.protobuf"):
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
sys.argv = ["verfedsv", *sys.argv[1:]]
from verfedsv.cli import app
app()
"""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["serve", "x.toml"], ["up", "x.toml"], ["doctor", "x.toml"], ["join", "a:1", "--features", "x.csv"]],
    ids=lambda arguments: arguments[0],
)
def test_without_the_extra_commands_say_what_to_install(arguments):
    """And all others work."""
    done = subprocess.run(  # noqa: S603
        [sys.executable, "-c", WITHOUT, *arguments], capture_output=True, text=True, check=False
    )
    if arguments == ["--help"]:
        assert (done.returncode, done.stderr) == (0, "")
    else:
        assert done.returncode == 2
        assert "pip install '.[net]'" in done.stderr
