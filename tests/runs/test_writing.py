import json
from types import SimpleNamespace

import numpy as np
import pytest

from tests.runs.test_execute import SYNCHRONOUS, entries, finish, make
from tests.runs.test_resume import kill_after, stop_at
from verfedsv import InputError, Recorder, Transcript, TranscriptError, VerfedsvError
from verfedsv.runs import Run

TINY = SYNCHRONOUS.replace("samples = 3000", "samples = 300").replace("rounds = 30", "rounds = 4")


def test_what_cannot_be_carried_out_leaves_nothing_behind(tmp_path):
    """The same folder can be used once the mistake is corrected."""
    cases = {
        "epochs = 0.001 is less than one round": TINY.replace("rounds = 4", "epochs = 0.001"),
        "takes up to 25 clients, .* received 60": TINY.replace("clients = 4", "clients = 60")
        + '[valuation]\nmethod = "exact"\n',
        "computes Shapley values only": TINY + '[valuation]\nmethod = "closed-form"\nsemivalue = "banzhaf"\n',
        "there are no samples to train on": TINY.replace("samples = 300", "samples = 1\ntest = 0.9999"),
        "cannot be a copy of 'nobody'": TINY + "[[client]]\nname = 'x'\ncopy_of = 'nobody'\n",
    }
    for message, text in cases.items():
        with pytest.raises(VerfedsvError, match=message):
            finish(make(tmp_path, text))
        assert not (tmp_path / "out").exists(), message
    finish(make(tmp_path, TINY))


def test_names_that_cannot_be_recorded_leave_nothing_behind(tmp_path):
    """Even if the configuration does not come from a file."""
    run = make(tmp_path, TINY + "[[client]]\nname = 'x'\nrandom_level = 1.0\n")
    client = run.config.client[0].model_copy(update={"name": " x"})
    run = Run(run.config.model_copy(update={"client": [client]}), TINY)
    with pytest.raises(InputError, match=r"surrounding spaces; received ' x'"):
        finish(run)
    assert not (tmp_path / "out").exists()


def begun(folder, *names):
    """Make a folder with some files of a run that recorded nothing."""
    folder.mkdir()
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")


@pytest.mark.parametrize(
    "names",
    [
        [],
        [".config.toml.abcd_123"],
        ["config.toml", "transcript/.lock"],
        [
            "config.toml",
            "transcript/.lock",
            "transcript/labels.arrow",
            "metrics.jsonl",
            "checkpoints/.server.npz.abcd_123",
        ],
    ],
)
def test_a_run_that_recorded_nothing_is_begun_anew(tmp_path, names):
    """At whatever point it was killed."""
    begun(tmp_path / "out", *names)
    finish(make(tmp_path, TINY))
    assert len(finish(make(tmp_path, TINY), resume=True)) == 0
    assert (tmp_path / "out" / "config.toml").read_text() == TINY


def test_states_of_a_head_are_removed_with_the_rest(tmp_path):
    """A recorder with its own head had begun in the folder."""
    begun(tmp_path / "out", "config.toml")
    head = SimpleNamespace(state_dict=lambda: {"weight": np.ones(2)})
    Recorder(tmp_path / "out" / "transcript", [0, 1], ["a"], head=head).close()
    tensors = tmp_path / "out" / "transcript" / "tensors"
    assert [*tensors.iterdir()]
    finish(make(tmp_path, TINY))
    assert not tensors.exists()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.filterwarnings("ignore:the transcript ended in an unfinished record")
def test_a_run_that_was_killed_before_its_first_record(tmp_path, monkeypatch, resume):
    """It can begin again, even with other settings, or be resumed."""
    with monkeypatch.context() as patch:
        # The head of the stream is there then, which says mode and width.
        patch.setattr("verfedsv.transcript.recorder.RecordMessage.build", lambda *_: 1 / 0)
        patch.setattr("verfedsv.transcript.segments._cut_off", lambda *_: "")
        with pytest.raises(ZeroDivisionError):
            finish(make(tmp_path, TINY))
    assert (tmp_path / "out" / "transcript" / "uploads-00001.arrows").stat().st_size > 0
    text = TINY if resume else TINY.replace("rounds = 4", "mode = 'asynchronous'\nduration = 0.2")
    finish(make(tmp_path, text), resume=resume)
    finish(make(tmp_path, text.replace('"out"', '"whole"'), "whole.toml"))
    assert entries(tmp_path / "out") == entries(tmp_path / "whole")
    Transcript.open(tmp_path / "out").verify()


@pytest.mark.parametrize(
    "names",
    [
        ["thesis.txt"],
        ["config.toml"],
        ["config.toml", "transcript/.lock", "thesis.txt"],
        ["config.toml", "checkpoints/server.npz", "metrics.jsonl"],
        ["config.toml", "transcript/.lock", "valuation.json"],
    ],
)
def test_what_somebody_may_need_is_not_overwritten(tmp_path, names):
    """Other files, a configuration written by hand, models and values whose transcript was deleted."""
    begun(tmp_path / "out", *names)
    with pytest.raises(InputError, match="is not empty; continue its run with --resume, or choose another"):
        finish(make(tmp_path, TINY))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted({name.split("/")[0] for name in names})


def test_a_run_with_records_is_not_begun_anew(tmp_path):
    """Not even with one record."""
    kill_after(1, make(tmp_path, TINY))
    with pytest.raises(InputError, match="is not empty"):
        finish(make(tmp_path, TINY))


