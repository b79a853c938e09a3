import errno
import json
import os
import shutil
import subprocess
import sys
from unittest.mock import Mock

import numpy as np
import pytest
from rich.console import Console
from rich.text import Text

import verfedsv
from tests.cli.inprocess import call as run
from tests.report.valuations import make_summary, make_valuation
from tests.settlement.runs import make_run
from tests.trainings import train
from verfedsv.cli.valuing import show
from verfedsv.report.html import to_html
from verfedsv.report.markdown import escape, to_markdown
from verfedsv.valuation.verdict import judge


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a small synchronous run."""
    path = tmp_path_factory.mktemp("runs") / "credit"
    with train(n_samples=200, batch=50, n_epochs=5).record(path):
        return path


def test_a_table_is_printed(folder):
    """With the clients, and where the errors come from."""
    done = run("value", str(folder))
    assert done.returncode == 0, done.stderr
    assert "Synchronous training: 3 clients, 20 rounds, 200 samples" in done.stdout
    for word in ("client 1", "client 3", "share", "error", "(proven)", "(estimated)", "Proposition 2"):
        assert word in " ".join(done.stdout.split())
    assert done.stderr.startswith("note: The loss was still falling at the end: the last 2 rounds brought 6.7 % of")
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"errors": 5.0},
        {"errors": [0.01, np.nan, 0.01], "completed": True},
        {"values": [0.3, -0.4, 0.05]},
        {"server": -0.9},
        {"tolerance_met": False, "n_unseen": 3},
        {"clients": ["bank", "Bank", "shop"]},
    ],
)
def test_what_is_printed_of_values_is_what_their_report_says(changes):
    """Every output has the same reasons not to trust values, in the same order."""
    valuation = make_valuation(**{"values": [0.3, 0.2, 0.1], "errors": 1e-4, **changes})
    summary = make_summary(**{"values": [0.3, 0.2, 0.1], "errors": 1e-4, **changes})
    console = Console(width=1000, color_system=None)
    with console.capture() as captured:
        show(console, valuation, judge(valuation))
    assert summary.verdict == judge(valuation)
    page, text = to_html(summary).replace("&#39;", "'"), to_markdown(summary)
    for reason in summary.verdict.reasons:
        assert reason.text in page
        assert escape(reason.text) in text
        assert (reason.text in captured.get()) == (reason.weight != "note")


def test_json_is_that_of_the_library(folder, tmp_path):
    """With --json nothing else is printed; --output writes the same to a file."""
    done = run("value", str(folder), "--json", "--output", str(tmp_path / "values.json"))
    assert done.returncode == 0, done.stderr
    printed, expected = verfedsv.Valuation.from_json(done.stdout), verfedsv.value(folder)
    np.testing.assert_array_equal(printed.values, expected.values)
    np.testing.assert_array_equal(printed.errors, expected.errors)
    assert (tmp_path / "values.json").read_text() == done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["values.json"]


def test_options_reach_the_library(folder):
    """Method, rank, rows, tolerance and seed are passed on."""
    done = run("value", str(folder), "--json", "--method", "exact", "--rank", "2", "--seed", "3", "--tolerance", "0.01")
    settings = json.loads(done.stdout)["settings"]
    assert (settings["method"], settings["rank"], settings["seed"], settings["tolerance"]) == ("exact", 2, 3, 0.01)


def test_a_run_is_valued_as_agreed(tmp_path):
    """Agreed settings other than the defaults are noted, and options override them."""
    agreed = {"method": "exact", "seed": 3}
    with verfedsv.Recorder(tmp_path / "run", [0, 1], ["a", "b"], valuation=agreed) as recorder:
        recorder.log([0, 1], {"a": [-1.0, 1.0], "b": [0.0, 1.0]})
    done = run("value", tmp_path / "run", "--json")
    settings = json.loads(done.stdout)["settings"]
    assert (settings["method"], settings["seed"]) == ("exact", 3)
    assert done.stderr.splitlines() == ["note: method = exact, as agreed", "note: seed = 3, as agreed"]
    done = run("value", tmp_path / "run", "--json", "--method", "auto", "--seed", "0")
    assert json.loads(done.stdout)["settings"]["method"] == "auto"
    assert "agreed" not in done.stderr


def test_a_rank_that_is_too_high_is_lowered_with_a_note(folder):
    """Rounds and samples limit it, and the output says so."""
    printed = " ".join(run("value", str(folder), "--rank", "1000").stdout.split())
    assert "Rank 20 in place of 1,000, as rounds and samples allow no more" in printed
    assert "in place of" not in run("value", str(folder), "--rank", "2").stdout


@pytest.fixture(scope="module")
def asynchronous(tmp_path_factory):
    """Return the folder of a small asynchronous run."""
    path = tmp_path_factory.mktemp("runs") / "asynchronous"
    with verfedsv.Recorder(path, [0, 1], ["a", "b"]) as recorder:
        recorder.update("a", [0, 1], [-1.0, 1.0], time=1)
        recorder.stamp(time=2)
    return path


@pytest.mark.parametrize(
    ("options", "notes"),
    [
        (["--rank", "3", "--regularization", "0.1"], ["rank had no effect", "regularization had no effect"]),
        (["--permutations", "9", "--method", "exact"], ["permutations had no effect: the method exact draws none"]),
        (["--tolerance", "0.1", "--method", "exact"], ["tolerance had no effect: it is for the method auto"]),
        (["--permutations", "9", "--tolerance", "0.1"], []),
    ],
)
def test_options_without_effect_are_noted(asynchronous, options, notes):
    """One line each, on the standard error."""
    errors = run("value", str(asynchronous), *options, "--json", COLUMNS="120").stderr
    assert len(errors.splitlines()) == len(notes)
    for note in notes:
        assert f"note: {note}" in errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "there is no transcript in nowhere"),
        (["{folder}", "--rank", "three"], "rank must be a whole number; received 'three'"),
        (["{folder}", "--rank", "0"], "rank must be at least 1; received 0"),
        (["{folder}", "--method", "magic"], "invalid value for '--method': 'magic' is not one of"),
        (["{folder}", "--seed", "x"], "invalid value for '--seed': must be a whole number; received 'x'"),
        (["{folder}", "--semivalue", "foo"], "allowed are 'shapley', 'banzhaf', 'leave-one-out' and 'beta(a, b)'"),
        (["{folder}", "--tolerance", "-1"], "tolerance must be a positive number; received -1.0"),
        (["{folder}", "--rows", "no-gradient"], "selects no sample"),
        (
            ["{folder}", "--output", "nowhere/values.json"],
            "cannot write nowhere/values.json: there is no folder nowhere",
        ),
        (["{folder}", "--output", "."], "cannot write .: it is a folder; name a file"),
        (["{folder}", "--output", "v.txt"], "cannot write v.txt: its name must end in .json"),
        (["{folder}", "--rank", "-1"], "rank must be at least 1; received -1"),
        (["{folder}", "--rank", "9" * 5000], "rank must be a whole number; received '999"),
        (["{folder}", "--regularization", "little"], "regularization must be a positive number; received 'little'"),
        ([], "Missing argument 'RUN'"),
    ],
)
def test_bad_input_ends_with_a_message_and_code_2(folder, arguments, message):
    """Not with a traceback."""
    done = run("value", *(argument.format(folder=folder) for argument in arguments))
    assert done.returncode == 2
    assert message.lower() in " ".join(done.stderr.replace("│", " ").split()).lower()
    assert "Traceback" not in done.stderr
    for of_a_library in ("Value error", "Input should", "verfedsv.Beta"):
        assert of_a_library not in done.stderr


def test_a_changed_transcript_is_not_valued(folder, tmp_path):
    """One byte of an upload, changed after it was recorded, is found and named."""
    shutil.copytree(folder, tmp_path / "run")
    path = tmp_path / "run" / "uploads-00001.arrows"
    content = bytearray(path.read_bytes())
    content[-600] ^= 1
    path.write_bytes(content)
    done = run("value", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "the transcript was changed: round 20" in done.stderr


def test_names_survive_a_terminal_of_another_encoding(tmp_path):
    """JSON is UTF-8 in any terminal."""
    with verfedsv.Recorder(tmp_path / "run", [0, 1], ["北京", "Zürich"]) as recorder:
        recorder.log([0, 1], {"北京": [0.5, 1.0], "Zürich": [0.0, 1.0]})
    arguments = [
        sys.executable,
        "-m",
        "verfedsv",
        "value",
        str(tmp_path / "run"),
        "--json",
        "-o",
        str(tmp_path / "v.json"),
    ]
    environment = os.environ | {"PYTHONIOENCODING": "cp1252", "LC_ALL": "C", "PYTHONUTF8": "0"}
    done = subprocess.run(arguments, capture_output=True, check=True, env=environment)  # noqa: S603  # our own command
    assert json.loads(done.stdout.decode())["clients"] == ["北京", "Zürich"]
    assert (tmp_path / "v.json").read_bytes() == done.stdout


def test_samples_of_no_batch_are_said_to_be_left_out(tmp_path):
    """In a single round, samples outside its batch are not in the mean."""
    with verfedsv.Recorder(tmp_path / "run", [0, 1, 1, 0], ["a", "b"]) as recorder:
        recorder.log([0, 1], {"a": [0.5, 1.0], "b": [0.0, 1.0]})
    said = "note: 2 samples were never uploaded by any client (not part of the values)."
    assert said in run("value", str(tmp_path / "run")).stderr


def test_nothing_changed(tmp_path):
    """Shares of nothing are a dash, not NaN."""
    with verfedsv.Recorder(tmp_path / "run", [0, 1], ["a", "b"]) as recorder:
        recorder.log([0, 1], {"a": [0.0, 0.0], "b": [0.0, 0.0]})
    done = run("value", str(tmp_path / "run"))
    assert "The clients together did not lower the loss: their values add up to 0." in done.stdout
    assert "There are no shares" in done.stdout
    assert "nan" not in done.stdout


def test_a_loss_that_rose_is_said_before_the_values():
    """In red, with where the loss went, and that the server changed more than the clients."""
    result = make_valuation([3.0, 1.35], 0.01, server=-4.78)
    console = Console(width=200, force_terminal=True, color_system="standard")
    with console.capture() as captured:
        show(console, result, judge(result))
    text = captured.get()
    plain = Text.from_ansi(text).plain
    assert "\x1b[1;31malarm: The loss rose over the training, from 0.6931 to 2.413: the model became worse." in text
    assert text.index("The loss rose") < text.index("it raised it by 19.12") < text.index("total value")
    assert "= 2.413 at the end + 17.400 by the clients \N{MINUS SIGN} 19.120 by the server." in text
    assert "\ndoubt: The server's own part changed" in plain


def test_intervals_of_shares_among_those_with_known_errors_are_called_so():
    """They are not errors of the shares of all clients, which are unknown."""
    result = make_valuation([0.6, 0.3, 0.1], np.array([0.001, 0.001, np.nan]), completed=True)
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        show(console, result, judge(result))
    text = " ".join(captured.get().split())
    assert "60.00% ± unknown" in text
    assert "The error of the value of 'hospital' is unknown, because" in text
    assert "up to about 0.17 % of the largest value (estimated), and unknown for 'hospital'. Rank" in text
    assert "over all rounds: 48 (estimated)" in text
    said = "Among the clients with known errors, "
    assert f"{said}bank has 66.55 to 66.78 %, telco has 33.22 to 33.45 %." in text


def test_flags_and_long_options_are_whole_in_help():
    """At 80 columns, and flags show no type."""
    for command in ("settle", "statement"):
        text = run(command, "--help").stdout
        assert "--even-if-the-loss-rose  " in text
        assert "<bool>" not in text  # which typer would print beside every flag


def test_a_damaged_run_ends_with_a_message(tmp_path):
    """A run with a truncated description, or of another version, is named as such."""
    for content, message in (
        (b"{", "transcript.json is not valid JSON"),
        (b'{"format": "verfedsv transcript", "version": 7}', "format version 7"),
    ):
        (tmp_path / "transcript.json").write_bytes(content)
        done = run("value", str(tmp_path))
        assert done.returncode == 2
        assert message in done.stderr


def test_a_note_tells_what_cannot_be_estimated(tmp_path):
    """Above the values, once: the verdict has what the library warns of."""
    with train(n_samples=100, batch=20, n_epochs=1).record(tmp_path / "run"):
        pass
    done = run("value", str(tmp_path / "run"))
    assert done.returncode == 0
    said = " ".join(done.stdout.split())
    assert "The error of every value is unknown" in said
    assert "uploaded no sample more than once" in said
    assert "the error of completing embeddings that were not uploaded is unknown." in said


INTERRUPTED = """
import signal, threading
from concurrent.futures import Future
from verfedsv.cli import app
from verfedsv.shapley import blocks
from verfedsv.valuation import backends

