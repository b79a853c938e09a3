import errno
import os
import stat
from pathlib import Path

import pytest

from verfedsv.errors import InputError
from verfedsv.files import is_unfinished, read_whole, remove_unfinished, write_whole, writing


def write_half(path, end):
    """Begin to write a file, and end like this."""
    with writing(path) as file:
        file.write(b"half")
        raise end


@pytest.mark.parametrize("end", [KeyboardInterrupt, SystemExit, OSError, UnicodeEncodeError("utf-8", "x", 0, 1, "no")])
def test_nothing_is_left_behind(tmp_path, end):
    """However writing ends: what was there stays as it was."""
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(type(end) if isinstance(end, Exception) else end):
        write_half(path, end)
    assert [found.name for found in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "before"


def test_an_interrupt_before_the_last_step_leaves_nothing(tmp_path, monkeypatch):
    """Nor is a file whole before it has its name."""
    monkeypatch.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write_whole(tmp_path / "report.html", b"x")
    assert list(tmp_path.iterdir()) == []


def test_files_of_others_are_not_touched(tmp_path):
    """Whatever they are called."""
    (tmp_path / "notes.md.part").write_text("mine")
    write_whole(tmp_path / "notes.md", b"x")
    assert (tmp_path / "notes.md.part").read_text() == "mine"


@pytest.mark.parametrize("has_links", [True, False])
def test_a_file_that_came_in_the_meantime_is_not_overwritten(tmp_path, monkeypatch, has_links):
    """If that is not wanted; also where the file system has no links."""
    if not has_links:
        monkeypatch.setattr(Path, "hardlink_to", lambda *_: (_ for _ in ()).throw(PermissionError))
    path = tmp_path / "statement.json"
    with pytest.raises(FileExistsError), writing(path, overwrite=False):
        path.write_text("theirs")
    assert path.read_text() == "theirs"
    path.unlink()
    write_whole(path, b"mine", overwrite=False)
    assert [found.name for found in tmp_path.iterdir()] == ["statement.json"]
    assert path.read_text() == "mine"


def test_files_can_be_read_by_those_who_can_read_others(tmp_path):
    """As the user's mask says."""
    mask = os.umask(0o027)
    try:
        write_whole(tmp_path / "x", b"")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_what_a_killed_process_leaves_is_known(tmp_path):
    """So that a run can begin beside it."""
    with writing(tmp_path / "config.toml"):
        (name,) = (found.name for found in tmp_path.iterdir())
    assert is_unfinished(name, "config.toml")
    assert not is_unfinished("config.toml", "config.toml")
    assert not is_unfinished(".config.toml.swp", "config.toml")  # an editor's


def test_a_full_disk_is_named_by_its_file(tmp_path, monkeypatch):
    """The operating system does not say which file it could not write."""
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match="No space left on device") as caught:
        write_whole(tmp_path / "report.html", b"x")
    assert caught.value.filename == str(tmp_path / "report.html")
    assert list(tmp_path.iterdir()) == []


def test_only_files_of_a_size_are_read_whole(tmp_path):
    """A pipe that nobody writes to is not waited for, and a device without end is not read."""
    (tmp_path / "file").write_bytes(b"12345")
    assert read_whole(tmp_path / "file", 5) == b"12345"
    with pytest.raises(OSError, match="it is larger than 4 bytes"):
        read_whole(tmp_path / "file", 4)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "zeros").symlink_to("/dev/zero")
    for name in ("pipe", "zeros"):
        with pytest.raises(OSError, match="it is not a regular file"):
            read_whole(tmp_path / name)


def test_a_pipe_is_not_replaced_by_a_file(tmp_path):
    """Nor is a device: whoever reads from there would wait forever."""
    os.mkfifo(tmp_path / "report.html")
    with pytest.raises(InputError, match="a device, a pipe or a socket, not a regular file"):
        write_whole(tmp_path / "report.html", b"x")
    assert [stat.S_ISFIFO(found.stat().st_mode) for found in tmp_path.iterdir()] == [True]


def test_unfinished_files_are_removed(tmp_path, monkeypatch):
    """Those of interrupted writes in this folder, and nothing else."""
    with monkeypatch.context() as context:
        context.setattr(Path, "unlink", lambda *_, **__: None)  # as if the process was killed
        with pytest.raises(KeyboardInterrupt):
            write_half(tmp_path / "a.json", KeyboardInterrupt)
    kept = [tmp_path / ".lock", tmp_path / ".hidden", tmp_path / "a.json.abcd1234", tmp_path / ".b.abcd1234"]
    for path in kept[:-1]:
        path.write_text("mine")
    kept[-1].mkdir()
    assert len([*tmp_path.iterdir()]) == len(kept) + 1
    remove_unfinished(tmp_path)
    remove_unfinished(tmp_path / "missing")
    assert {*tmp_path.iterdir()} == {*kept}
