import os

import numpy as np
import pytest

from verfedsv import InputError, Recorder, TranscriptError
from verfedsv.federation.tape import Tape
from verfedsv.transcript import Stamp, Upload


def record(recorder):
    """Record two asynchronous uploads and the end of their round."""
    recorder.update("a", [0, 1], [1.0, 2.0], time=1)
    recorder.update("b", [1], [4.0], time=2)
    recorder.stamp([0.5, 0.5], time=3)


def repeat(tape, *, client="b", samples=(1,), embeddings=(4.0,), time=2.0, own=0.5):
    """Pass a tape the last two of those records, or others."""
    tape.write(Upload(client, time, np.array(samples), np.array(embeddings)[:, np.newaxis]))
    tape.write(Stamp(3.0, None if own is None else np.array([own])))


def test_records_that_are_there_are_compared_and_not_written_again():
    """Those after the number that the tape begins with; then it records."""
    with Recorder(None, [0, 1], ["a", "b"]) as recorder:
        record(recorder)
        tape = Tape(recorder, n_records=1)
        repeat(tape)
        assert (tape.n_records, tape.is_repeating, recorder.n_rounds) == (3, False, 1)
        tape.write(Stamp(4.0, None))
        assert (tape.n_records, recorder.n_rounds) == (4, 2)


def test_rounds_that_are_there_are_compared_too():
    """A synchronous round is one record."""
    with Recorder(None, [0, 1], ["a"]) as recorder:
        recorder.log([0], {"a": [1.0]})
        recorder.log([1], {"a": [2.0]})
        tape = Tape(recorder, n_records=1)
        assert tape.is_repeating
        with pytest.raises(TranscriptError, match=r"record 2 of .* the samples of 'a' differ"):
            tape.write(Upload("a", 2.0, np.array([0]), np.array([[2.0]])), Stamp(2.0, None))
        tape = Tape(recorder, n_records=1)
        tape.write(Upload("a", 2.0, np.array([1]), np.array([[2.0]])), Stamp(2.0, None))
        assert not tape.is_repeating


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"client": "a"}, "it is an upload of 'b', not an upload of 'a'"),
        ({"samples": [0]}, "the samples of 'b' differ"),
        ({"time": 2.5}, r"its time is 2, not 2\.5"),
        ({"embeddings": [4.0 + 1e-8]}, r"embeddings of 'b' differ by 2\.5e-09 of the largest"),
        ({"embeddings": [np.nan]}, "embeddings of 'b' differ by nan"),
        ({"own": None}, "only one of the two has an offset"),
        ({"own": 0.6}, "offsets of the server differ by 2.0e-01"),
    ],
)
def test_what_is_computed_again_must_be_what_was_recorded(change, says):
    """Names, samples and times exactly, numbers up to rounding; otherwise nothing is written."""
    with Recorder(None, [0, 1], ["a", "b"]) as recorder:
        record(recorder)
        head = recorder.transcript.head
        with pytest.raises(
            TranscriptError, match=f"differs from what this training recomputes from its checkpoint: {says}"
        ):
            repeat(Tape(recorder, n_records=1), **change)
        assert recorder.transcript.head == head
        repeat(Tape(recorder, n_records=1), embeddings=[4.0 + 1e-9])


def test_another_kind_of_record_is_a_difference():
    """The end of a round instead of an upload, or a missing record."""
    with Recorder(None, [0, 1], ["a", "b"]) as recorder:
        record(recorder)
        with pytest.raises(TranscriptError, match="it is an upload of 'a', not the end of a round"):
            Tape(recorder, n_records=0).write(Stamp(1.0, None))


def test_a_tape_cannot_begin_after_the_end():
    """It would compare and record the wrong things."""
    with Recorder(None, [0, 1], ["a", "b"]) as recorder, pytest.raises(InputError, match="must be at least 0"):
        Tape(recorder, n_records=1)


def test_what_was_recorded_can_be_brought_to_the_disk(tmp_path, monkeypatch):
    """So that it survives a power failure; without a recorder, nothing happens."""
    synced = []
    monkeypatch.setattr(os, "fsync", lambda number: synced.append(os.fstat(number).st_ino))
    with Recorder(tmp_path / "run", [0, 1], ["a"]) as recorder:
        tape = Tape(recorder)
        tape.write(Upload("a", 1.0, np.array([0]), np.array([[1.0]])), Stamp(1.0, None))
        synced.clear()
        tape.sync()
        assert set(synced) == {
            (tmp_path / "run" / name).stat().st_ino for name in ("chain-00001.bin", "uploads-00001.arrows")
        }
    Tape(None).sync()
    with Recorder(None, [0, 1], ["a"]) as recorder:
        Tape(recorder).sync()


def test_nothing_is_recorded_after_a_failure(monkeypatch):
    """A thread that goes on could otherwise write a checkpoint that does not fit the transcript."""
    with Recorder(None, [0, 1], ["a", "b"]) as recorder:
        tape, update = Tape(recorder), Recorder.update

        def fail(*arguments, **options):
            update(*arguments, **options)
            raise RuntimeError("the plug was pulled")

        monkeypatch.setattr(Recorder, "update", fail)
        with pytest.raises(RuntimeError, match="the plug was pulled"):
            tape.write(Upload("a", 1.0, np.array([0]), np.array([[1.0]])))
        monkeypatch.undo()
        for later in (lambda: tape.write(Stamp(2.0, None)), tape.sync):
            with pytest.raises(RuntimeError, match="the plug was pulled"):
                later()
        assert recorder.transcript.n_records == 1


def test_a_record_that_is_refused_is_no_failure():
    """Nothing of it was recorded, so the next one can be."""
    with Recorder(None, [0, 1], ["a", "b"]) as recorder:
        tape = Tape(recorder)
        with pytest.raises(InputError, match="must hold sample numbers"):
            tape.write(Upload("a", 1.0, np.array([5]), np.array([[1.0]])))
        tape.write(Upload("a", 1.0, np.array([1]), np.array([[1.0]])))
        assert tape.n_records == recorder.transcript.n_records == 1
