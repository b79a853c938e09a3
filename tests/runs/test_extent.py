"""How far a training is."""

import os

import pytest

from tests.runs.test_execute import ASYNCHRONOUS, SYNCHRONOUS, finish, make
from tests.settlement.runs import record
from verfedsv import InputError, Recorder, Transcript
from verfedsv.runs.extent import Extent, refuse_running
from verfedsv.runs.folder import RunFolder


def extent_of(folder):
    return RunFolder(folder).extent(Transcript.open(folder))


@pytest.mark.parametrize(
    ("text", "n_planned"),
    [(SYNCHRONOUS, 30), (SYNCHRONOUS.replace("rounds = 30", "epochs = 2"), 14), (ASYNCHRONOUS, 30)],
)
def test_a_training_that_was_stopped_is_unfinished_until_it_has_gone_on(tmp_path, text, n_planned):
    """The plan is in the configuration and, before the first round, in the transcript."""
    run = make(tmp_path, text)
    n_updates = iter(range(100))
    list(run.train(should_stop=lambda: next(n_updates) >= 4))
    assert extent_of(run.folder) == Extent(5, n_planned, is_running=False)
    assert extent_of(run.folder).is_unfinished
    about = Transcript.open(run.folder).description
    assert (about.n_planned, about.intercept) == (n_planned, False)
    assert about.step == {"kind": "gradient descent", "rate": 0.5, "decay": "constant"}
    assert str(extent_of(run.folder)) == f"5 of {n_planned} rounds"
    finish(run, resume=True)
    assert extent_of(run.folder) == Extent(n_planned, n_planned, is_running=False)
    assert not extent_of(run.folder).is_unfinished
    (run.folder / "config.toml").unlink()
    assert extent_of(run.folder).n_planned == n_planned


LATE = ASYNCHRONOUS + "\n[[client]]\nname = 'a'\nrandom_level = 1\nperiod = 0.1\n"


@pytest.mark.parametrize(
    ("text", "first", "n_planned"),
    [
        (LATE, 0.1, 28),  # its first upload is in the third round
        (LATE, 9e14, 28),
        (ASYNCHRONOUS, 0.01, 30),
        (ASYNCHRONOUS, 1.17, 30),  # one round that looks like the last of them
        (ASYNCHRONOUS, 1.76e9, 30),  # seconds since 1970
        (LATE.replace("period = 0.1", "period = 7"), 7, 1),  # a plan of which nothing would be recorded
    ],
)
def test_only_rounds_before_the_shortest_period_are_no_part_of_the_plan(tmp_path, text, first, n_planned):
    """They are not recorded. A late start of the times does not hide missing rounds."""
    (tmp_path / "config.toml").write_text(text)
    with Recorder(tmp_path / "transcript", [0, 1], ["a"]) as recorder:
        recorder.update("a", [0, 1], [0.1, 0.2], time=first)
        recorder.stamp(time=first)
    assert extent_of(tmp_path) == Extent(1, n_planned, is_running=False)


def test_a_training_is_running_while_its_recorder_is_open(tmp_path):
    """Asking disturbs neither that recorder nor the next."""
    recorder = Recorder(tmp_path, [0, 1], ["a", "b"])
    recorder.log([0, 1], {"a": [0.1, 0.2], "b": [0.3, 0.4]})
    assert extent_of(tmp_path) == Extent(1, None, is_running=True)
    with pytest.raises(InputError, match="the training is still running, 1 round so far, so it is not settled yet"):
        refuse_running(extent_of(tmp_path), "settled")
    recorder.log([0, 1], {"a": [0.1, 0.2], "b": [0.3, 0.4]})
    recorder.close()
    assert not extent_of(tmp_path).is_running
    refuse_running(extent_of(tmp_path), "settled")
    Recorder(tmp_path, [0, 1], ["a", "b"], resume=True).close()


@pytest.mark.parametrize("config", ["", "[data", SYNCHRONOUS.replace("rounds = 30", "rounds = 0")])
def test_a_configuration_that_cannot_be_read_is_not_taken_for_none(tmp_path, config):
    """The error says what to do."""
    record(tmp_path / "transcript")
    (tmp_path / "config.toml").write_text(config)
    with pytest.raises(InputError, match=r"config\.toml(?s:.*)Correct .*config\.toml, or move it away to rely on the"):
        extent_of(tmp_path)


def test_a_configuration_that_is_no_file_is_not_waited_for(tmp_path):
    """Reading a named pipe that nobody writes to would block."""
    record(tmp_path / "transcript")
    os.mkfifo(tmp_path / "config.toml")
    with pytest.raises(InputError, match="is not a regular file; move it away"):
        extent_of(tmp_path)
