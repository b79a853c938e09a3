"""docs/architecture.md names every module of the package, and no other."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
SOURCE = ROOT / "src" / "verfedsv"
PACKAGES = sorted(path.parent for path in SOURCE.glob("*/__init__.py"))


def modules_in(folder):
    """Return the names of the modules of a package, without those that begin with an underscore."""
    return {path.stem for path in folder.glob("*.py") if not path.stem.startswith("_")}


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
