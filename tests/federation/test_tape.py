import os

import pytest

from verfedsv import InputError, Recorder
from verfedsv.federation import Tape


def test_records_that_are_there_are_not_written_again():
    """The first ones are counted, and taken to be in the transcript."""
    with Recorder(None, [0, 1], ["a"]) as recorder:
        recorder.log([0], {"a": [1.0]})
        tape = Tape(recorder, 1, n_records=3)
        tape.log([0], {"a": [1.0]}, None)
        assert (tape.n_records, recorder.n_rounds) == (4, 1)
        tape.log([1], {"a": [2.0]}, None)
        assert (tape.n_records, recorder.n_rounds) == (5, 2)


@pytest.mark.parametrize("n_skipped", [-1, 0.5])
def test_less_than_nothing_cannot_be_skipped(n_skipped):
    """It would keep the tape from ever recording again."""
    with pytest.raises(InputError, match=f"n_skipped must be .*; received {n_skipped}"):
        Tape(None, n_skipped)


def test_what_was_recorded_can_be_brought_to_the_disk(tmp_path, monkeypatch):
    """So that it outlives the machine's power, too; a tape without a recorder has nothing to bring."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    with Recorder(tmp_path / "run", [0, 1], ["a"]) as recorder:
        tape = Tape(recorder)
        tape.log([0], {"a": [1.0]}, None)
        synced.clear()
        tape.sync()
        assert set(synced) == {(tmp_path / "run" / name).stat().st_ino for name in ("chain.bin", "uploads.arrows")}
    Tape(None).sync()
    with Recorder(None, [0, 1], ["a"]) as recorder:
        Tape(recorder).sync()