def test_a_run_that_another_process_begins_is_left_alone(tmp_path):
    """Even if it has recorded nothing yet."""
    begun(tmp_path / "out", "config.toml", "transcript/.lock")
    with (
        Recorder(tmp_path / "out" / "transcript", [0, 1], ["a"]),
        pytest.raises(TranscriptError, match="another recorder is open"),
    ):
        finish(make(tmp_path, TINY))
    assert (tmp_path / "out" / "transcript" / "transcript.json").exists()


@pytest.mark.parametrize("place", ["file", "file/out", "/proc/nowhere/out"])
@pytest.mark.parametrize("resume", [False, True])
def test_folders_that_cannot_be_used(tmp_path, place, resume):
    """A file, a path below one, and a folder that cannot be written to are refused with the reason."""
    (tmp_path / "file").write_text("mine")
    message = "there is no run in" if resume else "cannot be the output folder: .*; choose another"
    run = make(tmp_path, TINY.replace('"out"', f'"{place}"'))
    run.data = None  # not read before that is known
    with pytest.raises(InputError, match=message):
        finish(run, resume=resume)
    assert (tmp_path / "file").read_text() == "mine"


def test_the_meaning_of_a_configuration_must_stay(tmp_path):
    """Comments, order, explicit defaults and 1 for 1.0 make no difference."""
    text = TINY.replace("rate = 0.5", "rate = 1.0")
    finish(make(tmp_path, text), should_stop=stop_at(2))
    other = text.replace("[training]", "scale = 'none'\n# how\n[training]\ndecay = 'constant'")
    other = other.replace("rate = 1.0", "rate = 1")
    finish(make(tmp_path, other), resume=True)
    assert (tmp_path / "out" / "config.toml").read_text() == other


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("rate = 0.5", "rate = 0.6"), r"training\.rate was 0\.5 and is 0\.6"),
        (("samples = 300", "samples = 200"), r"data\.samples was 300 and is 200"),
        (("[output]", "[model]\nkind = 'perceptron'\n[output]"), r"model\.kind was 'linear' and is 'perceptron'"),
        (("[output]", "[[client]]\nname = 'x'\nrandom_level = 1.0\n[output]"), r"client 1\.name was None and is 'x'"),
    ],
)
def test_another_training_is_not_continued(tmp_path, change, message):
    """The error says what differs."""
    finish(make(tmp_path, TINY))
    with pytest.raises(InputError, match=rf"has another configuration, see its config\.toml: .*{message}.*Choose"):
        finish(make(tmp_path, TINY.replace(*change)), resume=True)
    assert (tmp_path / "out" / "config.toml").read_text() == TINY


def test_what_was_agreed_on_is_in_the_transcript_and_stays(tmp_path):
    """A run is not resumed with other settings of its valuation."""
    text = TINY + '[valuation]\nmethod = "exact"\nrank = 2\n'
    run = make(tmp_path, text)
    finish(run)
    assert run.value().settings == Transcript.open(tmp_path / "out").description.valuation
    assert (run.value().settings.method, run.value().settings.rank) == ("exact", 2)
    with pytest.raises(InputError, match=r"valuation\.rank was 2 and is 3.*use verfedsv value"):
        finish(make(tmp_path, text.replace("rank = 2", "rank = 3")), resume=True)


def test_a_run_can_be_moved(tmp_path):
    """With its configuration, which may be elsewhere and have paths relative to there."""
    lines = ["id,y,x", *(f"{i},{i % 2},{i % 7}" for i in range(60))]
    (tmp_path / "a.csv").write_text("\n".join(lines))
    text = TINY.replace('name = "adult"\nclients = 4\nsamples = 300', 'label = "y"\nlabel_client = "a"')
    text += '[[client]]\nname = "a"\nfile = "a.csv"\n'
    finish(make(tmp_path, text), should_stop=stop_at(2))
    (tmp_path / "new").mkdir()
    (tmp_path / "out").rename(tmp_path / "new" / "moved")
    moved = text.replace('"a.csv"', '"../a.csv"').replace('"out"', '"moved"')
    updates = finish(make(tmp_path / "new", moved), resume=True)
    assert [update.n_rounds for update in updates] == [3, 4]


def test_metrics_cut_short_by_a_crash(tmp_path):
    """Lines after the checkpoint, and half a line, are removed and measured again."""
    text = TINY.replace("evaluate_every = 10", "evaluate_every = 1")
    finish(make(tmp_path, text), should_stop=stop_at(2))
    with (tmp_path / "out" / "metrics.jsonl").open("a") as file:
        file.write('{"n_rounds": 3}\n{"n_rou')
    finish(make(tmp_path, text), resume=True)
    lines = [json.loads(line) for line in (tmp_path / "out" / "metrics.jsonl").read_text().splitlines()]
    assert [line["n_rounds"] for line in lines] == [1, 2, 3, 4]
    assert "train_loss" in lines[2]


def test_a_byte_order_mark_stays_out_of_the_folder(tmp_path):
    """The configuration is written without it."""
    (tmp_path / "run.toml").write_text(TINY, encoding="utf-8-sig")
    finish(Run.of_file(tmp_path / "run.toml"))
    assert Run.of_file(tmp_path / "out" / "config.toml").config.training.rounds == 4
    assert (tmp_path / "out" / "config.toml").read_text() == TINY
