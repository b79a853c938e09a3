"""Lines on how far a training is, where no bar is shown."""

from tests.cli.inprocess import call
from tests.runs.test_execute import SYNCHRONOUS
from verfedsv.cli.lines import every
from verfedsv.errors import InputError


def test_a_line_is_due_now_and_then(monkeypatch):
    """Not at once, and then once in so many seconds."""
    moments = iter([0.0, 9.0, 10.0, 11.0, 25.0, 26.0, 35.0])
    monkeypatch.setattr("verfedsv.cli.lines.time.monotonic", lambda: next(moments))
    is_due = every(10.0)
    assert [is_due() for _ in range(6)] == [False, True, False, True, False, True]


def test_a_training_says_how_far_it_is(tmp_path, monkeypatch):
    """With what was measured; by default every ten seconds, so that short ones say nothing."""
    (tmp_path / "run.toml").write_text(SYNCHRONOUS, encoding="utf-8")
    monkeypatch.setattr("verfedsv.cli.training.every", lambda _: lambda: True)
    done = call("run", tmp_path / "run.toml")
    assert done.returncode == 0, done.stderr
    assert ": loss " in next(line for line in done.stdout.splitlines() if line.startswith("round "))


def test_a_client_says_how_far_it_is(tmp_path, monkeypatch):
    """It knows no loss."""

    def run(_, say, on_round):
        say("connected")
        on_round("training", 0, 60)
        on_round("training", 20, 60)
        raise InputError("over")

    monkeypatch.setattr("verfedsv.cli.join.every", lambda _: lambda: True)
    monkeypatch.setattr("verfedsv.network.joining.Joining.run", run)
    done = call("join", "127.0.0.1:1", "--features", tmp_path / "shop.csv", "--name", "shop", "--insecure")
    assert done.returncode == 2
    assert [line.partition(" ")[2] for line in done.stdout.splitlines()][:2] == ["connected", "round 20 of 60"]
