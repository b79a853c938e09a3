"""What a run's folder says of itself."""

import json
import os

import pytest

from tests.runs.test_execute import ASYNCHRONOUS, SYNCHRONOUS
from tests.settlement.runs import make_run, record
from verfedsv import InputError, value
from verfedsv.runs.extent import Extent
from verfedsv.runs.folder import RunFolder
from verfedsv.settings import ValuationSettings


@pytest.mark.parametrize("inner", ["", "transcript"])
def test_a_folder_of_a_recorder_alone_is_a_run(tmp_path, inner):
    """Whether the transcript is in it or in a subfolder; it has default settings and no plan."""
    assert not RunFolder(tmp_path / "run").holds_run
    record(tmp_path / "run" / inner)
    folder = RunFolder(str(tmp_path / "run"))
    transcript = folder.open()
    assert folder.holds_run
    assert folder.transcript_path == tmp_path / "run" / inner
    assert all(path.exists() for path in [*folder.transcript_files, *folder.growing_files])
    assert folder.extent(transcript) == Extent(6, None, is_running=False)
    assert (folder.config(), folder.config_text(), folder.notes()) == (None, None, ())
    assert folder.valuation_of(transcript) is None
    assert folder.agreed_settings(folder.open()) == ValuationSettings()


def test_the_settings_in_the_transcript_are_the_agreed_ones(tmp_path):
    """Not those of an existing valuation, which anybody may have made."""
    folder = RunFolder(make_run(tmp_path / "run", valuation={"rank": 2, "seed": 7}))
    folder.valuation_path.write_text(value(folder.path, "exact", seed=3).to_json())
    assert folder.agreed_settings(folder.open()) == ValuationSettings(rank=2, seed=7)
    folder.config_path.unlink()
    assert folder.agreed_settings(folder.open()) == ValuationSettings(rank=2, seed=7)


def test_a_configuration_that_contradicts_the_transcript_is_an_error(tmp_path):
    """Otherwise settings could be chosen once the values are known."""
    folder = RunFolder(make_run(tmp_path / "run", valuation={"rank": 2}))
    folder.config_path.write_text(folder.config_path.read_text().replace("rank = 2", "rank = 3"))
    transcript = folder.open()
    for ask in (folder.agreed_settings, folder.extent, folder.config_of):
        with pytest.raises(InputError, match="differs from what the transcript says was agreed: rank is 3 and not 2"):
            ask(transcript)


def test_a_configuration_of_another_mode_is_not_taken_for_no_plan(tmp_path):
    """Otherwise a stopped training could pass for a complete one."""
    record(tmp_path / "transcript")
    (tmp_path / "config.toml").write_text(ASYNCHRONOUS)
    folder = RunFolder(tmp_path)
    with pytest.raises(InputError, match="mode is asynchronous and not synchronous"):
        folder.extent(folder.open())
    (tmp_path / "config.toml").write_text(SYNCHRONOUS)
    assert folder.extent(folder.open()).n_planned == 30


def test_the_valuation_that_counts_is_of_the_whole_transcript(tmp_path):
    """An older one does not count; one of another transcript, or that misdescribes this one, is an error."""
    folder = RunFolder(make_run(tmp_path / "run"))
    transcript = folder.open()
    known = folder.valuation_of(transcript)
    assert known.head == transcript.head
    text = folder.valuation_path.read_text()
    fields = json.loads(text)
    folder.valuation_path.write_text(json.dumps(fields | {"clients": ["shop", "telco", "bank"]}))
    with pytest.raises(InputError, match="it names this transcript, but other clients, rounds, mode or loss"):
        folder.valuation_of(transcript)
    folder.valuation_path.write_text(json.dumps(fields | {"head": "0" * 64}))
    with pytest.raises(InputError, match="is of 6 rounds of 3 clients that are not in the transcript, which has 6 rou"):
        folder.valuation_of(transcript)
    folder.valuation_path.write_text("{")
    with pytest.raises(InputError, match=r"cannot be used: .*Delete it, and the run is valued again"):
        folder.valuation_of(transcript)


@pytest.mark.parametrize(
    "name", ["config.toml", "valuation.json", "transcript/uploads-00001.arrows", "chain-00001.bin"]
)
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path, name):
    """Reading from it would block forever."""
    folder = RunFolder(make_run(tmp_path / "run"))
    folder.refuse_irregular()
    (folder.path / name).unlink(missing_ok=True)
    os.mkfifo(folder.path / name)
    with pytest.raises(InputError, match=rf"{name} is not a regular file"):
        folder.refuse_irregular()
    with pytest.raises(InputError, match=rf"'{name}' is a link or not a regular file"):
        folder.hash_files()


def test_the_run_around_a_file(tmp_path):
    """Its folder, also for a file in that of the transcript, and for one that does not exist."""
    run = make_run(tmp_path / "run")
    for name in ("report.html", "valuation.json", "transcript/more.txt", "checkpoints/server.npz"):
        assert RunFolder.around(run / name).path == run.resolve()
        assert RunFolder.is_kept(run / name) == (name != "report.html")
        assert RunFolder.is_in_transcript(run / name) == (name == "transcript/more.txt")
    assert RunFolder.around(tmp_path / "report.html") is None
    record(tmp_path / "transcript")  # a recorder's own folder, which has this name by chance
    assert RunFolder.around(tmp_path / "transcript" / "report.html").path == (tmp_path / "transcript").resolve()


def test_notes_are_bounded(tmp_path):
    """A run made by somebody else cannot fill the terminal."""
    (tmp_path / "notes.json").write_text(json.dumps(["x" * 1000] * 30))
    assert [len(note) for note in RunFolder(tmp_path).notes()] == [500] * 20
    assert RunFolder(tmp_path / "elsewhere").notes() == ()


def test_a_folder_in_the_place_of_notes_is_named(tmp_path):
    """Only regular files are read."""
    (tmp_path / "notes.json").mkdir()
    with pytest.raises(InputError, match="not a regular file"):
        RunFolder(tmp_path).notes()


@pytest.mark.parametrize("name", ["config.toml", "notes.json", "metrics.jsonl", "valuation.json"])
def test_a_link_in_the_place_of_a_file_is_refused(tmp_path, name):
    """It may lead to files that its author has no right to read, and a report would show them."""
    record(tmp_path / "run")
    (tmp_path / "private").write_text('["a secret"]')
    (tmp_path / "run" / name).unlink(missing_ok=True)
    (tmp_path / "run" / name).symlink_to(tmp_path / "private")
    with pytest.raises(InputError, match=f"{name} is a symbolic link"):
        RunFolder(tmp_path / "run").open()
