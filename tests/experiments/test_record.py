import json
import re
import subprocess
from pathlib import Path

import pytest

from experiments.command import known_results
from experiments.record import COLUMNS, NOT_IN_HISTORY, commits_text, seeds_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def parts_of(data=COLUMNS):
    """Return all published parts, as they are in the files."""
    files = [path for path in sorted((DOCS / "paper").glob("*.json")) if path.stem.endswith(data)]
    return [part for path in files for part in json.loads(path.read_text(encoding="utf-8"))["parts"].values()]


def test_the_page_says_how_many_parts_name_a_commit():
    """Counted in the files."""
    commits = [part.get("commit") for part in parts_of("")]
    n_named, n_changed = sum(map(bool, commits)), sum(str(commit).endswith(" changed") for commit in commits)
    n_lost = sum(str(commit).startswith(NOT_IN_HISTORY) for commit in commits)
    text = commits_text(known_results(DOCS))
    assert list(map(int, re.findall(r"\b\d+\b(?! or)", text))) == [len(commits), n_named, n_changed, n_lost]


def test_other_commits_are_in_the_history():
    """All that results name, but those that the page says are not."""
    found = subprocess.run(["git", "rev-list", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)  # noqa: S607
    if found.returncode or (ROOT / ".git" / "shallow").exists():
        pytest.skip("the history is not here")
    known = {commit[:10] for commit in found.stdout.split()}
    named = {part["commit"].split()[0] for part in parts_of("") if part.get("commit")}
    assert named - known == set(NOT_IN_HISTORY)


def test_seeds_are_counted_for_each_row():
    """Also for what only the first seeds have, and in total."""
    table = seeds_table(known_results(DOCS))
    rows = {row[0]: row[1:] for row in table.rows}
    assert len(rows) == len(table.rows)
    assert rows["Table 1, left"] == ["10"] * 4
    assert rows["Table 5, rank auto"][-1] == "-"
    assert rows["Figure 3: full batches"] == ["1", "-", "-", "-"]
    totals = [row for label, row in rows.items() if not label.endswith((", rank auto", ", all embeddings known"))]
    seeds = [name for data in COLUMNS for name in names_of(data) if "seed " in name]
    assert sum(int(x) for row in totals for x in row if x != "-") == len(seeds)


def names_of(data):
    """Return the names of all published parts of a data set."""
    files = (DOCS / "paper").glob(f"*-{data}.json")
    return [name for path in files for name in json.loads(path.read_text(encoding="utf-8"))["parts"]]
