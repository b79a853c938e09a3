"""Table 2: how large the data sets are; and how common their largest class is, which accuracies are read against."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from experiments.experiment import Claim, Experiment, Findings, Results, Table, title_of
from experiments.lab import Settings, split
from verfedsv.data import VerticalData

PAPER = {"adult": (48_842, 123, 2), "web": (119_742, 300, 2), "covtype": (581_012, 54, 7), "rcv1": (15_564, 47_236, 53)}
"""Rows, features and classes in Table 2."""


def parts(name: str, settings: Settings) -> Mapping[str, Callable[[], Findings]]:
    """Return what counts rows, features and classes; nothing is random."""
    return {"data": lambda: describe(split(name, settings.but(train=None, test=0)))}


def describe(data: VerticalData) -> Findings:
    """Return the numbers of rows, features and classes, and of the rows of each class."""
    of_classes = np.unique(data.labels, return_counts=True)[1]
    return {
        "rows": len(data.labels),
        "features": sum(client.numeric.shape[1] for client in data.clients),
        "classes": len(of_classes),
        "rows of the largest class": int(of_classes.max()),
    }


def _sizes(found: Findings) -> tuple[int, int, int]:
    return found["rows"], found["features"], found["classes"]


def tables(results: Results) -> list[Table]:
    """Return the sizes beside the paper's."""
    rows = []
    for name, measured in results.items():
        found = measured["data"]
        largest = (
            f"{found['rows of the largest class']:,} rows, {found['rows of the largest class'] / found['rows']:.1%}"
        )
        rows.append([title_of(name), *map(_number, _sizes(found)), largest])
        rows.append([f"{title_of(name)}, the paper", *map(_number, PAPER[name]), "-"])
    return [Table(["", "rows", "features", "classes", "largest class"], rows)]


def _number(size: int) -> str:
    return f"{size:,}"


def claims(results: Results) -> list[Claim]:
    """Return whether the data sets have the paper's sizes."""
    made = []
    for name, measured in results.items():
        ours, paper = _sizes(measured["data"]), PAPER[name]
        wanted, found = (" / ".join(map(_number, sizes)) for sizes in (paper, ours))
        what = "rows, training and test / features / classes"
        made.append(Claim("Table 2: data", name, what, wanted, found, "yes" if ours == paper else "no", "check"))
    return made


EXPERIMENT = Experiment(
    name="metadata",
    title="The data sets (Table 2)",
    about="Counted in the files, training and test rows together, where the paper's N is its number of training data; "
    "trained on are all rows of Adult and Web, and 100,000 of Covtype. yes: the three numbers are the paper's. Always "
    "guessing the largest class is right for its part of the rows. The numbers of clients are discussed above.",
    settings_type=Settings,
    parts=parts,
    tables=tables,
    claims=claims,
)
