"""What the README and the other pages say is true."""

import ast
import re
import shlex
from pathlib import Path

import numpy as np
import pytest

import verfedsv
from tests.cli.inprocess import call
from verfedsv.runs.config import ClientSection

ROOT = Path(__file__).parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]


def python_blocks(page):
    """Return the Python blocks of a page, compiled, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return [compile(block, page, "exec") for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL)]


@pytest.mark.parametrize(("page", "needs"), [("docs/valuation.md", "numpy"), ("docs/report.md", "altair")])
def test_the_blocks_of_a_page_run_one_after_the_other(page, needs, tmp_path, monkeypatch):
    """As printed, where the first example of settlement.md has recorded runs/credit."""
    pytest.importorskip(needs)
    monkeypatch.chdir(tmp_path)
    exec(python_blocks("docs/settlement.md")[0], {})  # noqa: S102  # our own example
    blocks, names = python_blocks(page), {}
    assert blocks
    for block in blocks:
        exec(block, names)  # noqa: S102  # our own example


def test_the_commands_on_a_run_succeed(tmp_path, monkeypatch):
    """Those of the README and then of report.md, as printed, on a run of clients that both lower the loss.

    Commands of a network are those of tests/test_deployment_page.py.
    """
    pytest.importorskip("altair")
    monkeypatch.chdir(tmp_path)
    with verfedsv.Recorder("runs/credit", labels=[0, 1], clients=["bank", "telco"]) as recorder:
        recorder.log([0, 1], {"bank": [-1.0, 1.0], "telco": [-0.5, 0.5]})
    text = (ROOT / "README.md").read_text(encoding="utf-8") + (ROOT / "docs" / "report.md").read_text(encoding="utf-8")
    commands = re.findall(r"^    verfedsv ((?!run|watch|serve|join|up|doctor|keys request).*)$", text, re.MULTILINE)
    assert len(commands) == 10
    for command in commands:
        done = call(*shlex.split(command, comments=True))
        assert done.returncode == 0, done.stderr


def test_every_page_with_python_is_run():
    """By a test here, or by that of the page; a new one must be added."""
    run = {"README.md", "report.md", "settlement.md", "training.md", "transcript.md", "valuation.md"}
    assert {page.name for page in PAGES if "```python" in page.read_text(encoding="utf-8")} == run


def test_the_example_prints_what_the_readme_shows(capsys):
    """The example runs as printed and its output is the block below it, to the last character."""
    text = (ROOT / "README.md").read_text()
    code, shown = re.search(r"```python\n((?:(?!```).)*)```\n\n```text\n(.*?)```", text, re.DOTALL).groups()
    exec(compile(code, "README.md", "exec"), {})  # noqa: S102  # our own example
    assert capsys.readouterr().out == shown


@pytest.mark.filterwarnings("ignore::verfedsv.errors.CompletionWarning")  # the numbers are random
def test_the_three_lines_record_a_training(tmp_path, monkeypatch):
    """The first example of the README runs as printed in a loop that has the names it uses."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    names = {
        "y": np.arange(20) % 2,
        "batches": [rng.permutation(20)[:10] for _ in range(8)],
        "h_bank": rng.normal(size=10),
        "h_telco": rng.normal(size=10),
    }
    exec(python_blocks("README.md")[0], names)  # noqa: S102  # our own example
    assert names["valuation"].clients == ("bank", "telco")
    assert names["valuation"].n_rounds == 8


def test_a_torch_module_is_trained_and_valued(tmp_path, monkeypatch, capsys):
    """The example of docs/training.md runs as printed, lowers the loss, and ends with shares."""
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    names = {}
    exec(python_blocks("docs/training.md")[0], names)  # noqa: S102  # our own example
    *rounds, shares = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[-1]) for line in rounds if line.startswith("round")]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.5
    assert names["valuation"].n_rounds == 40
    assert names["valuation"].shares.sum() == pytest.approx(1)
    assert ast.literal_eval(shares).keys() == {*names["valuation"].clients}  # plain numbers


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_and_pictures_lead_somewhere(page):
    """Every relative link points to a file of this repository."""
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert target.startswith("https://") or (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_tests_and_modules_exist(page):
    """Tests and source files named in a page exist; some settings begin like tests."""
    tests = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("*.py"))
    for name in re.findall(r"`(?:[\w/.]+::)?(test_\w+)`", page.read_text()):
        assert name in ClientSection.model_fields or f"def {name}(" in tests, name
    for path in re.findall(r"`((?:src|tests|benchmarks|experiments|scripts)/[\w/.]+\.py)", page.read_text()):
        assert (ROOT / path).exists(), path


def test_the_loss_in_the_page_on_valuing_is_right(tmp_path):
    """The example passes its own check as printed, and can be recorded and valued with."""
    text = (ROOT / "docs" / "valuation.md").read_text(encoding="utf-8")
    code = next(block for block in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "verfedsv.Loss" in block)
    names = {}
    exec(compile(code, "valuation.md", "exec"), names)  # noqa: S102  # our own example
    rng = np.random.default_rng(0)
    with verfedsv.Recorder(tmp_path, rng.normal(size=20), ["bank", "telco"], names["LogCosh"]()) as recorder:
        recorder.log(range(20), {"bank": 0.1 * rng.normal(size=20), "telco": 0.1 * rng.normal(size=20)})
    found = verfedsv.value(tmp_path, loss=names["LogCosh"]())
    exact = verfedsv.value(tmp_path, "exact", loss=names["LogCosh"]())
    assert found.error_kind == "certified but for rounding"
    assert (np.abs(found.values - exact.values) <= found.errors + exact.errors).all()
