"""Runs that no command can value: recorded with a loss of the user's own, or with a head that is not a sum."""

import numpy as np
import pytest

from tests.cli.inprocess import call
from verfedsv import Recorder, Transcript, value
from verfedsv.losses import Logistic


class OwnLoss(Logistic):
    """A loss that is defined only here."""

    name = "own"


class Head:
    """A head with one parameter."""

    def state_dict(self):
        """Return the parameters by name."""
        return {"weights": np.ones(2)}


SENTENCES = {
    "loss": "error: the training was recorded with a loss of your own, 'own', so only value(run, loss=...) in Python "
    "can compute its values; verfedsv settle takes their JSON, but they cannot be signed or audited\n",
    "head": "error: the function of the head was not recorded, so only value(run, head=module) in Python can compute "
    "values; verfedsv settle takes their JSON, but they cannot be signed or audited\n",
}


@pytest.fixture(params=[*SENTENCES])
def run(request, tmp_path):
    """Return a recorded run, and the sentence that refuses it."""
    options = {"loss": OwnLoss()} if request.param == "loss" else {"head": Head()}
    with Recorder(tmp_path / "run", [0, 1, 1, 0], ["bank", "shop"], **options) as recorder:
        for step in range(3):
            recorder.log([0, 1, 2, 3], {"bank": [0.1 * step, 0.2, 0.3, 0.1], "shop": [0.2, 0.1, 0.3, 0.1]})
    if request.param == "loss":  # values computed in Python change nothing: no command could check them
        (tmp_path / "run" / "valuation.json").write_text(value(tmp_path / "run", loss=OwnLoss()).to_json())
    return tmp_path / "run", SENTENCES[request.param]


@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("value", ()),
        ("value", ("--json",)),
        ("report", ("-o", "report.html")),
        ("settle", ("--budget", "100", "--currency", "EUR")),
        ("statement", ("--key", "team.key", "-o", "statement.json")),
        ("audit", ()),
        ("watch", ()),
    ],
)
def test_a_command_that_needs_values_refuses_in_one_sentence(run, tmp_path, monkeypatch, command, options):
    """Exit code 2, only that sentence, and no file."""
    folder, sentence = run
    monkeypatch.chdir(tmp_path)
    if command == "statement":
        assert call("keys", "new", "team").returncode == 0
    before = sorted(tmp_path.rglob("*"))
    done = call(command, folder, *options, COLUMNS="1000")
    assert (done.returncode, done.stdout, done.stderr.strip()) == (2, "", sentence.strip())
    assert sorted(tmp_path.rglob("*")) == before


def test_an_extract_needs_no_values(run, tmp_path):
    """It is written and audited, and ends at the head of the run."""
    folder, _ = run
    assert call("extract", folder, "--client", "bank", "-o", tmp_path / "bank.extract").returncode == 0
    audited = call("audit", tmp_path / "bank.extract")
    assert audited.returncode == 0
    assert Transcript.open(folder).head in audited.stdout
