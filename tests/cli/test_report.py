import io
import json
import os
import shutil
import warnings
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

import verfedsv
from tests.cli.inprocess import call as run
from tests.cli.processes import run_process
from verfedsv import InputError
from verfedsv.cli import _typer
from verfedsv.cli.output import explain_warnings


def report(*arguments):
    """Run the command in this process."""
    return CliRunner().invoke(_typer, ["report", *map(str, arguments)], catch_exceptions=True)


def test_a_page_is_written_and_summed_up(folder, tmp_path, monkeypatch):
    """report.html in this folder; the terminal shows the sentences and what was written."""
    monkeypatch.chdir(tmp_path)
    done = report(folder)
    assert done.exit_code == 0, done.output
    assert "client 1 " in done.output
    assert "Wrote report.html (9" in done.output
    assert "<h1>Who contributed how much</h1>" in Path("report.html").read_text()


def test_the_same_run_gives_the_same_bytes(folder, tmp_path):
    """Also in another process."""
    assert report(folder, "-o", tmp_path / "one.html").exit_code == 0
    assert run_process("report", folder, "-o", tmp_path / "two.html").returncode == 0
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


@pytest.mark.parametrize(
    ("options", "name", "begin"),
    [
        (["--format", "json"], "report.json", "{"),
        (["--format", "md"], "report.md", "# Who"),
        (["-o", "values.JSON"], "values.JSON", "{"),
        (["-o", "x.markdown"], "x.markdown", "# Who"),
        (["-o", "x.txt", "--format", "md"], "x.txt", "# Who"),
    ],
)
def test_the_format_is_chosen_by_option_or_ending(folder, tmp_path, monkeypatch, options, name, begin):
    """The option wins."""
    monkeypatch.chdir(tmp_path)
    assert report(folder, *options).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert Path(name).read_text().startswith(begin)


def test_a_dash_prints_it(folder):
    """And nothing else, for scripts."""
    done = run("report", str(folder), "-o", "-", "--format", "json")
    assert done.returncode == 0, done.stderr
    content = json.loads(done.stdout)
    assert content["run"] == "credit"
    assert len(content["clients"]) == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["-o", "report.pdf"], "cannot tell what report.pdf should be"),
        (["-o", "nowhere/report.html"], "there is no folder nowhere"),
        (["-o", ".", "--format", "md"], "it is a folder"),
    ],
)
def test_bad_places_are_refused_before_any_work(folder, options, message):
    """With one line."""
    done = report(folder, *options)
    assert isinstance(done.exception, InputError)
    assert message in str(done.exception)


def test_a_folder_without_a_run_ends_with_a_message_and_code_2(tmp_path):
    """Not with a traceback."""
    done = run("report", str(tmp_path / "nothing"))
    assert done.returncode == 2
    assert "there is no such folder" in done.stderr
    assert "Traceback" not in done.stderr


def test_names_do_nothing_in_the_terminal(tmp_path):
    """They are not interpreted as markup."""
    names = ["[bold red]bank[/]", "telco"]
    with verfedsv.Recorder(tmp_path / "run", [0, 1], names) as recorder:
        recorder.log([0, 1], {names[0]: [-1.0, 1.0], names[1]: [-0.5, 0.5]})
    done = report(tmp_path / "run", "-o", tmp_path / "report.md")
    assert done.exit_code == 0, done.output
    assert "[bold red]bank[/] " in done.output


@pytest.mark.parametrize("form", ["html", "md", "json"])
def test_a_folder_whose_name_is_no_text_gets_a_report(folder, tmp_path, form):
    """Bytes that are not text are shown in some form."""
    odd = os.fsencode(tmp_path) + b"/caf\xe9"
    shutil.copytree(folder, os.fsdecode(odd))
    place = tmp_path / f"report.{form}"
    assert report(os.fsdecode(odd), "-o", place).exit_code == 0
    assert "caf\N{REPLACEMENT CHARACTER}" in place.read_text()


def test_texts_of_files_do_nothing_in_the_terminal(folder, tmp_path):
    """Neither in errors nor in notes: they set no window title and clear no screen."""
    copy = shutil.copytree(folder, tmp_path / "run")
    evil = "\x1b]0;owned\x07\x1b[2J"
    description = copy / "transcript.json"
    fields = json.loads(description.read_text())
    description.write_text(json.dumps(fields | {"version": evil}))
    done = run("report", copy)
    assert (done.returncode, "\x1b" in done.stderr, "\x07" in done.stderr) == (2, False, False)
    assert "has format version \N{REPLACEMENT CHARACTER}]0;owned" in done.stderr
    console = Console(file=io.StringIO(), force_terminal=False, width=200)
    with explain_warnings(console):
        warnings.warn(f"one{evil}\ntwo", UserWarning, stacklevel=1)
    lines = console.file.getvalue().splitlines()
    assert [line.isprintable() for line in lines] == [True, True]


def test_a_run_of_a_configuration_shows_its_settings_and_training(tmp_path):
    """From config.toml and metrics.jsonl; of paths, only the names of files are shown."""
    (tmp_path / "run.toml").write_text(
        '[data]\nname = "adult"\nclients = 3\nsamples = 200\n[training]\nbatch_size = 100\nrate = 0.5\nrounds = 6\n'
        f'evaluate_every = 2\n[output]\nfolder = "{tmp_path / "run"}"\n'
    )
    assert run("run", str(tmp_path / "run.toml")).returncode == 0
    done = report(tmp_path / "run", "-o", tmp_path / "report.json")
    assert done.exit_code == 0, done.output
    content = json.loads((tmp_path / "report.json").read_text())
    assert {"part": "training", "name": "batch size", "text": "100"} in content["settings"]
    assert content["metrics"]["train_loss"]["rounds"] == [2, 4, 6]
    assert str(tmp_path) not in (tmp_path / "report.json").read_text()


def test_payouts_come_into_the_report(folder, tmp_path):
    """In every format; payouts for other values are refused."""
    payouts = tmp_path / "payouts.json"
    done = run("settle", str(folder), "--budget", "1000", "--currency", "EUR", "--negative", "zero", "-o", str(payouts))
    assert done.returncode == 0, done.stderr
    for suffix in ("html", "md", "json"):
        page = tmp_path / f"report.{suffix}"
        done = run("report", str(folder), "-o", str(page), "--settlement", str(payouts))
        assert done.returncode == 0, done.stderr
        for amount in json.loads(payouts.read_text())["payouts"]:
            assert amount in page.read_text()
    table = tmp_path / "payouts.csv"
    table.write_text("\ufeffclient,payout", encoding="utf-8")
    done = run("report", str(folder), "-o", str(page), "--settlement", str(table))
    assert done.returncode == 2
    assert "payouts.csv is a table for people; pass the JSON: verfedsv settle" in done.stderr
    other = payouts.read_text().replace('"head": "', '"head": "0')
    payouts.write_text(other)
    done = run("report", str(folder), "-o", str(page), "--settlement", str(payouts))
    assert done.returncode == 2
    assert "the settlement is of another transcript, or the run has grown since; settle this run" in done.stderr
