"""Results as one Markdown page with figures, ours beside the paper's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from experiments.experiment import Claim, Results, Table
from experiments.results import FOLDER, ResultFile

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PAGE, NOTE = "paper.md", "note.md"
"""The page, and a note on all results, in their folder."""

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "verfedsv",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

HEAD = """# The paper's experiments

Every table and figure of "Fair and Efficient Contribution Valuation for Vertical Federated Learning" (VerFedSV, ICLR
2024), measured again with `verfedsv reproduce` from a checkout. Each experiment is a short script in `experiments/`,
with its settings in a TOML file beside it; the numbers below, and more, are in `{folder}/` as JSON. RCV1 is used where
it is available; otherwise Sector, another sparse text data set with many classes, stands in for it, and is not compared
with the paper's RCV1 figures.
"""


def write_page(folder: Path, results: Mapping[str, Sequence[ResultFile]], *, quick: bool) -> Path:
    """Write the page and its figures; return the path of the page."""
    parts = [HEAD.format(folder=FOLDER)]
    if quick:
        parts.append("**Measured with `--quick`: fewer rounds and samples, to check that it works.**\n")
    if (note := folder / FOLDER / NOTE).exists():
        parts.append(note.read_text(encoding="utf-8"))
    for files in results.values():
        complete = [file for file in files if file.is_complete]
        if complete:
            parts.append(_section(folder, complete, quick=quick))
    path = folder / PAGE
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _section(folder: Path, files: Sequence[ResultFile], *, quick: bool) -> str:
    """Return the section of an experiment."""
    experiment, known = files[0].experiment, {file.data: file.found for file in files}
    lines = [f"## {experiment.title}", "", experiment.about, ""]
    claims = experiment.claims(known)
    if claims:
        lines += [markdown(claims_table(claims)), ""]
    for table in experiment.tables(known):
        lines += [*([table.caption, ""] if table.caption else []), markdown(table), ""]
    if experiment.draw is not None:
        draw(folder / FOLDER / experiment.name, experiment.draw, known)
        lines += [f"![{experiment.title}]({FOLDER}/{experiment.name}.svg)", ""]
    if experiment.notes and not quick:
        lines += [experiment.notes.strip(), ""]
    took = sum(file.seconds for file in files)
    machines = sorted({machine for file in files for machine in file.machines})
    lines.append(f"<sub>`verfedsv reproduce {experiment.name}`: {_duration(took)} on {'; '.join(machines)}.</sub>\n")
    return "\n".join(lines)


def draw(path: Path, draw_results: Callable[[Results, Figure], None], known: Results) -> None:
    """Draw an experiment as PNG and SVG."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    # Without a date and with fixed ids, the same results give the same bytes.
    with mpl.rc_context(STYLE):
        figure = Figure(layout="constrained")
        draw_results(known, figure)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path.with_suffix(".svg"), metadata={"Date": None})
        figure.savefig(path.with_suffix(".png"), dpi=150, metadata={"Software": None})


def claims_table(claims: Iterable[Claim]) -> Table:
    """Return claims as a table."""
    rows = [[claim.what, claim.ours, claim.wanted, "yes" if claim.holds else "**no**"] for claim in claims]
    return Table(["", "ours", "wanted", "reached"], rows)


def markdown(table: Table) -> str:
    """Return a table in Markdown, all columns but the first aligned to the right."""
    rule = "|".join(["---", *["---:"] * (len(table.header) - 1)])
    head, *rows = (f"| {' | '.join(row)} |" for row in [table.header, *table.rows])
    return "\n".join([head, f"|{rule}|", *rows])


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
