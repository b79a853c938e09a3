"""`verfedsv reproduce`: choose experiments and data sets, measure, and show the results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import TaskID
from rich.table import Table as RichTable
from rich.text import Text

from experiments import EXPERIMENTS, Experiment, ResultFile, Table, claims_table, write_page
from experiments.parallel import Order, measure_at_once, measure_in_turn
from experiments.results import PUBLISHED
from verfedsv.cli.output import explain_warnings, print_text
from verfedsv.cli.progress import explain_interrupt, interrupts, progress_bar
from verfedsv.data.catalogue import get_data_set, locate
from verfedsv.errors import InputError

ALL = "all"


def reproduce(
    names: Sequence[str],
    data: Sequence[str],
    output: Path,
    *,
    seeds: int | None,
    jobs: int,
    quick: bool,
    again: bool,
    as_json: bool,
) -> None:
    """Measure experiments and print their results; see `verfedsv reproduce --help`."""
    experiments, data_sets = _choose(names, data)
    known_results(output, quick=quick)  # settings are checked before anything is measured
    console = Console(stderr=as_json)
    with explain_warnings(Console(stderr=True)):
        files = _measure(console, experiments, data_sets, output, seeds=seeds, jobs=jobs, quick=quick, again=again)
    page = write_page(output, known_results(output, quick=quick), quick=quick)
    if as_json:
        content = {name: {file.data: file.found for file in some} for name, some in files.items()}
        print_text(json.dumps(content, indent=1) + "\n")
        return
    for name, some in files.items():
        _show(console, EXPERIMENTS[name], some)
    absent = {name for x in experiments for name in x.data if name in data_sets and not _is_there(x, name)}
    if absent:
        text = f"\nNot on this machine, and not measured: {', '.join(sorted(absent))}; see `verfedsv data`."
        console.print(text, highlight=False, markup=False, soft_wrap=True)
    if seeds is not None and seeds < PUBLISHED:
        console.print(f"The page shows results of {PUBLISHED} seeds and more.", highlight=False, markup=False)
    console.print(f"\nResults: {page}", highlight=False, markup=False, soft_wrap=True)


def known_results(folder: Path, *, quick: bool = False) -> dict[str, list[ResultFile]]:
    """Return all results in a folder, complete or not, by experiment in the paper's order."""
    return {
        name: [ResultFile(folder, experiment, data, quick=quick) for data in experiment.data]
        for name, experiment in EXPERIMENTS.items()
    }


def show_experiments() -> None:
    """Print a list of all experiments and their data sets."""
    table = RichTable(header_style="bold", box=None, pad_edge=False)
    for name in ("experiment", "what", "data"):
        table.add_column(name)
    for experiment in EXPERIMENTS.values():
        table.add_row(experiment.name, Text(experiment.title), ", ".join(experiment.data))
    Console().print(table)


def _choose(names: Sequence[str], data: Sequence[str]) -> tuple[list[Experiment[Any]], list[str]]:
    """Return experiments and data sets; data sets may also be among `names`, as in `--data adult web`."""
    if missing := [name for name in ("matplotlib", "shap", "torch") if find_spec(name) is None]:
        raise InputError(f"the paper's experiments need {', '.join(missing)}: pip install -e '.[paper]'")
    known = list(dict.fromkeys(name for experiment in EXPERIMENTS.values() for name in experiment.data))
    sets = [*data, *(name for name in names if name in known)]
    wanted = [name for name in names if name not in known]
    if not wanted:
        raise InputError(f"name an experiment, one of {', '.join(EXPERIMENTS)}, or {ALL}")
    if unknown := [name for name in wanted if name not in EXPERIMENTS and name != ALL]:
        raise InputError(f"unknown experiment {unknown[0]!r}; allowed are {', '.join(EXPERIMENTS)}, {ALL}")
    if unknown := [name for name in sets if name not in known]:
        raise InputError(f"unknown data set {unknown[0]!r}; allowed are {', '.join(known)}")
    chosen = EXPERIMENTS if ALL in wanted else {name: EXPERIMENTS[name] for name in wanted}
    _check_data(chosen, [] if ALL in wanted else wanted, sets)
    return list(chosen.values()), sets or known


