"""docs/architecture.md names every module of the package, and no other, and the way of an upload through them."""

import re
import sys
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import numpy as np
import pytest

from verfedsv import Recorder, value

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "verfedsv"
PACKAGES = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))


def modules_in(folder):
    """Return the names of the modules of a package."""
    return {path.stem for path in folder.glob("*.py")} - {"__init__", "__main__"}


def first_column(table):
    """Return the names in the first column of a Markdown table."""
    rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([\w/]+)`", row)}


def modules_of_layers(text):
    """Return the names in the table of layers; packages end in a slash."""
    return first_column(text.partition("## Layers")[2].partition("Inside `")[0])


def modules_of_package(text, package):
    """Return the names below "Inside `package/`:", in the first column of a table or outside the brackets of a list."""
    section = re.split(r"\n(?=Inside `|#)", text.partition(f"Inside `{package}/`:")[2])[0]
    without_links = re.sub(r"\]\([^)]*\)", "]", section)
    return first_column(section) or set(re.findall(r"`(\w+)`", re.sub(r"\([^()]*\)", "", without_links)))


def test_every_package_and_top_level_module_is_in_the_table_of_layers():
    """The table of layers has all of them, and nothing that is not there."""
    expected = {f"{package.name}/" for package in PACKAGES} | modules_in(SOURCE)
    assert modules_of_layers(PAGE.read_text(encoding="utf-8")) == expected


@pytest.mark.parametrize("package", [package.name for package in PACKAGES])
def test_every_module_of_a_package_is_named_below_its_heading(package):
    """A new module comes with a few words on what it does; one that is gone is gone from the page."""
    assert modules_of_package(PAGE.read_text(encoding="utf-8"), package) == modules_in(SOURCE / package)


def test_names_are_read_from_tables_and_lists():
    """Modules are named in both forms of the page; names in descriptions are none."""
    page = (
        "## Layers\n\n| module | what |\n|---|---|\n| `a/` | |\n| `b`, `c` | not `d` |\n\n"
        "Inside `a/`:\n\n| module | what |\n|---|---|\n| `one`, `two` | `three` |\n\n"
        "Inside `b/`: `four` (like `five`), `six` ([a page](x.md)).\n\n## Where to add\n`seven`\n"
    )
    assert modules_of_layers(page) == {"a/", "b", "c"}
    assert modules_of_package(page, "a") == {"one", "two"}
    assert modules_of_package(page, "b") == {"four", "six"}


class Step(NamedTuple):
    """A step of the walk of an upload."""

    module: str
    function: str
    mode: str


def steps_of_walk(text):
    """Return the steps of the walk, and how many steps and files the page says there are, in both modes."""
    section = " ".join(text.partition("## The walk of one upload")[2].partition("\n## ")[0].split())
    found = re.findall(r"(\d+)\. `([\w/]+)`: `([\w.]+)`(?: \(([sa])\))?", section)
    assert [int(number) for number, *_ in found] == list(range(1, len(found) + 1))
    counts = re.search(r"Synchronous training: (\d+) steps in (\d+) files; asynchronous: (\d+) in (\d+)", section)
    return [Step(module, function, mark) for _, module, function, mark in found], [*map(int, counts.groups())]


def record_and_value(path, is_synchronous):
    """Record a training whose closed form is enough, in batches that must be completed, and value it."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(200, 3))
    with Recorder(path, labels=rng.integers(0, 2, 200), clients=["bank", "telco"]) as recorder:
        for t in range(1, 9):
            batch = np.sort(rng.choice(200, 100, replace=False))
            uploads = {name: 0.01 * t * features[batch] @ rng.normal(size=3) for name in ("bank", "telco")}
            if is_synchronous:
                recorder.log(batch, uploads)
                continue
            for name, embeddings in uploads.items():
                recorder.update(name, batch, embeddings, time=t)
            recorder.stamp(time=t)
    with patch("os.sched_getaffinity", return_value={0}, create=True):  # in this thread, where calls can be listed
        value(path)


def list_calls(run, *arguments):
    """Return all calls of functions of the package that a function makes, as module and name, in their order."""
    calls = []

    def note(frame, event, _):
        path = Path(frame.f_code.co_filename)
        if event == "call" and SOURCE in path.parents:
            calls.append((path.relative_to(SOURCE).with_suffix("").as_posix(), frame.f_code.co_name))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        run(*arguments)
    finally:
        sys.setprofile(before)
    return calls


@pytest.mark.parametrize("mode", ["synchronous", "asynchronous"])
def test_an_upload_takes_the_walk_of_the_page(mode, tmp_path):
    """The steps of the page are called one after the other, and it counts steps and files right."""
    steps, counts = steps_of_walk(PAGE.read_text(encoding="utf-8"))
    is_synchronous = mode == "synchronous"
    steps = [step for step in steps if step.mode in ("", mode[0])]
    assert [len(steps), len({step.module for step in steps})] == (counts[:2] if is_synchronous else counts[2:])
    made = {"Valuation": "__post_init__", "Recorder.log": "log" if is_synchronous else "update"}
    expected = [(step.module, made.get(step.function, step.function.rpartition(".")[2])) for step in steps]
    record_and_value(tmp_path / "compiled", is_synchronous)  # compiling is slow where calls are listed
    calls = list_calls(record_and_value, tmp_path / "run", is_synchronous)
    # In their order where all is read before it is valued; asynchronous rounds are read while they are valued.
    rest = iter(calls) if is_synchronous else calls
    assert [step for step in expected if step in rest] == expected
