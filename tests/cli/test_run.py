import errno
import json
import os

import numpy as np
import pytest
import typer
from rich.console import Console

from tests.cli.inprocess import call as run
from tests.runs.test_execute import ASYNCHRONOUS, SYNCHRONOUS
from verfedsv import Recorder, value
from verfedsv.cli.run import carry_out
from verfedsv.runs import Run


@pytest.fixture
def config(tmp_path):
    """Return the path of a small configuration."""
    path = tmp_path / "run.toml"
    path.write_text(SYNCHRONOUS)
    return path


def test_a_run_prints_its_values(config, tmp_path):
    """Accuracy, the table, and the folder of the results."""
    done = run("run", str(config))
    assert done.returncode == 0, done.stderr
    for part in (
        "4 clients of 30 to 31 features each",
        "to train on",
        "Trained: loss",
        "on test samples",
        "client 3",
        f"Results: {tmp_path}",
    ):
        assert part in done.stdout


def test_a_run_as_json(config, tmp_path):
    """Only the valuation on standard output, and the same in the folder."""
    config.write_text(ASYNCHRONOUS)
    done = run("run", str(config), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["mode"] == "asynchronous"
    assert (tmp_path / "out" / "valuation.json").read_text() == done.stdout


@pytest.mark.parametrize(
    ("rate", "scale", "says"), [(300, "none", True), (300, "standardise", True), (0.5, "none", False)]
)
def test_a_training_that_diverged_is_noticed(config, rate, scale, says):
    """If the loss is larger than with embeddings of zero, with what to do."""
    config.write_text(
        SYNCHRONOUS.replace("rate = 0.5", f"rate = {rate}").replace("clients", f"scale = '{scale}'\nclients")
    )
    printed = " ".join(run("run", str(config)).stderr.split())
    assert ("note: the loss is larger than at the start: training diverged; try a smaller rate" in printed) == says
    assert ('or scale = "standardise"' in printed) == (says and scale == "none")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (("rounds = 30", "rounds = 30"), "set rounds in [training] to more than 30, and choose another output folder."),
        (("rounds = 30", "epochs = 2.5"), "set epochs in [training] to more than 2.5, and"),
        (("rounds = 30", "mode = 'asynchronous'\nduration = 1.2"), "set duration in [training] to more than 1.2, and"),
    ],
)
def test_a_loss_that_was_still_falling_is_noted_with_what_to_do(config, change, says):
    """At the end of the run, by the setting that it has."""
    config.write_text(SYNCHRONOUS.replace("rate = 0.5", "rate = 0.02").replace(*change))
    printed = " ".join(run("run", str(config)).stderr.split())
    assert "note: The loss was still falling at the end" in printed
    assert f"To train longer, {says}" in printed


def test_an_example_is_written(tmp_path):
    """--init writes it, once, and the error on a missing file mentions it."""
    missing = run("run", str(tmp_path / "mine.toml"))
    assert (missing.returncode, missing.stdout) == (2, "")
    assert f"there is no {tmp_path}/mine.toml; write an example with: verfedsv run --init" in missing.stderr
    path = tmp_path / "mine.toml"
    done = run("run", "--init", str(path))
    assert done.returncode == 0
    assert path.read_text().startswith("# A run of verfedsv")
    done = run("run", "--init", str(path))
    assert done.returncode == 2
    assert "exists; name another file" in done.stderr


def test_mistakes_end_with_code_2(config, tmp_path):
    """With the setting, before any work, and nothing is left behind."""
    config.write_text(SYNCHRONOUS.replace("rate = 0.5", "rate = 'fast'"))
    done = run("run", str(config))
    assert done.returncode == 2
    assert "training.rate" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "out").exists()
    assert run("run", str(tmp_path / "nothing.toml")).returncode == 2


def test_a_run_is_not_begun_twice(config):
    """Its folder is in use; --resume shows its valuation again."""
    first = run("run", str(config))
    assert first.returncode == 0
    done = run("run", str(config))
    assert done.returncode == 2
    assert "--resume" in done.stderr
    again = run("run", str(config), "--resume")
    assert again.returncode == 0
    assert "It was valued before" in again.stdout
    assert "Continuing" not in again.stdout
    for line in first.stdout.splitlines():  # "Valued in 0.4 s" too
        assert line in again.stdout


