"""What result files say of themselves: the commits and the seeds that they were measured with."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence

from experiments.experiment import OTHER_READING, Table, seed_of, title_of
from experiments.results import ResultFile

COLUMNS = ("adult", "web", "covtype", "rcv1")
"""The data sets of the paper, in its order."""

NOT_IN_HISTORY = ("466dd7212e", "6a186b6b12")
"""Commits that results name and the history of this repository lacks; which ones replaced them is not known."""

KINDS = {"auto": "rank auto", "truth": "all embeddings known"}
"""Keys of what is measured with the first seeds only, in the findings of a part or in its scores."""

LABELS = {"truth": "true shares", "random": "random starts, of one training"}
"""What names of parts mean that do not say it."""

Files = Mapping[str, Sequence[ResultFile]]


def commits_text(results: Files) -> str:
    """Return how many parts name the commit that they were measured with, as sentences followed by a space."""
    commits = [commit for files in results.values() for file in files for commit in file.commits]
    named = [commit for commit in commits if commit]
    text = (
        f"Of their {len(commits):,} parts {len(named):,} name the commit that they were measured with, of these "
        f"{sum(commit.endswith(' changed') for commit in named)} with changes that were not committed; the others are "
        "older. "
    )
    lost = Counter(commit.split()[0] for commit in named)
    of_lost = {commit: lost[commit] for commit in NOT_IN_HISTORY if lost[commit]}
    if of_lost:
        text += f"{sum(of_lost.values())} name {' or '.join(of_lost)}, which are not in this repository's history. "
    return text


def seeds_table(results: Files) -> Table:
    """Return how many seeds of everything were measured on the paper's data sets."""
    rows: dict[str, dict[str, int]] = {}
    for files in results.values():
        for file in files:
            for label, n_seeds in _numbers(file).items() if file.data in COLUMNS else ():
                rows.setdefault(f"{_short(file.experiment.title)}{label}", {})[file.data] = n_seeds
    cells = [[label, *(str(row.get(name, "-")) for name in COLUMNS)] for label, row in rows.items()]
    return Table(["seeds", *map(title_of, COLUMNS)], cells)


def _short(title: str) -> str:
    """Return the item of the paper in a title, in brackets there, or the whole title."""
    found = re.search(r"\((.*)\)$", title)
    return found[1] if found else title


def _numbers(file: ResultFile) -> dict[str, int]:
    """Return the number of seeds of the protocol and of each variant, followed by those of other completions."""
    numbers: Counter[str] = Counter()
    for name, found in file.found.items():
        if seed_of(name) is None:
            continue
        label = name.rpartition("seed ")[0].removesuffix(", ")
        label = "other number of clients" if label.endswith(OTHER_READING) else LABELS.get(label, label)
        label = f": {label}" if label else ""
        numbers[label] += 1
        numbers.update(f"{label}, {kind}" for key, kind in KINDS.items() if key in {**found, **found.get("scores", {})})
    return dict(numbers)
