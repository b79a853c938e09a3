"""What works without the extras `report` and `frame`."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.test_demo import SMALL

ROOT = Path(__file__).parents[2]

BLOCKED = """
import sys

class WithoutExtra:
    def __init__(self, finder):
        self._finder = finder

    def find_spec(self, name, path=None, target=None):
        is_blocked = name.partition(".")[0] in ("altair", "vl_convert", "pandas")
        return None if is_blocked else self._finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self._finder, name)

sys.meta_path[:] = map(WithoutExtra, sys.meta_path)
"""

LOOP = """
import numpy as np, verfedsv

rng = np.random.default_rng(0)
y, batches = np.arange(20) % 2, [rng.permutation(20)[:10] for _ in range(8)]
h_bank, h_telco = rng.normal(size=10), rng.normal(size=10)
"""
"""What the training loop of the README's first example uses."""


def call(code, *arguments, **options):
    """Run Python without the packages of the extra."""
    command = [sys.executable, "-c", BLOCKED + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)  # noqa: S603  # our own code


def verfedsv_command(*arguments, **options):
    return call("from verfedsv.__main__ import main; main()", *arguments, **options)


def test_a_page_needs_the_extra_and_says_so(folder, tmp_path):
    """In one line, before any work, with what to do; nothing is written."""
    done = verfedsv_command("report", folder, cwd=tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert "pip install '.[report]' in the checkout of verfedsv" in done.stderr
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
        "Follower(pathlib.Path(sys.argv[1]), states.append).poll()\n"
        "print(states[-1].status, len(states[-1].charts))",
        folder,
    )
    assert done.stdout.split() == ["finished", "2"], done.stderr


def test_a_plot_needs_it_and_says_so(folder):
    """With an error of this package, not an ImportError."""
    code = "import verfedsv; verfedsv.Valuation.from_json(open(sys.argv[1]).read()).plot()"
    done = call(code, folder / "valuation.json")
    assert "InputError: charts need Altair: pip install '.[report]' in the checkout" in done.stderr


def test_a_frame_needs_pandas_and_says_so(folder):
    """With what to install, and what works without it."""
    code = "import verfedsv; verfedsv.Valuation.from_json(open(sys.argv[1]).read()).to_frame()"
    done = call(code, folder / "valuation.json")
    assert (
        "VerfedsvError: to_frame needs pandas: pip install '.[frame]' in the checkout of verfedsv; or use"
        in done.stderr
    )


def test_a_run_does_not_need_it(tmp_path):
    """A training from a configuration file is valued and shown."""
    (tmp_path / "run.toml").write_text(
        '[data]\nname = "adult"\nclients = 3\nsamples = 200\n[training]\nbatch_size = 100\nrate = 0.5\nrounds = 4\n'
        '[output]\nfolder = "out"\n'
    )
    done = verfedsv_command("run", "run.toml", cwd=tmp_path, env=os.environ)
    assert done.returncode == 0, done.stderr
    assert "client 1 " in done.stdout


def test_the_demo_does_not_need_it(tmp_path):
    """`verfedsv demo` trains, values and prints both tables, and proposes a report that works."""
    done = call(SMALL, "demo", "--output", tmp_path, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert re.search(r"client 8 +\S+% ± ", done.stdout)
    assert f"report {tmp_path / 'synchronous'} -o report.md" in done.stdout
    assert "pip install '.[report]' in the checkout" in " ".join(done.stdout.split())


@pytest.mark.parametrize("index", [0, 1])
def test_the_examples_of_the_readme_do_not_need_it(tmp_path, index):
    """The first records a training and values it, the second values a round."""
    examples = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    done = call(f"{LOOP if index == 0 else ''}{examples[index]}print('done')", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("done\n")
    assert (tmp_path / "runs" / "credit").exists() == (index == 0)


def test_the_extra_is_blocked_in_these_tests():
    """Importing it fails as if it were not installed; other packages are found."""
    done = call("import numpy, altair")
    assert "ModuleNotFoundError: No module named 'altair'" in done.stderr