def carry_out_here(config, capsys, **options):
    """Carry out a run in this process; return the exit code and the output."""
    try:
        code = None if carry_out(Console(width=80), Run.of_file(config), **options) else False
    except typer.Exit as end:
        code = end.exit_code
    return code, capsys.readouterr().out


def interrupt(*_arguments, **_options):
    """Act like Ctrl-C."""
    raise KeyboardInterrupt


def test_interrupted_wherever_it_is(config, tmp_path, monkeypatch, capsys):
    """One line says what happened, and how to continue."""
    with monkeypatch.context() as patched:
        patched.setattr("verfedsv.runs.execute.load", interrupt)
        assert carry_out_here(config, capsys) == (130, "stopped while reading the data; nothing was written.\n")
    assert not (tmp_path / "out").exists()
    with monkeypatch.context() as patched:
        patched.setattr("verfedsv.runs.execute.value", interrupt)
        code, printed = carry_out_here(config, capsys)
    assert code == 130
    assert printed.splitlines()[-1] == "stopped; training is complete: --resume values it."
    code, printed = carry_out_here(config, capsys, resume=True)
    assert code is None
    assert "Trained: loss" in printed
    assert "It was valued before" not in printed


def test_continuing_is_reported(config, capsys):
    """With the round at which it continues."""
    whole = Run.of_file(config)
    asked = iter([False] * 12 + [True])
    for _ in whole.train(should_stop=lambda: next(asked)):
        pass
    code, printed = carry_out_here(config, capsys, resume=True)
    assert code is None
    assert "Continuing from round 13 of 30." in printed


def test_a_valuation_is_made_again_if_something_changed(config, tmp_path, capsys):
    """If it has other settings, as `verfedsv value` may have written it, or is damaged."""
    carry_out_here(config, capsys)
    (tmp_path / "out" / "valuation.json").write_text(value(tmp_path / "out", seed=3).to_json())
    assert "It was valued before" not in carry_out_here(config, capsys, resume=True)[1]
    assert "It was valued before" in carry_out_here(config, capsys, resume=True)[1]
    (tmp_path / "out" / "valuation.json").write_text("{")
    assert "It was valued before" not in carry_out_here(config, capsys, resume=True)[1]