def _check_data(chosen: Mapping[str, Experiment[Any]], wanted: Sequence[str], sets: Sequence[str]) -> None:
    """Raise an error if a data set is of no use to the chosen experiments, of which some were named, or not here."""
    for name in wanted:
        if sets and not set(sets) & set(chosen[name].data):
            raise InputError(f"{name} is for {', '.join(chosen[name].data)}; received {', '.join(sets)}")
    used = {name for experiment in chosen.values() for name in experiment.data}
    if unused := [name for name in sets if name not in used]:
        raise InputError(f"none of these experiments is for {', '.join(unused)}")
    for experiment in chosen.values():
        for name in (name for name in sets if name in experiment.data):
            if not _is_there(experiment, name):
                source = experiment.settings(name).source or name
                raise InputError(
                    f"{source} is not on this machine; `verfedsv data fetch {source}` gets it, or says where to put it"
                )


def _is_there(experiment: Experiment[Any], data: str) -> bool:
    return locate(get_data_set(experiment.settings(data).source or data)) is not None


def _measure(
    console: Console,
    experiments: Sequence[Experiment[Any]],
    data: Sequence[str],
    folder: Path,
    *,
    seeds: int | None,
    jobs: int,
    quick: bool,
    again: bool,
) -> dict[str, list[ResultFile]]:
    """Measure the missing results, showing progress; timed ones last, and each alone."""
    orders = [
        Order(folder, experiment.name, name, quick)
        for experiment in experiments
        for name in experiment.data
        if name in data and _is_there(experiment, name)
    ]
    for order in orders:
        _set_aside(console, order.open(), again=again)
    alone = [order for order in orders if jobs == 1 or EXPERIMENTS[order.experiment].is_timed]
    others = [order for order in orders if order not in alone]
    stopped = f"stopped; the same command{', without --again,' if again else ''} continues from here."
    with explain_interrupt(console, stopped), interrupts() as check, progress_bar(console) as bar:
        tasks: dict[Order, TaskID] = {}
        for order, part, done, total in chain(measure_at_once(others, seeds, jobs), measure_in_turn(alone, seeds)):
            check()
            if part is None:
                bar.remove_task(tasks.pop(order))
                continue
            if order not in tasks:
                tasks[order] = bar.add_task("", total=None)
            title = f"{order.experiment}, {order.data}: {part}"
            bar.update(tasks[order], description=title, completed=done, total=total)
    files: dict[str, list[ResultFile]] = {}
    for order in orders:
        files.setdefault(order.experiment, []).append(order.open())
    return files


def _set_aside(console: Console, file: ResultFile, *, again: bool) -> None:
    """Keep earlier results that do not count any more under another name, and say so."""
    why = file.why_discarded or ("--again" if again and file.found else "")
    if why:
        kept = file.set_aside(everything=again)
        text = f"{file.experiment.name}, {file.data}: earlier results are set aside as {kept.name}: {why}"
        console.print(text, highlight=False, markup=False, soft_wrap=True)


def _show(console: Console, experiment: Experiment[Any], files: Sequence[ResultFile]) -> None:
    found: Mapping[str, Any] = {file.data: file.found for file in files}
    console.print(f"\n{experiment.title}", style="bold", highlight=False, markup=False)
    claims = experiment.claims(found)
    tables = [*experiment.tables(found), *([claims_table(claims)] if claims else [])]
    for table in tables:
        console.print(_rich(table))


def _rich(table: Table) -> RichTable:
    shown = RichTable(header_style="bold", box=None, pad_edge=False, title=table.caption or None, title_justify="left")
    for column, name in enumerate(table.header):
        shown.add_column(Text(name), justify="right" if column else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*(Text(cell.replace("**", "")) for cell in row))
    return shown
