import itertools
import os
import shutil
import subprocess
import sys
import tomllib
from functools import partial

import numpy as np
import pyarrow as pa
import pytest

from tests.runs.test_execute import ASYNCHRONOUS, SYNCHRONOUS, entries, finish, make
from verfedsv import InputError, Recorder, Transcript, TranscriptError
from verfedsv.federation import Server
from verfedsv.federation.schedules import batch_of_client
from verfedsv.runs.config import Config
from verfedsv.runs.resume import Saver, resume_server
from verfedsv.transcript import Stamp
from verfedsv.transcript import format as fmt
from verfedsv.transcript.chain import Segment

SMALL = [
    text.replace("samples = 3000", "samples = 500").replace("rounds = 30", "rounds = 16").replace("1.2", "0.12")
    for text in (SYNCHRONOUS, ASYNCHRONOUS)
]
REAL = ASYNCHRONOUS.replace("duration = 1.2", "duration = 1.0\nclock = 'real'\nstamp_every = 0.1\nperiod = 0.02")


class Killed(Exception):  # noqa: N818  # it is no error
    """Ends a training in these tests."""


def stop_at(n_rounds):
    """Return a function that asks to stop after that many rounds."""
    n_asked = itertools.count(1)
    return lambda: next(n_asked) == n_rounds


def kill_after(n_records, run, **options):
    """Train until the recorder has written that many records; then it raises."""
    n_written = itertools.count(1)

    def count(write):
        def wrapped(*arguments, **keywords):
            write(*arguments, **keywords)
            if next(n_written) == n_records:
                raise Killed

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        for name in ("log", "update", "stamp"):
            patch.setattr(Recorder, name, count(getattr(Recorder, name)))
        with pytest.raises(Killed):
            finish(run, **options)


