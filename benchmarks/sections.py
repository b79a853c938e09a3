"""What was measured last of each section of the page, in docs/benchmarks.json."""

from __future__ import annotations

import datetime as dt
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.measure import commit, machine
from verfedsv.files import write_whole


@dataclass(frozen=True)
class Found:
    """What a section measured: texts by their names in the page, and ratios for its top."""

    texts: Mapping[str, str]
    ratios: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Section(Found):
    """What was found, and where: date, commit, machine, and the load of other work before it began."""

    where: str = ""


def measure(run: Callable[[], Found | None]) -> Section | None:
    """Measure a section; None if what it needs is not there."""
    load = os.getloadavg()[0]
    today = dt.datetime.now(tz=dt.UTC).date()
    found = run()
    if found is None:
        return None
    return Section(found.texts, found.ratios, f"{today}, commit {commit()}, load before {load:.1f}; {machine()}")


def read(path: Path) -> dict[str, Section]:
    """Return all sections in a file, by name; none if it is not there."""
    if not path.exists():
        return {}
    return {name: Section(**content) for name, content in json.loads(path.read_text(encoding="utf-8")).items()}


def write(path: Path, sections: Mapping[str, Section]) -> None:
    """Write all sections, as a whole or not at all."""
    content = {name: asdict(section) for name, section in sections.items()}
    write_whole(path, (json.dumps(content, indent=1) + "\n").encode())
