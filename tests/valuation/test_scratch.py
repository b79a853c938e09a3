"""The folder of an interrupted valuation is its own: others are left alone, and what still runs cannot write to it."""

import os
import pickle
import stat
import subprocess
import sys

import numpy as np
import pytest

from verfedsv import InputError
from verfedsv.valuation import workfolder
from verfedsv.valuation.scratch import Scratch

IDENTITY = {"seed": 0}


class Stop(Exception):  # noqa: N818
    """Interrupts a valuation."""


def interrupted(folder, identity=IDENTITY):
    """Return what an interrupted valuation leaves, with an array in it."""
    try:
        with Scratch.begin(folder, identity, resume=False) as scratch:
            scratch.save_array("kept", np.arange(3))
            raise Stop  # noqa: TRY301  # as an interrupt from outside does
    except Stop:
        return scratch


def begun(folder, identity=IDENTITY, *, resume=False):
    """Return the names of the files that a valuation finds when it begins, and let it end."""
    with Scratch.begin(folder, identity, resume=resume) as scratch:
        return {path.name for path in scratch.path.iterdir()}


def test_two_valuations_do_not_share_a_folder(tmp_path):
    """The second is told to wait, and the first goes on."""
    with Scratch.begin(tmp_path / "scratch", {}, resume=False) as scratch:
        scratch.save_array("kept", np.arange(3))
        with pytest.raises(InputError, match="another valuation is working in"):
            begun(tmp_path / "scratch")
        assert scratch.has("kept.npy")
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize("resume", [False, True])
def test_what_still_runs_of_an_interrupted_valuation_cannot_write_to_the_next(tmp_path, resume):
    """Not to one that begins anew, nor to one that continues it: its folder is gone."""
    first = interrupted(tmp_path)
    sent = pickle.dumps(first)
    with Scratch.begin(tmp_path, IDENTITY, resume=resume) as second:
        assert second.has("kept.npy") == resume
        with pytest.raises(FileNotFoundError):
            first.save_array("kept", np.zeros(3))
        with pytest.raises(InputError, match="cannot see"):
            pickle.loads(sent)  # noqa: S301  # our own
        if resume:
            np.testing.assert_array_equal(second.mapped("kept"), np.arange(3))
        assert not list(second.path.glob(".*"))


def test_files_of_others_are_left_alone(tmp_path):
    """Whatever their names are, and the folder that has them stays."""
    for name in ("identity.json", "thesis.tex"):
        (tmp_path / name).write_text("{}")
    (tmp_path / "valuation-of-the-house").mkdir()
    before = sorted(tmp_path.iterdir())
    assert begun(tmp_path, resume=True) == {"identity.json"}
    interrupted(tmp_path)
    assert len([*tmp_path.iterdir()]) > len(before)
    assert begun(tmp_path) == {"identity.json"}
    assert sorted(tmp_path.iterdir()) == before


def test_a_folder_that_was_there_stays(tmp_path):
    """A link to one, too, without what was kept in it."""
    (tmp_path / "own").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "own")
    interrupted(tmp_path / "link")
    assert "kept.npy" in begun(tmp_path / "link", resume=True)
    assert (tmp_path / "link").is_symlink()
    assert not [*(tmp_path / "own").iterdir()]


@pytest.mark.parametrize("resume", [False, True])
def test_what_a_kill_left_of_a_removal_is_removed(tmp_path, resume):
    """Also a folder that was not yet one of a valuation."""
    scratch = interrupted(tmp_path / "scratch")
    scratch.path.rename(f"{scratch.path}.removed")
    workfolder.make(tmp_path / "scratch")
    assert begun(tmp_path / "scratch", resume=resume) == {"identity.json"}
    assert not (tmp_path / "scratch").exists()


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_others_cannot_see_a_new_folder(tmp_path):
    """Unless it is in one that a group shares; never because a folder is open to all."""

    def mode(outer):
        outer = tmp_path if outer is None else outer
        return stat.S_IMODE(workfolder.make(outer).stat().st_mode) & 0o777

    assert mode(None) == 0o700
    tmp_path.chmod(0o2770)
    assert mode(None) == 0o770
    tmp_path.chmod(0o1777)
    assert mode(None) == 0o700
    scratch = interrupted(tmp_path / "scratch")
    assert stat.S_IMODE(scratch.path.parent.stat().st_mode) == 0o700


@pytest.mark.skipif(os.name != "posix", reason="needs permissions")
def test_work_of_others_in_a_folder_open_to_all_is_not_continued(tmp_path, monkeypatch):
    """Anybody could have put it there."""
    interrupted(tmp_path)
    tmp_path.chmod(0o1777)
    assert len(workfolder.find(tmp_path)) == 1
    monkeypatch.setattr(os, "geteuid", lambda: -1)
    assert begun(tmp_path, resume=True) == {"identity.json"}


@pytest.mark.parametrize("content", ["[]", '{"seed"', "", "\x00"])
def test_a_damaged_identity_is_not_continued(tmp_path, content):
    """The error says so; to begin anew works."""
    scratch = interrupted(tmp_path)
    (scratch.path / "identity.json").write_text(content)
    with pytest.raises(InputError, match=r"identity\.json is damaged; begin anew without resume"):
        begun(tmp_path, resume=True)
    assert begun(tmp_path) == {"identity.json"}


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_what_is_no_plain_file_is_not_continued(tmp_path, kind):
    """Nobody who can write to the folder has other files of the user read."""
    scratch = interrupted(tmp_path)
    if kind == "link":
        (scratch.path / "piece-0.bin").symlink_to(tmp_path)
    else:
        (scratch.path / "piece-0.bin").mkdir()
    with pytest.raises(InputError, match=r"piece-0\.bin is not a plain file, .* begin anew without resume"):
        begun(tmp_path, resume=True)
    assert begun(tmp_path) == {"identity.json"}
    assert tmp_path.exists()


@pytest.mark.parametrize("size", [0, 100, 300])
def test_a_damaged_file_is_named(tmp_path, size):
    """As a power failure may leave it, whichever part of it is missing."""
    with Scratch.begin(tmp_path, IDENTITY, resume=False) as scratch:
        scratch.save("known", {"a": np.arange(50), "b": np.arange(50)})
        scratch.save_array("labels", np.arange(50))
        for name in ("known.npz", "labels.npy"):
            os.truncate(scratch.path / name, size)
        with pytest.raises(InputError, match=r"known\.npz is damaged; begin anew without resume"):
            scratch.load("known")
        with pytest.raises(InputError, match=r"labels\.npy is damaged; begin anew without resume"):
            scratch.mapped("labels")


def test_the_lock_ends_with_the_process(tmp_path):
    """A killed valuation blocks nobody, and what it left is continued; the folder it made is removed at the end."""
    code = "import os, pathlib, sys; from verfedsv.valuation.scratch import Scratch\n"
    code += "with Scratch.begin(pathlib.Path(sys.argv[1]), {'seed': 0}, resume=False): os._exit(9)"
    command = [sys.executable, "-c", code, str(tmp_path / "scratch")]
    assert subprocess.run(command, check=False).returncode == 9  # noqa: S603  # our own code
    assert begun(tmp_path / "scratch", resume=True) == {"identity.json"}
    assert not (tmp_path / "scratch").exists()
