import pytest
from typer.testing import CliRunner

from verfedsv import InputError
from verfedsv.cli import _typer


def watch(*arguments):
    """Run the command in this process."""
    return CliRunner().invoke(_typer, ["watch", *map(str, arguments)])


def test_a_place_that_cannot_be_watched_is_an_error(tmp_path):
    """Neither the run nor its parent folder exists."""
    done = watch(tmp_path / "nowhere" / "run")
    assert isinstance(done.exception, InputError)


def test_a_folder_that_is_not_there_is_named(tmp_path, monkeypatch):
    """It may come later, or be mistyped."""
    monkeypatch.setattr("verfedsv.watch.server.Watch.run", lambda page: page._server.server_close())
    done = watch(tmp_path / "typo")
    assert done.exit_code == 0
    assert "typo yet; the page waits for a run to begin there" in done.output.replace("\n", "")
    assert "yet;" not in watch(tmp_path).output


@pytest.mark.parametrize(
    ("option", "given", "message"),
    [
        ("--every", "0", "must be at least 0.1; received '0'"),
        ("--every", "4000", "must be at most 3600; received '4000'"),
        ("--every", "often", "must be a number; received 'often'"),
        ("--port", "70000", "must be at most 65535; received '70000'"),
        ("--port", "-1", "must be at least 0; received '-1'"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path, option, given, message):
    """With exit code 2, and what is allowed."""
    done = watch(tmp_path, option, given)
    assert done.exit_code == 2
    assert f"Invalid value for '{option}': {message}" in done.output
