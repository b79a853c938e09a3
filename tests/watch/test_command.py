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


@pytest.mark.parametrize("options", [("--every", "0"), ("--port", "70000"), ("--port", "-1"), ("--every", "often")])
def test_options_out_of_range_are_refused(tmp_path, options):
    """With exit code 2."""
    assert watch(tmp_path, *options).exit_code == 2