sum_up = backends.ordered_map

def press(*_arguments, **_options):
    signal.raise_signal(signal.SIGINT)

def compute(*_arguments, **_options):
    if threading.current_thread() is threading.main_thread():  # on a single core
        press()
    threading.Event().wait()

def press_in_sum(*arguments):
    Future.result = blocks.wait = press
    return sum_up(*arguments)

backends.CompiledLoops.value, backends.ordered_map = compute, press_in_sum
app()
"""


def test_interrupted(folder, tmp_path):
    """Ctrl-C ends it with code 130 and one line, and without a file; a second one does not wait for threads."""
    # No chunk is ever done; Ctrl-C is pressed while the first is waited for, and again while threads are.
    command = [sys.executable, "-c", INTERRUPTED, "value", str(folder), "--output", str(tmp_path / "values.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)  # noqa: S603
    assert done.returncode == 130
    assert done.stderr == "stopped; nothing was written. Run the same command to start again.\n"
    assert not list(tmp_path.iterdir())


def ending(error):
    """Return a function that raises an error."""

    def end(*_arguments, **_options):
        raise error

    return end


def leave(code):
    """End a command in this process as it would end its own."""
    raise SystemExit(code)


def test_a_full_disk_in_pieces_is_said_with_the_folder(folder, tmp_path, monkeypatch):
    """And that what was done can be continued."""
    where = tmp_path / "scratch"
    with monkeypatch.context() as patched:
        patched.setattr(np, "savez", ending(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        done = run("value", folder, "--memory", "4GB", "--scratch", where)
    assert done.returncode == 2
    said = "".join(done.stderr.split())
    for part in (
        f"cannot use {where}/valuation-",
        "No space left on device. Free some space on that disk",
        f"What was done is kept in {where}; continue with --resume",
    ):
        assert "".join(part.split()) in said
    assert run("value", folder, "--scratch", where, "--resume").returncode == 0
    assert not where.exists()


def test_nothing_to_resume_is_said(folder, tmp_path):
    """Whoever named another folder than the interrupted valuation finds out."""
    done = run("value", folder, "--resume", "--scratch", tmp_path)
    assert done.returncode == 0
    assert f"note: There is nothing to resume in {tmp_path}: the valuation begins anew." in done.stderr


def test_interrupted_in_pieces(folder, tmp_path, monkeypatch):
    """Where the work is kept is said, but not if nothing was begun."""
    monkeypatch.setattr(os, "_exit", leave)
    where = tmp_path / "scratch"
    for name, said in [
        ("verfedsv.cli.valuing.value_run", "nothing was written. Run the same command to start again"),
        ("numpy.savez", f"what was done is kept in {where}; continue with --resume"),
    ]:
        with monkeypatch.context() as patched:
            patched.setattr(name, ending(KeyboardInterrupt()))
            done = run("value", folder, "--memory", "4GB", "--scratch", where)
        assert done.returncode == 130
        assert done.stderr == f"stopped; {said}.\n"


def texts_of(done):
    """Return the reasons that the JSON of values has."""
    return [reason["text"] for reason in json.loads(done.stdout)["verdict"]["reasons"]]


def test_an_unfinished_training_is_said_to_be_one(tmp_path):
    """On standard error and in JSON; a finished one is not, and for a bare recorder it is unknown."""
    folder = make_run(tmp_path / "run")
    n_rounds = verfedsv.Transcript.open(folder).n_rounds
    done = run("value", folder, "--json")
    content = json.loads(done.stdout)
    assert (content["finished"], content["verdict"]["word"]) == (True, "sound")
    (falling,) = texts_of(done)
    assert falling.startswith("The loss was still falling at the end: the last round brought 9.4 % of")
    assert done.stderr == f"note: {falling}\n"
    text = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(text.replace(f"rounds = {n_rounds}", "rounds = 200"))
    done = run("value", folder, "--json")
    note = f"The training was stopped after {n_rounds} of 200 rounds: the values are those of an unfinished training."
    assert (json.loads(done.stdout)["finished"], texts_of(done)) == (False, [note, falling])
    assert done.stderr == f"doubt: {note}\nnote: {falling}\n"
    assert verfedsv.Valuation.from_json(done.stdout).n_rounds == n_rounds
    (folder / "config.toml").unlink()
    assert json.loads(run("value", folder, "--json").stdout)["finished"] is None


def test_a_training_that_is_running_is_said_to_be_so(tmp_path):
    """Its last record may be half written."""
    with train(n_samples=40, batch=40, n_epochs=3).record(tmp_path) as recorder:
        done = run("value", tmp_path, "--json")
        assert json.loads(done.stdout)["finished"] is False
        assert done.stderr == "doubt: The training is still running, 3 rounds so far: the values will change.\n"
        assert recorder.n_rounds == 3


def test_a_record_that_was_cut_off_is_named(tmp_path):
    """Complete records are valued; notes name the truncated one, and that more was valued before."""
    folder = make_run(tmp_path / "run")
    (folder / "valuation.json").write_text(verfedsv.value(folder).to_json())
    path = folder / "transcript" / "uploads-00001.arrows"
    os.truncate(path, path.stat().st_size - 9)
    done = run("value", folder, "--json")
    assert done.returncode == 0
    reasons = json.loads(done.stdout)["verdict"]["reasons"]
    assert [reason["kind"] for reason in reasons] == ["extent", "record", "record", "falling"]
    assert "bytes after it: one of them was cut off" in reasons[1]["text"]
    assert "Part of the record was lost or replaced" in reasons[2]["text"]


def test_a_damaged_valuation_is_named_with_what_to_do(tmp_path):
    """In words for users of the command line, not for Python callers."""
    folder = make_run(tmp_path / "run")
    (folder / "valuation.json").write_text('{"a":')
    for command in (["value"], ["settle", "--budget", "10", "--currency", "EUR"]):
        done = run(command[0], folder, *command[1:])
        said = "".join((done.stdout + done.stderr).split())  # the width decides where lines end
        assert "valuation.jsoncannotbeused:" in said
        assert "Deleteit,andtherunisvaluedagain" in said
        assert "thetextiswanted" not in said


@pytest.mark.parametrize("command", [["value"], ["report"], ["settle", "--budget", "10", "--currency", "EUR"]])
def test_a_broken_configuration_stops_every_command(tmp_path, monkeypatch, command):
    """It may contradict what was agreed; also if there is a valuation."""
    monkeypatch.chdir(tmp_path)
    folder = make_run(tmp_path / "run")
    (folder / "valuation.json").write_text(verfedsv.value(folder).to_json())
    (folder / "config.toml").write_text("[data")
    done = run(command[0], folder, *command[1:])
    assert done.returncode == 2
    assert f"{folder / 'config.toml'} is not valid TOML" in done.stderr


@pytest.mark.parametrize(
    ("error", "said"),
    [(MemoryError("44.7 GiB"), "not enough memory (44.7 GiB). Use"), (MemoryError(), "not enough memory. Use")],
)
def test_too_little_memory_is_a_message(folder, monkeypatch, error, said):
    """With the requested amount, if known, and what to do; no traceback."""
    monkeypatch.setattr(sys.modules["verfedsv.cli.value"], "value_folder", Mock(side_effect=error))
    done = run("value", folder)
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize(
    ("command", "as_json"), [("value", False), ("value", True), ("settle", False), ("settle", True)]
)
def test_what_a_run_noted_of_its_data_is_said_with_its_values(tmp_path, command, as_json):
    """On standard error and in the JSON of values; damaged notes are an error."""
    folder = make_run(tmp_path / "run")
    note = "bank: column 'copy' gives the label away"
    (folder / "notes.json").write_text(json.dumps([note]))
    paid = ["--budget", "1000", "--currency", "EUR", "--negative", "zero"] if command == "settle" else []
    done = run(command, folder, *paid, *(["--json"] if as_json else []))
    assert done.returncode == 0, done.stderr
    assert f"note: {note}.\n" in done.stderr
    if command == "value" and as_json:
        assert f"{note}." in texts_of(done)
    (folder / "notes.json").write_text("{}")
    assert "notes.json is damaged" in run(command, folder, *paid).stderr


def test_another_semivalue_is_not_called_a_decrease_of_the_loss():
    """Only Shapley values add up to it."""
    recorder = verfedsv.Recorder(None, [0, 1], ["a", "b"])
    recorder.log([0, 1], {"a": [-1.0, 1.0], "b": [0.0, 0.5]})
    result = verfedsv.value(recorder, semivalue="banzhaf")
    console = Console(width=200, color_system=None)
    with console.capture() as captured:
        show(console, result, judge(result))
    assert "A total value is the semivalue banzhaf of a client" in captured.get()
    assert "lowered the loss, over all rounds" not in captured.get()
