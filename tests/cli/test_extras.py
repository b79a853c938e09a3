"""What works without the extra `report`."""

import os
import subprocess
import sys

import pytest

import verfedsv
from tests.trainings import train

BLOCKED = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("altair", "vl_convert"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocked())
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return the folder of a small run that was valued."""
    path = tmp_path_factory.mktemp("runs") / "credit"
    with train(n_samples=60, batch=20, n_epochs=4).record(path):
        pass
    (path / "valuation.json").write_text(verfedsv.value(path).to_json())
    return path


def call(code, *arguments, **options):
    """Run Python where the packages of the extra are not installed."""
    command = [sys.executable, "-c", BLOCKED + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # noqa: S603  # our own code


def verfedsv_command(*arguments, **options):
    return call("from verfedsv.__main__ import main; main()", *arguments, **options)


def test_a_page_needs_the_extra_and_says_so(folder, tmp_path):
    """In one line, before any work, with what to do; nothing is written."""
    done = verfedsv_command("report", folder, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "pip install 'verfedsv[report]'" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["report.md", "report.json"])
def test_other_reports_do_not_need_it(folder, tmp_path, name):
    """With the summary in the terminal."""
    done = verfedsv_command("report", folder, "-o", name, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "client 1 " in done.stdout
    assert (tmp_path / name).stat().st_size > 1000


def test_values_and_watching_do_not_need_it(folder):
    """Neither the command nor the library; the page of a run is served with its charts' lines."""
    assert "client 1 " in verfedsv_command("value", folder).stdout
    done = call(
        "import pathlib, verfedsv.watch.server\n"
        "from verfedsv.watch.follower import Follower\n"
        "states = []\n"
        "Follower(pathlib.Path(sys.argv[1]), states.append).look()\n"
        "print(states[-1].status, len(states[-1].charts))",
        folder,
    )
    assert done.stdout.split() == ["finished", "2"], done.stderr


def test_a_plot_needs_it_and_says_so(folder):
    """With an error of this package, not one of the import."""
    code = "import verfedsv; verfedsv.Valuation.from_json(open(sys.argv[1]).read()).plot()"
    done = call(code, folder / "valuation.json")
    assert "InputError: charts need Altair: pip install 'verfedsv[report]'" in done.stderr


def test_a_run_and_the_readme_do_not_need_it(tmp_path):
    """A training from a configuration, as `verfedsv demo` does two; and the first example of the README."""
    (tmp_path / "run.toml").write_text(
        '[data]\nname = "adult"\nclients = 3\nsamples = 200\n[training]\nbatch_size = 100\nrate = 0.5\nrounds = 4\n'
        '[output]\nfolder = "out"\n'
    )
    done = verfedsv_command("run", "run.toml", cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "client 1 " in done.stdout
    done = call("import verfedsv.cli.demo; print([name for name in sys.modules if 'altair' in name])")
    assert done.stdout == "[]\n"