@pytest.mark.parametrize("text", SMALL, ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("has_checkpoint", [False, True])
def test_killed_after_any_record(tmp_path, text, has_checkpoint):
    """Even before the first time stamp: existing records are found, missing ones added, none repeated."""
    whole = make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml")
    finish(whole)
    for n_records in range(1, 16):
        folder = tmp_path / f"out{n_records}"
        first, second = (make(tmp_path, text.replace('"out"', f'"{folder.name}"')) for _ in range(2))
        first.data = second.data = whole.data  # to read them once
        kill_after(n_records, first)
        if not has_checkpoint:
            shutil.rmtree(folder / "checkpoints")
        finish(second, resume=True)
        assert entries(folder) == entries(tmp_path / "whole"), n_records
        Transcript.open(folder).verify()


def test_a_process_that_ends_at_once(tmp_path):
    """With nothing closed or flushed, before the first time stamp."""
    text = SMALL[1]
    make(tmp_path, text)
    script = f"""
import os
from pathlib import Path
from verfedsv import Recorder
from verfedsv.runs import Run
write, count = Recorder.update, []
def update(*arguments, **options):
    write(*arguments, **options)
    count.append(1)
    if len(count) == 5:
        os._exit(9)
Recorder.update = update
path = Path({str(tmp_path / "run.toml")!r})
list(Run.of_file(path).train())
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, env=os.environ)  # noqa: S603  # our own script
    assert done.returncode == 9
    assert len(entries(tmp_path / "out")) == 5
    finish(make(tmp_path, text), resume=True)
    finish(make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml"))
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")


@pytest.mark.parametrize("text", SMALL, ids=["synchronous", "asynchronous"])
def test_a_transcript_that_lost_records_is_not_continued(tmp_path, text):
    """As after a power failure; without the checkpoint, which counts more records, training starts over."""
    finish(make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml"))
    finish(make(tmp_path, text), should_stop=stop_at(2))
    n_before = 2 if text == SMALL[0] else len(entries(tmp_path / "out"))
    chain = (tmp_path / "out" / "transcript" / fmt.chain_file(1)).read_bytes()
    end = Segment.of(1, pa.py_buffer(chain), 10**9).entries["end"][2]
    os.truncate(tmp_path / "out" / "transcript" / fmt.uploads_file(1), end)
    os.truncate(tmp_path / "out" / "transcript" / fmt.chain_file(1), 3 * 48)
    with pytest.raises(TranscriptError, match=rf"after {n_before} records, .* has only 1: .* Delete the folder of"):
        finish(make(tmp_path, text), resume=True)
    shutil.rmtree(tmp_path / "out" / "checkpoints")
    finish(make(tmp_path, text), resume=True)
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")


def n_stamps_of(folder):
    """Return how many time stamps were recorded."""
    return sum(isinstance(record, Stamp) for record in Transcript.open(folder))


def check_real(folder):
    """Check the transcript of a run of REAL, and that no client repeated or skipped a step."""
    transcript = Transcript.open(folder)
    transcript.verify()
    records = list(transcript)
    times = [record.time for record in records]
    assert times == sorted(times)
    n_samples = transcript.description.n_samples
    for m, name in enumerate(transcript.description.clients):
        uploads = [record for record in records if not isinstance(record, Stamp) and record.client == name]
        assert uploads[0].samples.tolist() == list(range(n_samples))
        for step, upload in enumerate(uploads[1:], 1):
            assert upload.samples.tolist() == batch_of_client(m, step, n_samples, 300, 0).tolist()
            assert upload.time >= (step + 1) * 0.02  # none comes before its time


@pytest.mark.parametrize("has_checkpoint", [False, True])
@pytest.mark.parametrize("n_records", [3, 20])
def test_a_killed_run_on_the_real_clock_has_as_many_stamps(tmp_path, n_records, has_checkpoint):
    """Stamps and steps continue from the transcript, models from the checkpoint."""
    kill_after(n_records, make(tmp_path, REAL))
    if not has_checkpoint:
        shutil.rmtree(tmp_path / "out" / "checkpoints")
    n_before = n_stamps_of(tmp_path / "out")
    updates = finish(make(tmp_path, REAL), resume=True)
    assert [update.n_rounds for update in updates] == list(range(updates[0].n_rounds, 11))
    assert n_stamps_of(tmp_path / "out") == n_before + len(updates)
    check_real(tmp_path / "out")


def test_a_stopped_run_on_the_real_clock_has_as_many_stamps(tmp_path):
    """Uploads after the checkpoint count."""
    before = finish(make(tmp_path, REAL), should_stop=stop_at(7))
    after = finish(make(tmp_path, REAL), resume=True)
    # On a busy machine the first stamps may come before the first upload, and are not recorded then.
    numbers = [update.n_rounds for update in before + after]
    assert numbers == list(range(numbers[0], 11))
    assert n_stamps_of(tmp_path / "out") == len(numbers)
    check_real(tmp_path / "out")


@pytest.mark.parametrize("is_repeatable", [False, True])
def test_on_the_real_clock_the_server_has_what_was_uploaded(is_repeatable):
    """From the transcript, although models are those of the checkpoint; a repeatable training uploads again."""
    server = Server([0, 1, 0, 1], ["a", "b"], 1)
    state = {**server.state(), "n_rounds": np.array(1), "n_records": np.array(2), "n_uploads": np.array([1, 0])}
    server.restore(state)
    config = Config.model_validate(tomllib.loads(REAL.replace("'real'", "'virtual'") if is_repeatable else REAL))
    with Recorder(None, [0, 1, 0, 1], ["a", "b"]) as recorder:
        recorder.update("a", [0, 1], [8.0, 8.0], time=0.02)  # the checkpoint has it
        recorder.stamp(time=0.1)
        recorder.update("b", [1, 2], [1.0, 2.0], time=0.11)
        recorder.update("b", [2, 3], [3.0, 4.0], time=0.12)
        assert resume_server(server, recorder, config) == 0.12
    expected = np.zeros((2, 4)) if is_repeatable else [[0, 0, 0, 0], [0, 1, 3, 4]]
    np.testing.assert_array_equal(server.state()["table"][:, :, 0], expected)
    assert (server.n_rounds, server.n_uploads) == (1, {"a": 1, "b": 0 if is_repeatable else 2})
    assert server.tape.is_repeating == is_repeatable


def test_live_shares_continue(tmp_path):
    """They are those of an uninterrupted run, except for where it was split; not those since the stop."""
    text = ASYNCHRONOUS.replace("rate = 0.5", "rate = 0.5\nintercept = true")
    whole = finish(make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml"))[-1]
    finish(make(tmp_path, text), should_stop=stop_at(13))
    updates = [update for update in finish(make(tmp_path, text), resume=True) if update.shares is not None]
    np.testing.assert_allclose(updates[-1].shares, whole.shares, atol=0.01)
    assert [update.n_rounds for update in updates] == [20, 30]


def test_live_shares_do_not_depend_on_checkpoints(tmp_path, monkeypatch):
    """These are written when time allows, which differs from run to run."""
    monkeypatch.setattr(Saver, "is_due", lambda _self: False)
    never = finish(make(tmp_path, SMALL[1].replace('"out"', '"never"'), "never.toml"))
    monkeypatch.setattr(Saver, "is_due", lambda _self: True)
    always = finish(make(tmp_path, SMALL[1]))
    np.testing.assert_array_equal(always[-1].shares, never[-1].shares)


@pytest.mark.parametrize("name", [fmt.chain_file(1), fmt.uploads_file(1), fmt.DESCRIPTION, fmt.LABELS])
def test_a_changed_transcript_is_not_continued(tmp_path, name):
    """It is verified before anything else, and not changed."""
    finish(make(tmp_path, SMALL[0]), should_stop=stop_at(4))
    path = tmp_path / "out" / "transcript" / name
    content = bytearray(path.read_bytes())
    content[len(content) // 3] ^= 4
    path.write_bytes(content)
    with pytest.raises(TranscriptError):
        finish(make(tmp_path, SMALL[0]), resume=True)
    assert path.read_bytes() == content


def test_a_transcript_without_its_description_is_not_continued(tmp_path):
    """Nor overwritten, as it has records."""
    finish(make(tmp_path, SMALL[0]), should_stop=stop_at(4))
    (tmp_path / "out" / "transcript" / fmt.DESCRIPTION).unlink()
    with pytest.raises(TranscriptError, match=r"transcript\.json is missing, but there is chain"):
        finish(make(tmp_path, SMALL[0]), resume=True)


@pytest.mark.parametrize("text", SMALL, ids=["synchronous", "asynchronous"])
def test_a_finished_run_takes_no_more_rounds(tmp_path, text):
    """Their number was agreed in its transcript."""
    run = make(tmp_path, text)
    finish(run)
    labels = Transcript.open(tmp_path / "out").labels
    options = {"classes": run.data.classes, "resume": True}
    with Recorder(tmp_path / "out" / "transcript", labels, run.data.names, **options) as recorder:
        uploads = {name: [0.0] for name in run.data.names}
        end_round = partial(recorder.log, [0], uploads) if text == SMALL[0] else partial(recorder.stamp, time=100.0)
        with pytest.raises(InputError, match="all agreed rounds"):
            end_round()


def test_uploads_after_the_last_round_are_not_of_the_training(tmp_path):
    """Such a transcript does not pass for a finished one."""
    run = make(tmp_path, SMALL[1])
    finish(run)
    labels = Transcript.open(tmp_path / "out").labels
    options = {"classes": run.data.classes, "resume": True}
    with Recorder(tmp_path / "out" / "transcript", labels, run.data.names, **options) as recorder:
        recorder.update(run.data.names[0], [0], [0.0], time=100.0)
    with pytest.raises(TranscriptError, match="the transcript has more records than the whole training"):
        finish(make(tmp_path, SMALL[1]), resume=True)


def test_nothing_is_written_while_records_are_compared(tmp_path):
    """A run that is stopped then is unchanged, and keeps its metrics."""
    text = SMALL[0].replace("evaluate_every = 10", "evaluate_every = 1")
    kill_after(8, make(tmp_path, text))
    before = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    finish(make(tmp_path, text + "# changed\n"), resume=True, should_stop=stop_at(3))
    after = {path.name: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert before == after
    finish(make(tmp_path, text + "# changed\n"), resume=True)
    assert len((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()) == 16
    assert (tmp_path / "out" / "config.toml").read_text().endswith("# changed\n")


@pytest.mark.parametrize(
    "name",
    [
        "checkpoints",
        "checkpoints/server.npz",
        "metrics.jsonl",
        "transcript",
        "transcript/uploads-00001.arrows",
        "transcript/.lock",
    ],
)
@pytest.mark.parametrize("exists", [True, False])
def test_a_run_is_not_resumed_through_a_link(tmp_path, name, exists):
    """What others put into a run must not decide which files are written or deleted elsewhere."""
    finish(make(tmp_path, SMALL[0]), should_stop=stop_at(5))
    outside, there = tmp_path / "outside", tmp_path / "out" / name
    outside.mkdir()
    (tmp_path / "out" / "metrics.jsonl").touch()
    there.rename(outside / there.name)
    there.symlink_to(outside / (there.name if exists else "nothing"))
    if name == "checkpoints":
        (outside / "checkpoints" / ".x.npz.y").write_text("precious")
    before = {path: path.is_file() and path.read_bytes() for path in outside.rglob("*")}
    with pytest.raises((InputError, TranscriptError), match=f"{there.name} is a symbolic link"):
        finish(make(tmp_path, SMALL[0]), resume=True)
    assert before == {path: path.is_file() and path.read_bytes() for path in outside.rglob("*")}


@pytest.mark.parametrize("name", ["transcript", "checkpoints"])
def test_a_run_does_not_begin_through_a_link(tmp_path, name):
    """An earlier run without records is removed, but nothing elsewhere."""
    run, outside = make(tmp_path, SMALL[0]), tmp_path / "outside"
    (tmp_path / "out" / "transcript").mkdir(parents=True)
    outside.mkdir()
    (outside / "labels.arrow").write_text("precious")
    if name == "transcript":
        (tmp_path / "out" / "transcript").rmdir()
    (tmp_path / "out" / name).symlink_to(outside)
    with pytest.raises((InputError, TranscriptError), match=f"{name} is a symbolic link"):
        finish(run)
    assert [path.name for path in outside.iterdir()] == ["labels.arrow"]
