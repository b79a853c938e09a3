import errno
import io
import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.games import LogCosh
from tests.transcript.test_recorder import Linear
from verfedsv.errors import TranscriptError
from verfedsv.transcript import Recorder, Transcript
from verfedsv.transcript.storage import FolderStorage, is_being_written


@pytest.mark.parametrize("mapped", [True, False])
@pytest.mark.parametrize("name", ["uploads-00001.arrows", "chain-00001.bin", "labels.arrow", "transcript.json"])
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", os.mkdir)])
def test_what_is_not_a_file_is_not_read(tmp_path, mapped, name, make):
    """A folder or a pipe instead of a file is named, and does not block."""
    with Recorder(tmp_path, [0, 1], ["a"]) as recorder:
        recorder.log([0], {"a": [1.0]})
    (tmp_path / name).unlink()
    make(tmp_path / name)
    with pytest.raises(TranscriptError, match=rf"{name} is not a file"):
        Transcript.open(tmp_path, mapped=mapped)


def test_a_lock_that_is_a_pipe_is_not_waited_for(tmp_path):
    """Then nobody is writing, and recording is refused."""
    os.mkfifo(tmp_path / ".lock")
    assert not is_being_written(tmp_path)
    with pytest.raises(TranscriptError, match=r"\.lock is not a file; move it away"):
        Recorder(tmp_path, [0, 1], ["a"])


@pytest.mark.parametrize("name", [".lock", "uploads-00001.arrows", "chain-00001.bin", "transcript.json", "tensors"])
@pytest.mark.parametrize("exists", [True, False])
def test_a_recorder_writes_through_no_link(tmp_path, name, exists):
    """A folder that came from others may have one, whose target is neither changed nor created."""
    run, outside = tmp_path / "run", tmp_path / "outside"
    head = Linear()
    with Recorder(run, [0, 1], ["a"], head=head) as recorder:
        recorder.log([0], {"a": [1.0]})
    outside.mkdir()
    (run / name).rename(outside / name)
    (run / name).symlink_to(outside / (name if exists else "nothing"))
    before = {path: path.is_file() and path.read_bytes() for path in outside.rglob("*")}
    head.bias = head.bias + 1
    with pytest.raises(TranscriptError, match=rf"{name} is a symbolic link"):
        Recorder(run, [0, 1], ["a"], head=head, resume=True)
    assert before == {path: path.is_file() and path.read_bytes() for path in outside.rglob("*")}


def test_a_parameter_behind_a_link_is_not_read(tmp_path):
    """Nor a whole folder of them."""
    run, outside = tmp_path / "run", tmp_path / "outside"
    with Recorder(run, [0, 1], ["a"], head=Linear()) as recorder:
        recorder.log([0], {"a": [1.0]})
    (run / "tensors").rename(outside)
    (run / "tensors").symlink_to(outside)
    with pytest.raises(TranscriptError, match="tensors is a symbolic link"):
        Transcript.open(run)
    (run / "tensors").unlink()
    (run / "tensors").mkdir()
    for path in outside.iterdir():
        (run / "tensors" / path.name).symlink_to(path)
    with pytest.raises(TranscriptError, match=r"\.npy is a symbolic link"):
        Transcript.open(run)


def test_a_lock_behind_a_link_is_not_taken(tmp_path):
    """Otherwise a recorder elsewhere would count as open here."""
    (tmp_path / "run").mkdir()
    with Recorder(tmp_path / "other", [0, 1], ["a"]):
        (tmp_path / "run" / ".lock").symlink_to(tmp_path / "other" / ".lock")
        assert not is_being_written(tmp_path / "run")


def test_a_full_disk_is_said_with_the_file(tmp_path):
    """Not only with the folder, in which links may lead to other disks."""

    class Full(io.RawIOBase):
        def write(self, _):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    storage = FolderStorage(tmp_path)
    storage._open["uploads.arrows"] = Full()
    with pytest.raises(OSError, match="No space left on device") as caught:
        storage.append("uploads.arrows", b"x")
    assert caught.value.filename == str(tmp_path / "uploads.arrows")


