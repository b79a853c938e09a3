"""Results as one Markdown page with figures, ours beside the paper's."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from experiments.experiment import Claim, Group, Results, Table, Verdict, title_of
from experiments.record import COLUMNS, commits_text, seeds_table
from experiments.results import ResultFile, folder_name

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INTRODUCTION = Path(__file__).with_name("introduction.md")
"""What holds for all results: the protocol, and how the paper was read."""

OPEN = "\\*"
"""Marks verdicts that the stated errors would allow to be others; a plain star could begin emphasis."""

GROUPS: dict[Group, str] = {
    "statement": "Statements of the paper",
    "variant": "The same in settings beside the protocol's",
    "check": "Checks that could hardly fail: sizes of files, values that are equal or positive by construction, and "
    "identities up to rounding",
    "false": "Statements that are false as printed; yes only means that no measurement here contradicts them",
}
"""What claims of each group are, in the order of the summary."""

STYLE: dict[Any, Any] = {
    "svg.hashsalt": "verfedsv",
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
}

HEAD = """# The paper's experiments

The tables and figures of "Fair and Efficient Contribution Valuation for Vertical Federated Learning" (VerFedSV, ICLR
2024), measured again with `verfedsv reproduce` from a checkout. Each experiment is a short script in `experiments/`;
its settings are in `experiments/protocol.toml`, and what it changes of them in a TOML file beside it. The numbers
below, and more, are in `{folder}/` as JSON. {commits}To
measure them again: `pip install -e '.[paper]'`, the data sets (`verfedsv data` says where they come from), and
`verfedsv reproduce NAME --again -o docs`. It keeps the earlier results under another name; `make paper` only measures
what is missing in the folder.
"""


def write_page(folder: Path, results: Mapping[str, Sequence[ResultFile]], *, quick: bool) -> Path:
    """Write the page and its figures; return the path of the page."""
    complete = {name: [file for file in files if file.is_complete] for name, files in results.items()}
    shown = [files for files in complete.values() if files]
    commits = "" if quick else commits_text(complete)
    parts = [HEAD.format(folder=folder_name(quick=quick), commits=commits)]
    if quick:
        parts.append("**Measured with `--quick`: fewer rounds and samples, to check that it works.**\n")
    else:
        introduction = INTRODUCTION.read_text(encoding="utf-8").replace("{seeds}", markdown(seeds_table(complete)))
        parts += [_summary(shown), _missing(results), introduction]
    parts += [_section(files, quick=quick) for files in shown]
    path = folder / f"{folder_name(quick=quick)}.md"
    path.write_text("\n".join(parts), encoding="utf-8")
    return path


def _summary(shown: Sequence[Sequence[ResultFile]]) -> str:
    """Return tables of what was reproduced, an item of the paper in each row, and the number of each verdict.

    There is one for each group of claims: what could hardly fail, or is false as printed, does not count as reproduced.
    """
    claims = [claim for files in shown for claim in _claims(files)]
    data = [name for name in COLUMNS if any(claim.data == name for claim in claims)]
    examined = [claim.item for claim in claims if claim.group == "statement" and claim.is_open is not None]
    about = (
        "yes: the paper's statement holds, by the rule in its section, which is two-sided "
        "where the paper gives a number or a law; in trend: only its direction does; no: neither; -: not measured, or "
        "nothing to measure. Verdicts are on values as they were estimated; with \\*, their stated errors, which are "
        "bounds or cautious estimates, would allow another. Only these rows and their variants are examined for that: "
        f"{'; '.join(dict.fromkeys(examined)) or 'none'}. For the others no stated errors were kept, or there are "
        "none.\n"
    )
    lines = ["## What was reproduced\n", about]
    for group, title in GROUPS.items():
        rows = []
        for item in dict.fromkeys(claim.item for claim in claims if claim.group == group):
            of_item = [claim for claim in claims if claim.item == item]
            section = next(files[0].experiment.title for files in shown if of_item[0] in _claims(files))
            cells = (_worst([claim for claim in of_item if claim.data == name]) for name in data)
            rows.append([f"[{item}](#{_anchor(section)})", *cells])
        if rows:
            lines += [f"**{title}:** {_counts(rows)}.\n", f"{markdown(Table(['', *map(title_of, data)], rows))}\n"]
    return "\n".join(lines)


def _counts(rows: Sequence[Sequence[str]]) -> str:
    """Return how many cells of some rows of the summary have each verdict."""
    cells = [cell for row in rows for cell in row[1:]]
    return ", ".join(f"{sum(cell.removesuffix(OPEN) == x for cell in cells)} {x}" for x in get_args(Verdict))


def _anchor(title: str) -> str:
    """Return the fragment that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def _missing(results: Mapping[str, Sequence[ResultFile]]) -> str:
    """Return sentences that name the experiments and data sets without results, and with fewer seeds than planned."""
    absent = {name: [file for file in files if not file.is_complete] for name, files in results.items()}
    short = {
        name: [file for file in files if file.is_complete and not set(file.planned()) <= set(file.found)]
        for name, files in results.items()
    }
    texts = []
    for what, of_files in (("Not measured yet with this protocol", absent), ("Fewer seeds than planned so far", short)):
        named = [f"{name} ({', '.join(title_of(x.data) for x in files)})" for name, files in of_files.items() if files]
        if named:
            texts.append(f"{what}: {'; '.join(named)}.\n")
    return "\n".join(texts)


