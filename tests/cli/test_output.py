"""What outputs may replace."""

import os
import shutil
import stat

import pytest

from tests.cli.inprocess import call
from tests.settlement.runs import make_run

SETTLE = ("settle", "run", "--budget", 50, "--currency", "CHF", "--negative", "zero")
REPORT, VALUE, EXTRACT = ("report", "run"), ("value", "run"), ("extract", "run", "--client", "telco")


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    """Return a folder with a signed run, keys, and outputs of every kind."""
    place = tmp_path_factory.mktemp("place")
    make_run(place / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        for arguments in (
            (*REPORT, "-o", "run/signed.html"),
            ("keys", "new", "k"),
            ("statement", "run", "--key", "k.key"),
            (*SETTLE, "-o", "payouts.json"),
            (*SETTLE, "-o", "payouts.csv"),
            (*VALUE, "-o", "values.json"),
            (*EXTRACT, "-o", "telco.extract"),
            (*REPORT, "-o", "report.md"),
            (*REPORT, "-o", "report.json"),
            (*REPORT, "-o", "report.html"),
        ):
            done = call(*arguments)
            assert done.returncode == 0, done.stderr
    (place / "bank.csv").write_text("id,age\n1,30\n")
    (place / "mine.json").write_text("{}")
    (place / "minutes.md").write_text("# Minutes\n\nWe agreed to use verfedsv.\n")
    (place / "minutes.html").write_text("<!DOCTYPE html>\n<p>We agreed to use verfedsv.</p>\n")
    (place / "annotated.md").write_bytes((place / "report.md").read_bytes() + b"\nOur answer: no.\n")
    return place


@pytest.fixture
def place(original, tmp_path, monkeypatch):
    """Return a copy of it as the current folder."""
    shutil.copytree(original, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("command", "output", "message"),
    [
        (REPORT, "run/valuation.json", "it is part of a run, which is never overwritten"),
        (REPORT, "run/transcript/transcript.json", "it is part of a run"),
        (REPORT, "run/transcript/report.html", "in the folder of a transcript any other file would fail the audit"),
        (VALUE, "run/valuation.json", "it is part of a run"),
        (VALUE, "run/notes.json", "the audit of the signed statement in that run would fail"),
        (REPORT, "run/signed.html", "the audit of the signed statement in that run would fail"),
        (VALUE, "run/statement.json", "it is a signed statement, which is never overwritten"),
        (SETTLE, "run/statement.json", "it is a signed statement"),
        (EXTRACT, "run/metrics.jsonl", "it is part of a run"),
        (EXTRACT, "run/config.toml", "it is part of a run"),
        (EXTRACT, "k.key", "it is a key, which is never overwritten"),
        (EXTRACT, "k.pub", "it is a key"),
        (EXTRACT, "payouts.json", "the existing file is not an extract that verfedsv wrote"),
        (SETTLE, "bank.csv", "the existing file is not a settlement that verfedsv wrote"),
        (VALUE, "mine.json", "the existing file is not a valuation that verfedsv wrote"),
        (REPORT, "payouts.json", "the existing file is not a report that verfedsv wrote"),
        (REPORT, "minutes.md", "the existing file is not a report that verfedsv wrote"),
        (REPORT, "minutes.html", "the existing file is not a report that verfedsv wrote"),
        (REPORT, "annotated.md", "the existing file is not a report that verfedsv wrote"),
    ],
)
def test_nothing_is_replaced_but_an_earlier_output_of_the_same_kind(place, command, output, message):
    """Not evidence, statements, keys, or the user's files: an error, and nothing changes."""
    path = place / output
    before = path.read_bytes() if path.exists() else None
    done = call(*command, "-o", output)
    assert done.returncode == 2
    assert message in done.stderr
    assert (path.read_bytes() if path.exists() else None) == before


@pytest.mark.parametrize(
    ("command", "output"),
    [
        (SETTLE, "payouts.json"),
        (SETTLE, "payouts.csv"),
        (VALUE, "values.json"),
        (EXTRACT, "telco.extract"),
        (REPORT, "report.md"),
        (REPORT, "report.json"),
        (REPORT, "report.html"),
        (SETTLE, "empty.json"),
        (SETTLE, "run/payouts.csv"),
    ],
)
def test_an_earlier_output_of_the_same_kind_is_replaced(place, command, output):
    """So are empty files; and files beside the evidence of a run do not fail its audit."""
    (place / "empty.json").touch()
    for _ in range(2):
        done = call(*command, "-o", output)
        assert done.returncode == 0, done.stderr
    assert call("audit", "run").returncode == 0


@pytest.mark.parametrize(
    "command",
    [
        (*VALUE, "-o", "pipe.json"),
        (*REPORT, "-o", "pipe.json"),
        (*SETTLE, "-o", "pipe.json"),
        (*EXTRACT, "-o", "pipe.json"),
        ("statement", "run", "--key", "k.key", "-o", "pipe.json"),
        ("run", "--init", "pipe.json"),
        ("keys", "new", "pipe"),
    ],
)
def test_a_pipe_is_never_replaced(place, command):
    """Nor is anything else that is not a regular file: an error, and nothing changes."""
    for name in ("pipe.json", "pipe.key"):
        os.mkfifo(place / name)
    done = call(*command)
    assert done.returncode == 2, done.stdout
    assert "error: " in done.stderr
    for name in ("pipe.json", "pipe.key"):
        assert stat.S_ISFIFO((place / name).stat().st_mode)