@pytest.mark.skipif(sys.platform != "linux", reason="counts descriptors and maps in /proc")
def test_uploads_of_many_segments_keep_maps_but_no_descriptors(tmp_path):
    """One map per segment, of the 65,530 that Linux allows; a process often has only 1,024 descriptors."""
    with Recorder(tmp_path, [0, 1], ["a"], segment_rounds=1) as recorder:
        for step in range(40):
            recorder.log([0, 1], {"a": [float(step), 0.0]})
    before = len([*Path("/proc/self/fd").iterdir()])
    records = list(Transcript.open(tmp_path, mapped=True))
    maps = Path("/proc/self/maps").read_text().count(f"{tmp_path}/uploads-")
    assert (len([*Path("/proc/self/fd").iterdir()]), maps) == (before, 40)
    assert [record.embeddings[0, 0] for record in records[::2]] == list(range(40))
    del records
    assert f"{tmp_path}/uploads-" not in Path("/proc/self/maps").read_text()
    records = list(Transcript.open(tmp_path))
    assert len(records) == 80
    assert len([*Path("/proc/self/fd").iterdir()]) == before


def test_a_file_that_cannot_be_mapped_is_reported_with_the_reason(tmp_path, monkeypatch):
    """Such as the 65,531st map of a process: pyarrow raises an OSError that has no strerror."""

    def fail(_path):
        raise OSError("Memory mapping file failed: Cannot allocate memory")

    (tmp_path / "labels.arrow").write_bytes(b"1")
    monkeypatch.setattr("verfedsv.transcript.storage.pa.memory_map", fail)
    with pytest.raises(TranscriptError, match=r"cannot read .*labels.arrow: .*Cannot allocate memory"):
        FolderStorage(tmp_path, mapped=True).stream("labels.arrow")


def test_a_file_that_is_cut_off_while_it_is_read_is_named(tmp_path):
    """A view of it would kill the process with SIGBUS."""
    with Recorder(tmp_path, np.arange(5000) % 2, ["a"]) as recorder:
        for step in range(9):
            recorder.log(np.arange(5000), {"a": np.full(5000, float(step))})
    transcript = Transcript.open(tmp_path)
    records = iter(transcript)
    next(records)
    os.truncate(tmp_path / "uploads-00001.arrows", 100_000)
    for read in (lambda: list(records), transcript.verify):
        with pytest.raises(TranscriptError, match=r"uploads-00001\.arrows was cut off while it was read"):
            read()


@pytest.mark.parametrize("loss", ["logistic", LogCosh()], ids=["logistic", "own"])
@pytest.mark.parametrize("name", ["transcript.json", "chain-00001.bin", "labels.arrow"])
def test_a_file_that_is_too_large_is_not_read(tmp_path, name, loss):
    """A sparse file costs its sender nothing, and would cost its reader all memory."""
    with Recorder(tmp_path, [0, 1], ["a"], loss) as recorder:
        recorder.log([0], {"a": [1.0]})
    os.truncate(tmp_path / name, 2**40)
    with pytest.raises(TranscriptError, match=rf"cannot read .*{name}: it is larger than"):
        Transcript.open(tmp_path)


@pytest.mark.parametrize(
    ("error", "why"),
    [(MemoryError(), "it does not fit into memory"), (OSError(5, "Input error"), "Input error")],
)
def test_a_record_that_cannot_be_read_is_said(tmp_path, monkeypatch, error, why):
    """If it is larger than memory, or the disk fails."""
    with Recorder(tmp_path, [0, 1], ["a"]) as recorder:
        recorder.log([0], {"a": [1.0]})
    transcript = Transcript.open(tmp_path)

    def fail(*_):
        raise error

    monkeypatch.setattr("verfedsv.transcript.storage.FileStream.slice", fail)
    with pytest.raises(TranscriptError, match=rf"cannot read uploads-00001\.arrows: {why}"):
        list(transcript)