def _worst(claims: Sequence[Claim]) -> str:
    known = [claim for claim in claims if claim.verdict is not None]
    if not known:
        return "-"
    verdict = max((claim.verdict for claim in known), key=get_args(Verdict).index)
    return f"{verdict}{OPEN if all(claim.is_open for claim in known if claim.verdict == verdict) else ''}"


def _claims(files: Sequence[ResultFile]) -> Sequence[Claim]:
    return files[0].experiment.claims({file.data: file.found for file in files})


def _section(files: Sequence[ResultFile], *, quick: bool) -> str:
    """Return the section of an experiment."""
    experiment, known = files[0].experiment, {file.data: file.found for file in files}
    lines = [f"## {experiment.title}", "", experiment.describe([file.settings for file in files]), ""]
    claims = _claims(files)
    if claims:
        lines += [markdown(claims_table(claims)), ""]
    for table in experiment.tables(known):
        if table.is_detail:
            lines += [f"<details><summary>{table.caption}</summary>", "", markdown(table), "", "</details>", ""]
        else:
            lines += [*([table.caption, ""] if table.caption else []), markdown(table), ""]
    if experiment.draw is not None:
        draw(files[0].path.with_name(experiment.name), experiment.draw, known)
        lines += [f"![{experiment.title}]({files[0].path.parent.name}/{experiment.name}.svg)", ""]
    if experiment.notes and not quick:
        lines += [experiment.notes.strip(), ""]
    took = sum(file.seconds for file in files)
    machines = sorted({machine for file in files for machine in file.machines})
    script = os.path.relpath(Path(__file__).with_name(experiment.script), files[0].path.parents[1].resolve())
    links = ", ".join(f"[{title_of(file.data)}]({file.path.parent.name}/{file.path.name})" for file in files)
    lines.append(
        f"<sub>`verfedsv reproduce {experiment.name}`: [script]({script}); results: "
        f"{links}; {_duration(took)} on {'; '.join(machines)}.</sub>\n"
    )
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
    rows = [[f"{title_of(x.data)}: {x.what}", x.paper, x.ours, _shown(x)] for x in claims]
    return Table(["", "the paper", "ours", "reproduced"], rows)


def _shown(claim: Claim) -> str:
    shown = "**no**" if claim.verdict == "no" else claim.verdict or "-"
    return f"{shown}{OPEN if claim.is_open else ''}"


def markdown(table: Table) -> str:
    """Return a table in Markdown, all columns but the first aligned to the right."""
    rule = "|".join(["---", *["---:"] * (len(table.header) - 1)])
    head, *rows = (f"| {' | '.join(row)} |" for row in [table.header, *table.rows])
    return "\n".join([head, f"|{rule}|", *rows])


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"
