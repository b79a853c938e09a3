"""Run benchmarks, some sections or all, and write docs/benchmarks.md from what was measured last of each.

Sections import what they need when they are measured: each needs other packages.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from string import Formatter

from benchmarks import sections
from benchmarks.measure import table, times
from benchmarks.sections import Found, Section

ROOT = Path(__file__).parents[1]
PAGE, RESULTS = ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "benchmarks.json"

TEMPLATE = Path(__file__).with_name("page.md")
"""The page, with the names of texts in braces."""


def _one_round() -> Found:
    from benchmarks import one_round

    text, ratios = one_round.run()
    return Found({"one_round": text}, ratios)


def _jump() -> Found:
    from benchmarks import jump

    text, ratios = jump.run()
    return Found({"jump": text}, ratios)


def _scaling() -> Found:
    from benchmarks import scaling

    cost, memory = scaling.run(ROOT / "docs" / "images" / "scaling.svg")
    return Found({"cost": cost, "memory": memory})


def _reading() -> Found:
    from benchmarks import reading

    text, ratios = reading.run()
    return Found({"reading": text}, ratios)


def _limits() -> Found:
    from benchmarks import limits

    return Found({"limits": limits.run(), "first_call": limits.first_call(ROOT / "README.md")})


def _recording() -> Found:
    from benchmarks import recording

    return Found({"recording": recording.run(), "clients": str(recording.N_CLIENTS)})


def _completion() -> Found:
    from benchmarks import completing

    others = completing.against_others()
    deviations, errors = completing.deviations()
    return Found({"deviations": deviations, "errors": errors, "rank": str(completing.RANK), "others": others})


def _valuation() -> Found:
    from benchmarks import valuing

    text, ratios = valuing.run()
    return Found({"valuing": text}, ratios)


def _cluster() -> Found | None:
    if find_spec("distributed") is None:
        return None
    from benchmarks import cluster

    return Found({"cluster": cluster.run()})


def _heads() -> Found:
    from benchmarks import heads

    sizes = {"head_rounds": str(heads.N_ROUNDS), "head_rows": f"{heads.N_ROWS:,}"}
    return Found({"head_times": heads.time_to_value(), "head_deviations": heads.deviations(), **sizes})


def _gpu() -> Found | None:
    from benchmarks import gpu

    text = gpu.run()
    return None if text is None else Found({"gpu": text})


def _alignment() -> Found:
    from benchmarks import alignment

    return Found({"alignment": alignment.run()})


def _network() -> Found:
    from benchmarks import network

    return Found({"network": network.run()})


def _network_training() -> Found:
    from benchmarks import network_training

    return Found({"network_training": network_training.run()})


def _peers() -> Found | None:
    from benchmarks import peers

    return Found({"peers": peers.run()}) if peers.are_there() else None


def _training() -> Found:
    from benchmarks import training

    text, ratios = training.run()
    return Found({"training": text}, ratios)


def _accuracy() -> Found:
    from benchmarks import accuracy

    used = {"units": accuracy.UNITS, "width": accuracy.WIDTH, "of_head": accuracy.OF_HEAD, "rate": accuracy.RATE}
    return Found({"accuracy": accuracy.run(), **{name: str(x) for name, x in used.items()}})


SECTIONS: Mapping[str, Callable[[], Found | None]] = {
    "one-round": _one_round,
    "jump": _jump,
    "scaling": _scaling,
    "reading": _reading,
    "limits": _limits,
    "recording": _recording,
    "completion": _completion,
    "valuation": _valuation,
    "cluster": _cluster,
    "heads": _heads,
    "gpu": _gpu,
    "alignment": _alignment,
    "network": _network,
    "network-training": _network_training,
    "peers": _peers,
    "training": _training,
    "accuracy": _accuracy,
}
"""What measures each section, in the order of the page."""


def write_page(measured: Mapping[str, Section], path: Path) -> None:
    """Write the page of all sections; what was never measured is said to be so."""
    template = TEMPLATE.read_text(encoding="utf-8")
    texts = {name: "(not measured yet)" for _, name, _, _ in Formatter().parse(template) if name}
    ratios: dict[str, float] = {}
    for name in SECTIONS:
        if name in measured:
            texts |= measured[name].texts
            ratios |= measured[name].ratios
    texts["ratios"] = table(["what", "times"], [[name, times(value)] for name, value in ratios.items()])
    places = dict.fromkeys(measured[name].where for name in SECTIONS if name in measured)
    named = {x: ", ".join(name for name in SECTIONS if name in measured and measured[name].where == x) for x in places}
    texts["where"] = "\n".join(f"- {names}: {place}." for place, names in named.items())
    path.write_text(template.format(**texts), encoding="utf-8")


def main() -> None:
    """Measure the sections that are named, or all, and write the page after each."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{', '.join(SECTIONS)}; all if none is named")
    named = parser.parse_args().sections
    if unknown := [name for name in named if name not in SECTIONS]:
        parser.error(f"unknown section {unknown[0]!r}; allowed are {', '.join(SECTIONS)}")
    for name in named or SECTIONS:
        print(name)
        measured = sections.read(RESULTS)
        found = sections.measure(SECTIONS[name])
        if found is None:
            print("  skipped: what it needs is not there; what was measured before stays")
            continue
        measured[name] = found
        sections.write(RESULTS, measured)
        write_page(measured, PAGE)


if __name__ == "__main__":
    main()
