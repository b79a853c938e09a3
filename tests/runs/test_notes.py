"""What is said of a run beside its values."""

import json

import pytest

from verfedsv.errors import InputError
from verfedsv.runs.folder import RunFolder


def test_notes_are_bounded(tmp_path):
    """A run that somebody else made does not fill the terminal."""
    (tmp_path / "notes.json").write_text(json.dumps(["x" * 1000] * 30))
    assert [len(note) for note in RunFolder(tmp_path).notes()] == [500] * 20
    assert RunFolder(tmp_path / "elsewhere").notes() == ()


def test_a_folder_in_the_place_of_notes_is_named(tmp_path):
    """Nor is anything else than a regular file read."""
    (tmp_path / "notes.json").mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        RunFolder(tmp_path).notes()
