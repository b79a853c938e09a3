"""What is said of a run beside its values."""

import json

import numpy as np
import pytest

from verfedsv.errors import InputError
from verfedsv.runs.notes import read_notes, say_falling, still_falling


@pytest.mark.parametrize("n_rounds", [5, 7, 19, 20, 100])
def test_a_loss_that_falls_to_the_end_is_said_however_few_rounds(n_rounds):
    """From five rounds on; one that came to rest, rose or has fewer rounds is not."""
    steps = np.arange(n_rounds + 1) / n_rounds
    part = still_falling(0.7 - 0.4 * steps)
    assert part == pytest.approx(max(1, n_rounds // 10) / n_rounds)
    last = "round" if n_rounds < 20 else f"{n_rounds // 10} rounds"
    assert f"the last {last} took off {100 * part:.1f} % of the whole" in say_falling(part, n_rounds)[0]
    assert still_falling(0.3 + 0.4 * np.exp(-10 * steps)) is None
    assert still_falling(0.3 + 0.4 * steps) is None
    assert say_falling(None, n_rounds) == []


def test_of_less_than_five_rounds_nothing_is_said():
    """Any training falls at its beginning."""
    assert still_falling(np.linspace(0.7, 0.3, 5)) is None


def test_notes_are_bounded(tmp_path):
    """A run that somebody else made does not fill the terminal."""
    (tmp_path / "notes.json").write_text(json.dumps(["x" * 1000] * 30))
    assert [len(note) for note in read_notes(tmp_path)] == [500] * 20
    assert read_notes(tmp_path / "elsewhere") == ()


def test_a_folder_in_the_place_of_notes_is_named(tmp_path):
    """Nor is anything else than a regular file read."""
    (tmp_path / "notes.json").mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        read_notes(tmp_path)
