"""Commands on runs whose head is a program, which is loaded only if it is trusted."""

import numpy as np
import pytest

from tests.cli.inprocess import call
from verfedsv import Recorder

torch = pytest.importorskip("torch")

COMMANDS = {
    "value": (),
    "report": ("-o", "report.md"),
    "settle": ("--budget", "100", "--currency", "EUR"),
    "statement": ("--key", "team.key", "-o", "statement.json"),
    "audit": (),
}


class Own(torch.nn.Module):
    """A head that is not made of common layers."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 1)

    def forward(self, x):
        """Return the scores."""
        return torch.sinh(self.layer(x))


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Return the folder of a run in which the clients learn, and change to the folder above."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    labels, head = np.array([0, 1] * 6), Own()
    direction = head.layer.weight[0].detach().numpy()
    with Recorder("run", labels, ["bank", "shop"], head=head) as recorder:
        for step in (1, 2, 3):
            embeddings = step * np.outer(2 * labels - 1, direction)
            recorder.log(np.arange(12), {"bank": embeddings[:, :2], "shop": embeddings[:, 2:]})
    assert call("keys", "new", "team").returncode == 0
    return tmp_path / "run"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_program_is_not_loaded_unless_it_is_trusted(run, command):
    """Without the option one sentence that names it, exit code 2 and no file; with it, the command does its work."""
    before = sorted(run.parent.rglob("*"))
    done = call(command, run, *COMMANDS[command])
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: the head is recorded as a program")
    assert "add --trust-head" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert sorted(run.parent.rglob("*")) == before
    assert call(command, run, *COMMANDS[command], "--trust-head").returncode == 0


def test_a_statement_is_audited_with_the_program(run):
    """Values are computed again, and are the same."""
    assert call("value", run, "-o", run / "valuation.json", "--trust-head").returncode == 0
    assert call("statement", run, *COMMANDS["statement"], "--trust-head").returncode == 0
    audit = ("audit", "statement.json", "--run", run, "--public-key", "team.pub")
    assert call(*audit).returncode == 2
    done = call(*audit, "--trust-head")
    assert done.returncode == 0
    assert "recomputed; totals differ by at most 0" in " ".join(done.stdout.split())


def test_a_statement_of_values_of_unknown_error_is_audited(tmp_path, monkeypatch):
    """Those of the closed form: unknown errors are equal, and allow no other values."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    labels, head = (
        np.array([0, 1] * 6),
        torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Tanh(), torch.nn.Linear(3, 1)),
    )
    with Recorder("run", labels, ["bank", "shop"], head=head, valuation={"method": "closed-form"}) as recorder:
        direction = (head[2].weight @ head[0].weight)[0].detach().numpy()
        for step in (1, 2, 3):
            embeddings = step * np.outer(2 * labels - 1, direction)
            recorder.log(np.arange(12), {"bank": embeddings[:, 0], "shop": embeddings[:, 1]})
    assert call("keys", "new", "team").returncode == 0
    assert "The error of the estimator is unknown; nothing had" in " ".join(call("value", "run").stdout.split())
    settled = call("settle", "run", "--budget", "100", "--currency", "EUR", "-o", "payouts.json")
    assert "Ranges are unknown: no error is known." in " ".join(settled.stdout.split())
    assert call("statement", "run", "--key", "team.key", "--settlement", "payouts.json").returncode == 0
    done = call("audit", "run", "--public-key", "team.pub")
    assert done.returncode == 0, done.stderr
