import itertools
import json
import time

import numpy as np
import pytest

from tests.runs.test_execute import ASYNCHRONOUS, finish, make
from verfedsv import Transcript
from verfedsv.federation import AsynchronousSchedule, RealClock
from verfedsv.federation.models import Linear
from verfedsv.federation.roster import Roster, Stay
from verfedsv.runs.real_time import describe_idle_rounds
from verfedsv.transcript import Upload

REAL = ASYNCHRONOUS.replace("duration = 1.2", "duration = 0.4\nclock = 'real'")
HEAD = 'optimizer = "adam"\n[model]\nhead = "mlp"\n[output]'
NAMES = ("a", "b")


@pytest.mark.parametrize("text", [REAL, REAL.replace("[output]", HEAD)], ids=["sum", "head"])
def test_everything_is_rehearsed_before_the_clock_starts(tmp_path, monkeypatch, text):
    """Each client and the server take a step before, in another training: none of this one."""
    happened, run, learn = [], RealClock.run, Linear.learn

    def start(self, *arguments):
        happened.append("start")
        return run(self, *arguments)

    def step(self, *arguments):
        happened.append("step")
        learn(self, *arguments)

    monkeypatch.setattr(RealClock, "run", start)
    monkeypatch.setattr(Linear, "learn", step)
    finish(make(tmp_path, text))
    assert happened[: happened.index("start")] == ["step"] * 8
    virtual = text.replace("'real'", "'virtual'").replace('"out"', '"virtual"')
    finish(make(tmp_path, virtual, "virtual.toml"))
    firsts = [
        {record.client: record.embeddings for record in reversed([*Transcript.open(tmp_path / name)]) if _is(record)}
        for name in ("out", "virtual")
    ]
    for name, embeddings in firsts[0].items():
        np.testing.assert_array_equal(embeddings, firsts[1][name])
    states = [Transcript.open(tmp_path / name).description.head.state for name in ("out", "virtual")]
    assert states[0] == states[1]


def _is(record):
    return isinstance(record, Upload)


def test_rounds_without_uploads_are_noted(tmp_path, monkeypatch):
    """A client that takes long for its first step is late, and the run says so."""
    learn, steps = Linear.learn, itertools.count(1)

    def step(self, *arguments):
        if next(steps) == 3:  # after the two of the rehearsal
            time.sleep(0.3)
        learn(self, *arguments)

    monkeypatch.setattr(Linear, "learn", step)
    run = make(tmp_path, REAL.replace("clients = 4", "clients = 1"))
    finish(run)
    (note,) = run.note_progress()
    assert "rounds passed without any upload" in note
    assert json.loads((tmp_path / "out" / "notes.json").read_text())[-1] == note


def schedule(periods=(0.1, 0.3), roster=None):
    """Return a schedule of two clients, with a round every 0.1 s."""
    return AsynchronousSchedule(periods, (5,) * len(periods), 0.1, 20, 0, roster)


@pytest.mark.parametrize(
    ("n_uploads", "n_idle"),
    [
        ([1] * 20, 0),
        ([1, 0, 2] * 6 + [1, 1], 0),
        ([1] * 10 + [0] * 4 + [1] * 6, 4),
        ([1] * 19 + [0], 0),
        ([1] * 12 + [0, 0], 2),
    ],
)
def test_rounds_count_as_idle_if_uploads_were_due(n_uploads, n_idle):
    """Single ones, with uploads just after them, do not."""
    note = describe_idle_rounds(schedule(), NAMES, np.array(n_uploads), 20)
    begin = f"{n_idle} of {len(n_uploads)} rounds passed without any upload" if n_idle else ""
    assert note.partition(",")[0] == begin


def test_rounds_without_members_that_are_due_are_not_idle():
    """While the fast client is away, only every third round has an upload, as planned."""
    roster = Roster(NAMES, 20, {"a": Stay(leaves_after=5)})
    n_uploads = np.array([1] * 5 + [int(k % 3 == 0) for k in range(6, 21)])
    assert describe_idle_rounds(schedule(roster=roster), NAMES, n_uploads, 20) == ""
    assert describe_idle_rounds(schedule(), NAMES, n_uploads, 20)
