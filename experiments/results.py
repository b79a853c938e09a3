"""Results on disk: a file for each experiment and data set, written again after each part."""

from __future__ import annotations

import datetime as dt
import json
import math
import platform
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

from experiments.experiment import Experiment, Findings, seed_of
from verfedsv._version import __version__
from verfedsv.files import write_whole
from verfedsv.threads import available_threads


def folder_name(*, quick: bool) -> str:
    """Return the folder of results and figures, which is also the name of the page beside it."""
    return "paper-quick" if quick else "paper"


REPOSITORY = Path(__file__).resolve().parents[1]

PUBLISHED = 2
"""Results are shown once as many seeds as this were measured."""


class ResultFile:
    """The results of an experiment on a data set; parts measured with other settings or code are discarded.

    Numbers of seeds do not count as settings: more can be measured later, and all that are there are shown.
    `why_discarded` says which earlier results do not count any more; it is empty if all do.
    """

    def __init__(self, folder: Path, experiment: Experiment[Any], data: str, *, quick: bool = False) -> None:
        self.experiment, self.data = experiment, data
        self.settings = experiment.settings(data, quick=quick)
        self.path = folder / folder_name(quick=quick) / f"{experiment.name}-{data}.json"
        self._content: dict[str, Any] = {
            "experiment": experiment.name,
            "data": data,
            "settings": _without_seeds(json.loads(self.settings.model_dump_json())),
            "version": experiment.version,
            "package": f"verfedsv {__version__}",
            "parts": {},
        }
        commit()  # of the code that was loaded, not of what may be edited meanwhile
        known = self._read()
        self.why_discarded = "the file is damaged" if known is None else ""
        if known:
            self._content["parts"], changed = self._still_valid(known)
            n = len(known["parts"]) - len(self._content["parts"])
            if n:
                self.why_discarded = f"{n} of {len(known['parts'])} do not count any more: {changed}"

    def _still_valid(self, known: dict[str, Any]) -> tuple[dict[str, Any], str]:
        """Return the known parts that were measured with these settings, and what changed; variants have their own."""
        ours, theirs, parts = self._content["settings"], _without_seeds(known["settings"]), known["parts"]
        names = [x for x in {**theirs, **ours} if x != "variants" and theirs.get(x) != ours.get(x)]
        if names:
            return {}, ", ".join(f"{x} was {theirs.get(x)} and is {ours.get(x)}" for x in names)
        if known.get("version", 1) != self._content["version"]:
            return {}, "the experiment was changed"
        before, now = theirs.get("variants", {}), ours["variants"]
        changed = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        valid = {x: part for x, part in parts.items() if not any(x.startswith(f"{variant}, ") for variant in changed)}
        return valid, ", ".join(f"the variant {name!r} was changed" for name in changed)

    def set_aside(self, *, everything: bool = False) -> Path:
        """Keep the file of earlier results under another name, and only those here that still count, or none."""
        kept = self.path.with_name(f"{self.path.name}.old")
        self.path.replace(kept)
        if everything:
            self._content["parts"] = {}
        self._write()
        return kept

    @property
    def found(self) -> dict[str, Findings]:
        """The findings of each part, by name."""
        return {name: part["found"] for name, part in self._content["parts"].items()}

    @property
    def is_complete(self) -> bool:
        """Whether all parts without a seed and those of the first seeds were measured."""
        return set(self.planned(PUBLISHED)) <= set(self._content["parts"])

    def planned(self, seeds: int | None = None) -> dict[str, Callable[[], Findings]]:
        """Return the parts to measure, of at most so many seeds."""
        limit = self.settings.seeds if seeds is None else min(seeds, self.settings.seeds)
        todo = self.experiment.parts(self.data, self.settings)
        return {name: part for name, part in todo.items() if (seed_of(name) or 0) < limit}

    @property
    def seconds(self) -> float:
        """The total time of all parts."""
        return float(sum(part["seconds"] for part in self._content["parts"].values()))

    @property
    def commits(self) -> list[str | None]:
        """The commit of each part; None for those measured before it was recorded, or outside a checkout."""
        return [part.get("commit") for part in self._content["parts"].values()]

    @property
    def machines(self) -> set[str]:
        """The machines on which the parts were measured."""
        return {part["machine"] for part in self._content["parts"].values()}

    def measure(self, seeds: int | None = None) -> Iterator[tuple[str, int, int]]:
        """Measure missing parts, of at most so many seeds, yielding before each its name, and how many of all are done.

        A part is written as soon as it is measured.
        """
        todo = self.planned(seeds)
        for done, (name, part) in enumerate(todo.items()):
            yield name, done, len(todo)
            if name not in self._content["parts"]:
                self._keep(name, part)
        # In the order of the experiment, without parts that it no longer has.
        known, names = self._content["parts"], self.experiment.parts(self.data, self.settings)
        self._content["parts"] = {name: known[name] for name in names if name in known}
        self._write()

    def _keep(self, name: str, part: Callable[[], Findings]) -> None:
        begin = time.process_time()  # not time on the clock: other work may share the machine
        found = _plain(part())
        took = round(time.process_time() - begin, 2)
        today = dt.datetime.now(tz=dt.UTC).date().isoformat()
        self._content["parts"][name] = {
            "found": found,
            "seconds": took,
            "machine": machine(),
            "commit": commit(),
            "date": today,
        }
        self._write()

    def _read(self) -> dict[str, Any] | None:
        """Return the content of the file: nothing if there is none yet, None if it is damaged."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}
        except ValueError:
            return None
        is_whole = isinstance(content, dict) and all(isinstance(content.get(x), dict) for x in ("settings", "parts"))
        return content if is_whole else None

    def _write(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(self.path, (json.dumps(self._content, indent=1, allow_nan=False) + "\n").encode())


def _without_seeds(settings: Any) -> Any:
    """Return settings, those of variants included, without the numbers of seeds."""
    if not isinstance(settings, dict):
        return settings
    return {name: _without_seeds(x) for name, x in settings.items() if name != "seed" and not name.endswith("seeds")}


def _plain(found: Any) -> Any:
    """Return what JSON can hold: None in place of NaN and infinity."""
    if isinstance(found, dict):
        return {name: _plain(value) for name, value in found.items()}
    if isinstance(found, list):
        return [_plain(value) for value in found]
    return None if isinstance(found, float) and not math.isfinite(found) else found


def machine() -> str:
    """Return a description of this machine: processor, cores, system, Python."""
    model = platform.processor() or platform.machine()
    known = Path("/proc/cpuinfo")
    if known.exists():
        lines = known.read_text(encoding="utf-8").splitlines()
        model = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), model)
    n_cores = available_threads()
    cores = f"{n_cores} core{'' if n_cores == 1 else 's'}"
    return f"{model}, {cores}, {platform.system()}, Python {platform.python_version()}"


@cache
def commit() -> str | None:
    """Return the commit of this checkout, with " changed" if its code was changed since; None without git."""

    def git(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, check=False)  # noqa: S603, S607

    try:
        head = git("rev-parse", "--short=10", "HEAD").stdout.strip()
        is_changed = git("diff", "--quiet", "HEAD", "--", "src", "experiments").returncode != 0
    except OSError:
        return None
    return f"{head}{' changed' if is_changed else ''}" if head else None