@pytest.mark.parametrize("place", ["file", "file/out", "/proc/nowhere"])
def test_an_output_folder_that_cannot_be_ends_with_one_line(config, tmp_path, place):
    """And with code 2."""
    (tmp_path / "file").write_text("mine")
    config.write_text(SYNCHRONOUS.replace('"out"', f'"{place}"'))
    done = run("run", str(config))
    assert done.returncode == 2
    assert "cannot be the output folder" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_what_is_damaged_ends_with_one_line(config, tmp_path):
    """A truncated checkpoint, and a result that cannot be written."""
    assert run("run", str(config)).returncode == 0
    checkpoint = tmp_path / "out" / "checkpoints" / "server.npz"
    whole = checkpoint.read_bytes()
    checkpoint.write_bytes(whole[: len(whole) // 2])
    (tmp_path / "out" / "valuation.json").unlink()
    (tmp_path / "out" / "valuation.json").mkdir()
    done = run("run", str(config), "--resume")
    assert done.returncode == 2
    assert f"{checkpoint} cannot be read" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    checkpoint.write_bytes(whole)
    done = run("run", str(config), "--resume")
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1].startswith(f"error: cannot use {tmp_path / 'out' / 'valuation.json'}")
    assert "Traceback" not in done.stderr


def test_data_commands():
    """The list has all data sets; Adult is shown; an unknown name is refused."""
    listed = run("data", "list")
    for name in ("adult", "web", "covtype", "rcv1", "sector", "diabetes"):
        assert name in listed.stdout
    assert "amounts" in listed.stdout
    shown = run("data", "show", "diabetes").stdout
    assert "\n442 samples, of which 0 are" in shown
    assert "\nlabels are amounts from 25 to 346, with mean 152.1 and standard deviation 77.0" in shown
    assert "\nclient 2: features 3 to 4 (bmi, bp)\n" in shown
    shown = run("data", "show", "adult")
    assert "48,842 samples, of which 16,281" in shown.stdout
    assert "\nclient 5: features 62 to 76 (relationship, race, sex, capital-gain, capital-loss)" in shown.stdout
    assert "client 8: features 108 to 123 (native-country)" in shown.stdout
    assert "client 4: features 93 to 123 (" in run("data", "show", "adult", "--clients", "4").stdout
    assert run("data", "fetch", "adult").stdout.count("a9a") == 2
    assert run("data", "show", "mnist").returncode == 2


def write_files(folder, labels, rounds=40, **columns):
    """Write a client's file and a configuration of a run on it; return the path of the latter."""
    rng = np.random.default_rng(0)
    columns = {"y": labels, "x": rng.normal(size=len(labels)), **columns}
    rows = [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    lines = [f"id,{','.join(columns)}", *(f"{i},{row}" for i, row in enumerate(rows))]
    (folder / "bank.csv").write_text("\n".join(lines))
    text = SYNCHRONOUS.replace(
        'name = "adult"\nclients = 4\nsamples = 3000',
        'label = "y"\nlabel_client = "bank"\n[[client]]\nname = "bank"\nfile = "bank.csv"',
    )
    (folder / "run.toml").write_text(text.replace("rounds = 30", f"rounds = {rounds}"))
    return folder / "run.toml"


def test_what_may_be_wrong_in_the_data_is_said_before_training_and_kept(tmp_path):
    """By name and count: rare labels, columns that give the label away or are empty, filled-in numbers."""
    labels = [*"01" * 100, "yes"]
    gaps = ["" if i < 5 else i % 9 for i in range(201)]
    done = run("run", write_files(tmp_path, labels, copy=labels, gaps=gaps, nothing=[""] * 201), "--json")
    assert done.returncode == 0, done.stderr
    notes = json.loads((tmp_path / "out" / "notes.json").read_text())
    said = " ".join(done.stderr.split())
    for note in notes:
        assert f"note: {note}" in said
    assert said.index("'copy'") < said.index("Trained: loss")
    for part in ("yes (1)", "'copy' gives the label away", "5 of 201 in 'gaps'", "no values in 'nothing'"):
        assert part in said


def test_amounts_are_not_taken_for_classes(tmp_path):
    """A regression target of whole numbers is an error with both remedies, and not hundreds of classes."""
    done = run("run", write_files(tmp_path, range(100, 533)))
    assert done.returncode == 2
    assert "has 433 different numbers, such as 100, 208, 316, 424" in done.stderr
    assert "classes = 433 in [data]" in done.stderr
    assert 'loss = "squared" in [training]' in done.stderr
    assert not (tmp_path / "out").exists()


def fill_disk(*_arguments, **_options):
    """Act like a full disk."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_says_where_and_how_to_go_on(config, tmp_path, monkeypatch):
    """And the run can be continued."""
    with monkeypatch.context() as patched:
        patched.setattr(Recorder, "log", fill_disk)
        done = run("run", config)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: cannot use {tmp_path / 'out'}: No space left on device. Free some space on that disk, or choose "
        "another folder. What was recorded is kept: continue with --resume\n"
    )
    with monkeypatch.context() as patched:
        patched.setattr("verfedsv.runs.execute.write_whole", lambda path, _: (_ for _ in ()).throw(full(path)))
        done = run("run", config, "--resume")
    assert f"cannot use {tmp_path / 'out' / 'valuation.json'}: No space left" in done.stderr
    assert "Training is complete: --resume values it" in done.stderr
    assert run("run", config, "--resume").returncode == 0


def full(path):
    """Return the error of a full disk that names its file."""
    return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))


def test_an_example_is_not_left_half_written(tmp_path, monkeypatch):
    """Nothing is written if the disk is full."""
    monkeypatch.setattr(os, "fsync", fill_disk)
    done = run("run", "--init", tmp_path / "run.toml")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: cannot use {tmp_path / 'run.toml'}: No space left on device")
    assert list(tmp_path.iterdir()) == []


def test_an_output_folder_is_tried_before_the_data_are_read(config, monkeypatch):
    """Reading them may take minutes."""
    config.write_text(SYNCHRONOUS.replace('"out"', '"/proc/nowhere/out"'))
    monkeypatch.setattr("verfedsv.runs.execute.load", interrupt)
    done = run("run", config)
    assert (done.returncode, "cannot be the output folder" in done.stderr) == (2, True)
